// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "launcher/job/cluster.h"
#include "launcher/job/outcome.h"
#include "launcher/job/parts.h"
#include "launcher/job/rank_table.h"
#include "launcher/job/run_phase.h"
#include "launcher/job/stall_watch.h"
#include "launcher/job/start_limit.h"
#include "launcher/job/stop_phase.h"

namespace dtrain::job {

// From the word to start, to all nodes at once, until all have started. Where code is staged, all
// have it first.
class StartPhase {
 public:
  StartPhase(Cluster& cluster, Out& out, RankTable& ranks, StopPhase& stop, StartLimit& start_limit,
             StallWatch& stall_watch, RunPhase& run)
      : cluster_(cluster),
        out_(out),
        ranks_(ranks),
        stop_(stop),
        start_limit_(start_limit),
        stall_watch_(stall_watch),
        run_(run),
        staging_(cluster.size()),
        preparing_(cluster.size()) {}

  void Begin(MeetingPoints points);
  absl::Status OnPreparing(const Event& event);
  absl::Status OnStageWord(const Event& event);
  absl::Status OnStaged(const Event& event);
  absl::Status OnStarted(const Event& event);

 private:
  void SendStarts();
  void SetPreparing(NodeId node, bool is_preparing);

  Cluster& cluster_;
  Out& out_;
  RankTable& ranks_;
  StopPhase& stop_;
  StartLimit& start_limit_;
  StallWatch& stall_watch_;
  RunPhase& run_;
  MeetingPoints points_;       // until the starts are sent
  std::vector<bool> staging_;  // by node: it has not told that its code is there
  size_t staging_count_ = 0;
  std::vector<bool> preparing_;  // by node: it does first what takes long
  size_t preparing_count_ = 0;
  size_t started_count_ = 0;
};

// Releases nodes for which the plan has no rank, except spares.
void LetGoOfIdle(Cluster& cluster, StopPhase& stop);

}  // namespace dtrain::job
