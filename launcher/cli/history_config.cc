// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/history_config.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "launcher/cli/mentions.h"
#include "launcher/cli/values.h"

namespace dtrain::cli {
namespace {

template <typename Value>
absl::Status SetValue(absl::StatusOr<Value> value, std::optional<Value>& out) {
  if (value.ok()) out = *value;
  return value.status();
}

absl::Status SetHistory(absl::string_view key, absl::string_view value, HistoryConfig& out) {
  if (key == "keep") return SetValue(ParseDuration(value), out.keep);
  if (key == "bytes") return SetValue(ParseSize(value), out.bytes);
  return SetValue(ParseNumber(value, 0, std::numeric_limits<uint32_t>::max()), out.jobs);
}

}  // namespace

absl::StatusOr<HistoryConfig> HistoryConfigOf(const std::string& path,
                                              const std::vector<config::Entry>& entries) {
  HistoryConfig config;
  for (const config::Entry& entry : entries) {
    if (entry.section != "history") continue;
    if (entry.key != "keep" && entry.key != "jobs" && entry.key != "bytes") {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.PlaceIn(path), ": unknown key ", Escape(entry.key, 80),
                       " in [history]", DidYouMean(entry.key, {"keep", "jobs", "bytes"})));
    }
    absl::Status set = SetHistory(entry.key, absl::StrJoin(entry.values, ","), config);
    if (!set.ok()) return At(absl::StrCat(entry.key, " in ", entry.PlaceIn(path)), set);
  }
  return config;
}

absl::StatusOr<HistoryConfig> ReadHistoryConfig(const Surroundings& surroundings) {
  const auto file = ReadConfigFile({}, surroundings);
  // Without its user's rules nothing may be removed.
  if (absl::IsPermissionDenied(file.status())) return At("configuration file", file.status());
  if (!file.ok()) return file.status();
  return HistoryConfigOf(file->path, file->entries);
}

}  // namespace dtrain::cli
