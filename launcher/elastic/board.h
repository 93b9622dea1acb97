// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/v1/elastic.pb.h"
#include "launcher/elastic/events.h"
#include "launcher/elastic/runs.h"

// Between the doors of an elastic job, and from them to ElasticCore: who is told what others have
// put and removed. Pure. Values only pass through: all doors of a round are open before the first.
namespace dtrain::elastic {

// Removals of one door that others have not applied yet.
inline constexpr size_t kMostRemovals = 4096;
// What the ranks of one host may put in a round: more than their door lets through.
inline constexpr size_t kMostPutBytes = 40 << 20;

class Board {
 public:
  struct Send {
    RunId to;
    v1::ElasticDown down;
  };
  struct Heard {
    std::vector<Send> sends;
    std::optional<ElasticEvent> event;  // for ElasticCore
  };

  // Of the round before, nothing comes any more.
  std::vector<Send> Open(const OpenRound& round);
  // An error is that run's fault. What a run that was dropped still says, or any one about a former
  // round, is nothing.
  absl::StatusOr<Heard> OnUp(RunId from, const v1::ElasticUp& up);
  // It has ended, or will: nobody waits for it any longer.
  std::vector<Send> Drop(RunId run);

 private:
  struct Removal {
    RunId origin;
    uint64_t id = 0;  // the origin's
    std::set<RunId> waits_for;
  };

  absl::Status Check(RunId from, const v1::ElasticUp& up) const;
  absl::StatusOr<Heard> Remove(RunId from, const v1::ElasticRemoval& removal);
  absl::StatusOr<Heard> Applied(RunId from, uint64_t id);
  v1::ElasticDown Down() const;
  Send Done(const Removal& removal) const;

  uint64_t round_ = 0;
  std::map<RunId, size_t> runs_;               // the number of workers of each
  std::map<uint64_t, Removal> removals_;       // by our id
  std::map<RunId, size_t> put_bytes_;          // in this round, by origin
  std::map<RunId, std::set<uint64_t>> asked_;  // the ids of these, by origin: its own
  uint64_t first_id_ = 1;                      // of this round
  uint64_t next_id_ = 1;
};

}  // namespace dtrain::elastic
