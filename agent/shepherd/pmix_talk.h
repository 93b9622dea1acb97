// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/pmix.pb.h"

namespace dtrain::shepherd {

// What a node's PMIx server and the launcher say to each other, remembered as far as a launcher
// must hear it that takes the job over. Pure.
class PmixTalk {
 public:
  // From the server; what goes up. Absent: it answers a launcher that has lost the job.
  std::optional<v1::PmixUp> OnUp(v1::PmixUp up);
  // From the launcher; what goes down.
  v1::PmixDown OnDown(v1::PmixDown down);
  // Another launcher has come: what is to be said to it. Of its predecessor's questions nothing is
  // answered any more.
  std::vector<v1::PmixUp> OnAnother();
  // What the rank is in, should it end now.
  v1::WorkerExit::World WorldOf(uint32_t rank) const;

 private:
  using Ranks = std::vector<uint32_t>;

  bool asks_ = false;
  std::map<Ranks, v1::PmixUp> fences_;
  std::map<uint64_t, v1::PmixUp> wanted_;  // by the server's id
  std::set<uint32_t> joined_, left_;       // those that left are in both, until they join again
  // The launcher's ids of what it wants, by ours: each launcher begins with the same.
  std::map<uint64_t, uint64_t> questions_;
  uint64_t last_question_ = 0;
};

}  // namespace dtrain::shepherd
