// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/host_name.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {

// One mention of one or more hosts that share all settings.
struct HostSpec {
  Position at;
  HostPattern pattern;
  std::string user;
  uint16_t port = 0;
  std::optional<uint32_t> slots;
  bool slots_like_port = false;  // see HostEntry
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

// Collects mentions of hosts into a HostList, each host once: its slots add up, all else that is
// said about it must agree.
class HostListBuilder {
 public:
  // `source` outlives the builder.
  explicit HostListBuilder(const Source& source) : source_(source) {}

  absl::Status Add(const HostSpec& spec);
  // Fails with `no hosts in NAME` when nothing was added. Ends the builder's use.
  absl::StatusOr<HostList> Finish() &&;

 private:
  struct Mentions {
    uint64_t given_slots = 0;  // of the mentions that say how many
    uint64_t max_slots = 0;    // likewise; a mention without a maximum adds its slots
    uint32_t with_slots = 0;
    uint32_t without_slots = 0;
    uint32_t bare_line = 0;  // first mention without slots
    bool has_max = false;
  };

  absl::Status AddHost(const HostSpec& spec, std::string host);
  absl::Status Merge(const HostSpec& spec, HostEntry& entry) const;
  void SetSlots(bool lines_are_slots);

  const Source& source_;
  HostList list_;
  std::vector<Mentions> mentions_;  // parallel to list_.entries
  absl::flat_hash_map<std::string, size_t> index_;
  size_t expanded_ = 0;  // hosts that came from ranges
};

}  // namespace dtrain::hosts
