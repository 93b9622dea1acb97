// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "launcher/job/cluster.h"
#include "launcher/job/collective_watch.h"
#include "launcher/job/lease_watch.h"
#include "launcher/job/outcome.h"
#include "launcher/job/rank_table.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// What the ranks that live are doing, as far as they tell or their nodes see it: ranks that do not
// run, and collectives that do not end.
class RankWatch {
 public:
  RankWatch(const Cluster& cluster, Out& out, RankTable& ranks, const LeaseWatch& lease_watch,
            StopPhase& stop)
      : cluster_(cluster), out_(out), ranks_(ranks), lease_watch_(lease_watch), stop_(stop) {}

  absl::Status OnProgress(const Event& event);
  void OnLastProgress(const Event& event);
  void OnEnded(uint32_t rank);

  // Of ranks that do not run; "" when all do, as far as known.
  std::string HaltedRanks() const;
  // What a job that is ended by its time limit was at.
  std::string WhereTheyAre() const;
  // Ends the job because nothing goes on.
  void Stalled(std::string message);

 private:
  bool Record(const ShepherdMessage& message);
  void NoteHalt(const ShepherdMessage& message, const v1::RankProgress& progress);
  void TellHalted();
  std::string HaltText(const RankEnd& end) const;
  std::string CollectiveText() const;
  std::string UnfinishedLines() const;
  void CheckCollectives();

  const Cluster& cluster_;
  Out& out_;
  RankTable& ranks_;
  const LeaseWatch& lease_watch_;
  StopPhase& stop_;
  CollectiveWatch collectives_;
  TimePoint warned_of_collective_ = kNever;          // the one that began then
  std::set<std::pair<TimePoint, uint32_t>> untold_;  // ranks that do not run, and since when
};

}  // namespace dtrain::job
