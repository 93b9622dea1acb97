// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/host_range.h"
#include "launcher/hosts/setting.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {

// One mention of one or more hosts that share all settings.
struct HostSpec {
  Position at;
  HostPattern pattern;
  std::string user;
  uint16_t port = 0;
  std::optional<uint32_t> slots;
  std::optional<uint32_t> max_slots;
  std::optional<uint32_t> gpus;
  Way way = Way::kUnsaid;
};

// The word `host[:tail]`, or `[address][:tail]` for IPv6; two or more colons without brackets are
// an IPv6 address. Errors add `advice`.
struct HostWord {
  HostPattern pattern;
  absl::string_view tail;  // from the colon on; empty: none
};
absl::StatusOr<HostWord> ParseHostWord(const Source& source, Position at, absl::string_view text,
                                       absl::string_view advice);

// The word `[user@]host[:slots]`. One colon separates slots; two or more without brackets are an
// IPv6 address.
absl::StatusOr<HostSpec> ParseHostSpec(const Source& source, Position at, absl::string_view word);

// Login names come from `user@` and from `user=`.
absl::Status CheckUser(const Source& source, Position at, absl::string_view user);

// The items of a list on one line and where they start. Commas separate, outside of brackets;
// blanks around an item are dropped, and separate too when `blanks_separate`.
std::vector<std::pair<Position, absl::string_view>> SplitHostList(absl::string_view text,
                                                                  bool blanks_separate);

}  // namespace dtrain::hosts
