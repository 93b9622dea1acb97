// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/discovered.h"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/hosts/host_name.h"

namespace dtrain::hosts {
namespace {

struct Words {
  absl::string_view host;
  std::optional<absl::string_view> slots;
};

// HOST or HOST:SLOTS; an IPv6 address needs brackets for slots, as in a host file.
std::optional<Words> SplitLine(absl::string_view line) {
  if (IsIpv6(line)) return Words{line, std::nullopt};
  const size_t colon = line.rfind(':');
  Words words{line.substr(0, colon), std::nullopt};
  if (colon != absl::string_view::npos) words.slots = line.substr(colon + 1);
  if (absl::StartsWith(line, "[") && absl::EndsWith(line, "]")) words = {line, std::nullopt};
  if (absl::ConsumePrefix(&words.host, "[")) {
    if (!absl::ConsumeSuffix(&words.host, "]") || !IsIpv6(words.host)) return std::nullopt;
    return words;
  }
  if (absl::StrContains(words.host, ':')) return std::nullopt;
  return words;
}

}  // namespace

absl::StatusOr<HostList> ParseDiscovered(absl::string_view text, std::optional<uint32_t> slots) {
  HostList list;
  std::map<std::string, size_t> places;  // in it, by what tells hosts apart
  uint32_t number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty()) continue;
    const std::optional<Words> words = SplitLine(line);
    uint32_t count = 0;
    const bool counts = words && words->slots && absl::SimpleAtoi(*words->slots, &count) &&
                        count > 0 && count <= kMaxSlots;
    if (!words || (words->slots && !counts)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": \"", Escape(line, 100), "\" is not HOST or HOST:SLOTS"));
    }
    HostEntry entry;
    entry.host = std::string(words->host);
    entry.slots = counts ? std::optional<uint32_t>(count) : slots;
    entry.line = number;
    entry.column = 1;
    if (absl::Status name = CheckHostName(entry.host); !name.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", name.message()));
    }
    const auto [known, is_new] = places.try_emplace(HostKey(entry.host), list.entries.size());
    if (!is_new) {
      list.entries[known->second] = std::move(entry);
    } else if (list.entries.size() == kMaxHosts) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxHosts, " hosts"));
    } else {
      list.entries.push_back(std::move(entry));
    }
  }
  return list;
}

}  // namespace dtrain::hosts
