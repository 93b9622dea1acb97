// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>

namespace dtrain::runtime {

// In which order the groups of this process launch on its device what each has agreed on: the same
// on all ranks for any two groups that they share, as NCCL demands, whatever order the programs
// use. Every rank of a group proposes a time that is later than all it knows of, and the latest of
// these counts (Skeen's algorithm). A rank launches what has the earliest time, once nothing can
// come before it. Any thread.
class LaunchOrder {
 public:
  // There is more than one group from here on: the same place for all ranks in the world's order.
  void Begin() { begun_.store(true); }
  bool begun() const { return begun_.load(); }

  // What one group launches at a time: from the proposal, when all of its ranks have agreed on it,
  // until it is launched.
  class Turn {
   public:
    Turn(LaunchOrder& order, uint32_t group);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    int64_t proposal() const { return proposal_; }
    // Returns when it is this one's turn. `time` is the latest proposal of the group's ranks.
    void Await(int64_t time);

   private:
    LaunchOrder& order_;
    const uint32_t group_;
    int64_t proposal_ = 0;
  };

 private:
  std::atomic<bool> begun_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t clock_ = 0;
  // Of the turns by group: the time, or the proposal, before which it cannot be.
  std::map<uint32_t, int64_t> turns_;
};

}  // namespace dtrain::runtime
