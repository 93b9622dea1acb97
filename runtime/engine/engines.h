// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/engine/executor.h"
#include "runtime/engine/failure.h"
#include "runtime/engine/launch_order.h"
#include "runtime/engine/progress.h"
#include "runtime/engine/queue.h"

namespace dtrain::runtime {

// An executor of collectives, and the queue of those that wait for it.
struct Engine {
  // Its handles begin behind `first_handle`. `main`: the world's.
  Engine(Groups& groups, Progress& progress, Failure& failure, LaunchOrder& order, bool main,
         dtrain_handle first_handle)
      : executor(groups, progress, failure, order, main), queue(executor, first_handle) {}

  Executor executor;
  Queue queue;
};

// One for each group, with a thread of its own, so that a rank may use its groups in any order:
// none waits for another. Kernels of several communicators would block each other on devices if
// they began in different order on different ranks: there the groups launch what they have agreed
// on in an order of the ranks' own. Of(), OfHandle() and Add() may be called by any thread, the
// others as a Job's functions.
class Engines {
 public:
  Engines(Groups& groups, ProgressPage& page)
      : groups_(groups), progress_(page), world_(groups_, progress_, failure_, order_, true, 0) {}

  Engine& world() { return world_; }
  Engine& Of(uint32_t group);
  std::shared_ptr<Engine> OfHandle(dtrain_handle handle);

  // Before the first collective of a job that runs on a device.
  void SetOnDevice() { progress_.SetShared(); }
  // Before the first group is made: all ranks, also those that will be in none.
  void SetSeveral() { order_.Begin(); }
  // Before the first call that is for the group. No other group has begun before the first.
  void Add(uint32_t group);
  // Ends the engine of a group that has nothing pending. Its handles can still be waited for.
  void Retire(uint32_t group);
  // Until nothing is left to run, of any group; `own`: of what this thread has made.
  void DrainAll(bool own = false);

 private:
  Groups& groups_;
  Progress progress_;
  Failure failure_;
  LaunchOrder order_;
  Engine world_;
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Engine>> others_;  // by group
};

}  // namespace dtrain::runtime
