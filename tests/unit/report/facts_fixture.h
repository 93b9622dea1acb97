// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/report/facts.h"

namespace dtrain::report {

// A job of 4 ranks on 2 nodes, as a test wants it to have gone.
class FactsTest : public testing::Test {
 protected:
  FactsTest() {
    for (const char* host : {"node1", "node2"}) {
      job::NodeView node;
      node.host = host;
      node.joined = true;
      nodes_.push_back(node);
    }
    for (uint32_t rank = 0; rank < 4; ++rank) {
      job::RankEnd end;
      end.rank = Rank(rank);
      end.node = NodeId(rank / 2);
      ranks_.push_back(end);
    }
  }

  v1::WorkerExit& End(uint32_t rank) {
    ranks_[rank].ended = true;
    ranks_[rank].exit.set_rank(rank);
    ranks_[rank].exit.set_pid(4700 + rank);
    return ranks_[rank].exit;
  }

  void Phase(job::State state, int begin_ms, int end_ms = -1) {
    phases_.push_back({state, At(begin_ms), end_ms < 0 ? kNever : At(end_ms)});
    state_ = state;
  }

  static TimePoint At(int ms) { return TimePoint() + std::chrono::milliseconds(ms); }

  JobFacts Facts() const {
    return {state_,    nodes_,  ranks_,  phases_, verdict_, secondary_deaths_,
            warnings_, nullptr, nullptr, &gpus_};
  }

  job::State state_ = job::State::kFinished;
  std::vector<job::NodeView> nodes_;
  std::vector<job::RankEnd> ranks_;
  std::vector<job::PhaseTime> phases_;
  job::Verdict verdict_;
  size_t secondary_deaths_ = 0;
  std::vector<std::string> warnings_;
  std::vector<job::GpuFault> gpus_;
};

}  // namespace dtrain::report
