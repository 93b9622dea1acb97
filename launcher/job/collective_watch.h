// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::job {

// Sees collectives that do not end, from what libdtrain tells about each rank, and who holds them
// up. Pure.
class CollectiveWatch {
 public:
  // "rank 3 on node1"
  using Name = std::function<std::string(uint32_t rank)>;

  void OnProgress(TimePoint now, const v1::RankProgress& progress);
  void OnEnded(uint32_t rank);

  // Since when the rank that waits longest has been inside its collective; kNever: nobody is.
  TimePoint oldest() const;
  // What hangs, since when, and because of whom; "" when nobody is inside a collective.
  std::string Explain(TimePoint now, const Name& name) const;

 private:
  struct Entry {
    bool known = false;        // it has joined and lives
    TimePoint since = kNever;  // inside its collective
    v1::RankProgress last;
  };
  void Set(uint32_t rank, bool known, TimePoint since);
  std::string Culprits(const Entry& oldest, const Name& name) const;

  std::vector<Entry> ranks_;
  // Those that are inside one, known and by since when: a job's nodes tell of all ranks each
  // second.
  std::set<std::pair<TimePoint, uint32_t>> inside_;
};

}  // namespace dtrain::job
