// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "launcher/job/cluster.h"
#include "launcher/job/mpi_watch.h"
#include "launcher/job/outcome.h"
#include "launcher/job/rank_table.h"
#include "launcher/job/rank_watch.h"
#include "rendezvous/fence_core.h"

namespace dtrain::job {

// Fences, and ranks that end early with 0: a job that waits for one of them for ever is ended.
class StallWatch {
 public:
  StallWatch(const Cluster& cluster, Out& out, const RankTable& ranks, MpiWatch& mpi_watch,
             RankWatch& rank_watch)
      : cluster_(cluster),
        out_(out),
        ranks_(ranks),
        mpi_watch_(mpi_watch),
        rank_watch_(rank_watch) {}

  void Begin();        // the job is told to start
  void BeginRetold();  // or was: each node says first which fences it has entered last
  void OnRetold(NodeId node);
  bool retelling() const { return !retelling_.empty(); }
  absl::Status OnFenceEnter(const Event& event);
  absl::Status OnPmix(const Event& event);
  void OnExit(uint32_t rank);  // with 0
  void OnNodeEnded(NodeId node);

  TimePoint NextDeadline() const;
  void OnDeadline();

 private:
  absl::Status Enter(size_t plan_index, v1::FenceEnter enter);
  void Resume();
  void Plan();
  void OnEarlyExit();
  void OnStall();

  const Cluster& cluster_;
  Out& out_;
  const RankTable& ranks_;
  MpiWatch& mpi_watch_;
  RankWatch& rank_watch_;
  std::optional<rendezvous::FenceCore> fence_;
  // By index in the plan, until all nodes have said which fences they had entered.
  struct Retelling {
    bool over = false;
    std::vector<v1::FenceEnter> entered;  // the last two
  };
  std::vector<Retelling> retelling_;
  TimePoint fence_since_ = kNever;
  // Nodes of the plan of which a rank has ended, the first first. Those before `unentered_` are in
  // the present fence: each is looked at once for each fence, not at each exit.
  std::vector<size_t> with_exits_;
  size_t unentered_ = 0;
  std::vector<bool> has_exit_;  // by index in the plan: whether it is among them
  Rank early_exit_;             // the first to exit with 0
  TimePoint warn_exit_at_ = kNever;
  TimePoint stall_at_ = kNever;
};

}  // namespace dtrain::job
