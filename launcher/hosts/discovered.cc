// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/discovered.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "launcher/hosts/host_name.h"

namespace dtrain::hosts {

absl::StatusOr<HostList> ParseDiscovered(absl::string_view text, std::optional<uint32_t> slots) {
  HostList list;
  std::map<std::string, size_t> places;  // in it, by what tells hosts apart
  uint32_t number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty()) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, ':');
    HostEntry entry;
    entry.host = std::string(parts[0]);
    entry.slots = slots;
    entry.line = number;
    entry.column = 1;
    uint32_t count = 0;
    const bool counts =
        parts.size() == 2 && absl::SimpleAtoi(parts[1], &count) && count > 0 && count <= kMaxSlots;
    if (parts.size() > 2 || (parts.size() == 2 && !counts)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": \"", Escape(line, 100), "\" is not HOST or HOST:SLOTS"));
    }
    if (counts) entry.slots = count;
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
