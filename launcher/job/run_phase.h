// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "launcher/job/cluster.h"
#include "launcher/job/lease_watch.h"
#include "launcher/job/losses.h"
#include "launcher/job/mpi_watch.h"
#include "launcher/job/own_pauses.h"
#include "launcher/job/rank_table.h"
#include "launcher/job/rank_watch.h"
#include "launcher/job/stall_watch.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// While workers live: who ended how, who failed first, and when all have ended. What they are doing
// is RankWatch's, what becomes of nodes is Losses'.
class RunPhase {
 public:
  // The watches that are told of each end.
  struct Watches {
    RankWatch& ranks;
    MpiWatch& mpi;
    StallWatch& stalls;
  };
  RunPhase(Cluster& cluster, RankTable& ranks, const LeaseWatch& lease_watch, StopPhase& stop,
           OwnPauses& own_pauses, Losses& losses, Watches watches)
      : cluster_(cluster),
        ranks_(ranks),
        lease_watch_(lease_watch),
        stop_(stop),
        own_pauses_(own_pauses),
        losses_(losses),
        watches_(watches) {}

  void Begin();  // all nodes have started
  absl::Status OnExit(const Event& event);
  void OnExitStopping(const Event& event);
  absl::Status OnFinished(const Event& event);
  void OnSign(const Event& event);
  // After a takeover each node has said again what there was.
  void OnAllRetold();

 private:
  bool Record(const ShepherdMessage& message);
  FailureOrder OrderOf(const ShepherdMessage& message) const;
  void CheckAllEnded();

  Cluster& cluster_;
  RankTable& ranks_;
  const LeaseWatch& lease_watch_;
  StopPhase& stop_;
  OwnPauses& own_pauses_;
  Losses& losses_;
  Watches watches_;
  // Whose worker was told to end, and nobody has said why yet: the launcher before us may have.
  std::optional<NodeId> ended_unasked_;
};

}  // namespace dtrain::job
