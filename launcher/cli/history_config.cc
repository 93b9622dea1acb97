// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/history_config.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "launcher/cli/config_line.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/mentions.h"
#include "launcher/cli/values.h"

namespace dtrain::cli {
namespace {

constexpr absl::string_view kHistory = "history";

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

absl::StatusOr<HistoryConfig> HistoryConfigOf(const std::string& path, const std::string& text,
                                              const std::vector<ConfigValue>& values) {
  HistoryConfig config;
  for (const ConfigValue& value : values) {
    if (value.section != kHistory) continue;
    const size_t line = LineOfKey(text, value.key, kHistory);
    const std::string place = absl::StrCat(Escape(path), line == 0 ? "" : absl::StrCat(":", line));
    if (value.key != "keep" && value.key != "jobs" && value.key != "bytes") {
      const std::string nearest = Nearest(value.key, {"keep", "jobs", "bytes"});
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": unknown key ", Escape(value.key, 80), " in [history]",
                       nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
    }
    absl::Status set = SetHistory(value.key, absl::StrJoin(value.values, ","), config);
    if (!set.ok()) return At(absl::StrCat(value.key, " in ", place), set);
  }
  return config;
}

absl::StatusOr<HistoryConfig> ReadHistoryConfig(const Surroundings& surroundings) {
  const auto file = ReadConfigFile({}, surroundings);
  // Without its user's rules nothing may be removed.
  if (absl::IsPermissionDenied(file.status())) return At("configuration file", file.status());
  if (!file.ok()) return file.status();
  return HistoryConfigOf(file->path, file->text, file->values);
}

}  // namespace dtrain::cli
