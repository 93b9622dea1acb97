// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "launcher/job/cluster.h"
#include "rendezvous/address_choice.h"

namespace dtrain::job {

// Where the ranks meet: proven addresses and held ports.
struct MeetingPoints {
  std::vector<rendezvous::Chosen> addresses;  // by index in the plan
  std::vector<std::vector<uint32_t>> ports;   // likewise: of its ranks, where they need their own
  uint32_t master_port = 0;                   // on rank 0's node
  uint32_t coordinator_port = 0;
  uint32_t rendezvous_port = 0;
};

// What each node is told to start: what all have in common, merged with what is its own. PURE.
class PartMaker {
 public:
  PartMaker(const Cluster& cluster, MeetingPoints points);

  v1::JobPart Common() const;
  v1::JobPart OwnOf(size_t plan_index) const;

 private:
  v1::Meeting MeetingOfAll() const;
  v1::WholeJob Whole() const;

  const Cluster& cluster_;
  const MeetingPoints points_;
};

}  // namespace dtrain::job
