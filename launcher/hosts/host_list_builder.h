// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/hosts/host_spec.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {

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
