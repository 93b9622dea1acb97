// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/engine/executor.h"

namespace dtrain::runtime {

// The asynchronous collectives of this process, and the one thread that runs them, which starts
// with the first of them. Whoever waits for one runs what is in the queue itself, where nobody else
// is at it already: handing over would take longer than most collectives. Any thread may call
// anything but Drain and the destructor, which are for one at a time while nobody adds more.
class Queue {
 public:
  // Its handles are the numbers behind `first_handle`.
  Queue(Executor& executor, dtrain_handle first_handle)
      : executor_(executor), next_handle_(first_handle + 1) {}
  // Waits for what is in the queue.
  ~Queue() { Stop(); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Before the first Add. All-reduces of up to `threshold` bytes, gathered for `cycle_time`, run
  // together; 0: none do. The threshold must be the same on all ranks.
  void SetFusion(size_t threshold, std::chrono::microseconds cycle_time) {
    threshold_ = threshold;
    cycle_time_ = cycle_time;
  }

  void SetFusionLike(const Queue& other) { SetFusion(other.threshold_, other.cycle_time_); }

  size_t fusion_threshold() const { return threshold_; }

  // Fails when no thread can be started, or one of the same name and group is in the queue.
  Result<dtrain_handle> Add(Operation operation);
  // Of one that has been enqueued on a device already.
  Result<dtrain_handle> AddDone(Operation operation);
  // Returns when the operation is done, or enqueued on a device, where its stream waits for it;
  // with how it went, and forgets the handle.
  MaybeError Wait(dtrain_handle handle);
  // Likewise, but at once; `done` tells whether it is, also on a device, and only then is the
  // handle forgotten.
  MaybeError Test(dtrain_handle handle, bool& done);
  // Returns when nothing is left to run, so that the caller may use the executor. `own`: nothing
  // that this thread has added.
  void Drain(bool own = false);
  // Likewise; there will be nothing more. Handles can be waited for still, also when the groups
  // have gone.
  void Stop();
  // Before a group is freed that has nothing left to run, here or on its device: its handles can
  // still be waited for. With a `failure`, what was enqueued on the device ends with that.
  void Forget(const Group& group, const MaybeError& failure);
  // Whether every handle has been waited for.
  bool empty();

 private:
  struct Entry {
    Operation operation;
    std::thread::id caller;
    bool done = false;
    bool awaited = false;  // a thread is in Wait for it
    MaybeError error;
  };

  void Main();
  void AwaitWork(std::unique_lock<std::mutex>& lock);
  bool ShouldWake(const Operation& operation) const;
  Result<dtrain_handle> Enter(Operation operation);
  MaybeError StartThread();
  // Lets the front of the queue wait a little for more that may run with it.
  void Gather(std::unique_lock<std::mutex>& lock);
  // From the front, how many of one group, and whether more could still join them.
  size_t CountReady(bool& complete) const;
  // A round for the group at the front of the queue; `lock` is free meanwhile. `waits`: the calling
  // thread does nothing else before one of them is done.
  void RunFront(std::unique_lock<std::mutex>& lock, bool waits);
  // After a round in which no operation was pending on all ranks: until there is another one here,
  // or for a moment, as another rank may have another one.
  void Pause(std::unique_lock<std::mutex>& lock);
  bool MayGather(const Operation& operation) const;
  // Operation::then, for which nothing else can run: it does not count as waiting.
  void RunThen(const std::function<void()>& then);
  void SetDone(Operation& operation, const MaybeError& error);
  template <typename IsDone>
  void RunUntil(std::unique_lock<std::mutex>& lock, IsDone is_done);

  Executor& executor_;
  size_t threshold_ = 0;
  std::chrono::microseconds cycle_time_{0};

  std::mutex mutex_;
  std::condition_variable work_;  // for the thread: more to do, or no more to wait for
  std::condition_variable done_;  // for who waits: something is done, or nobody runs any more
  std::deque<Entry*> waiting_;    // not done
  std::set<std::pair<uint32_t, uint64_t>> keys_;  // of these: group and key
  std::unordered_map<dtrain_handle, std::unique_ptr<Entry>> entries_;
  dtrain_handle next_handle_;
  bool running_ = false;                // somebody is inside RunFront
  int awaited_ = 0;                     // so many wait, and run the queue
  bool added_ = false;                  // something, since the last round began
  std::chrono::microseconds pause_{0};  // after rounds without a result; 0 after one with
  std::chrono::steady_clock::time_point stalled_since_;  // while there is a pause
  std::thread::id caller_;     // the only thread that has added anything so far
  bool several_call_ = false;  // or there are several
  bool asleep_ = false;        // the thread has to be woken for new work
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dtrain::runtime
