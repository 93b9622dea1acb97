// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/engine/failure.h"
#include "runtime/engine/group.h"
#include "runtime/engine/launch_order.h"
#include "runtime/engine/negotiator.h"
#include "runtime/engine/operation.h"
#include "runtime/engine/progress.h"

namespace dtrain::runtime {

// Runs collectives one after another: agrees on them with the other ranks, names what failed, and
// after a failure, of whichever executor of the job, refuses everything with that first one's text.
// A timeout of a group of some of the ranks, or of another one of all, fails this group alone.
// One thread at a time, but for what says otherwise.
class Executor {
 public:
  // `main`: of the job's executors the one that may use the world's communicator for memory.
  Executor(Groups& groups, Progress& progress, Failure& failure, LaunchOrder& order, bool main)
      : groups_(groups), progress_(progress), failure_(failure), order_(order), main_(main) {}
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Returns at the end of the collective.
  MaybeError Run(Operation& operation);

  // Of an operation on a device, in the thread that asks for it: what it comes after, and where its
  // buffers are. Any thread.
  MaybeError PrepareForDevice(Operation& operation) const;
  // Makes it part of the graph that its stream captures.
  MaybeError Capture(Operation& operation);
  // After RunAgreed: what its stream gets from now on comes after it. Any thread.
  MaybeError JoinStream(const Operation& operation);
  // After RunAgreed: whether the device has done it. Any thread.
  bool IsOver(const Operation& operation) const;

  // `pending` are all asynchronous operations of one group that this process has, in the order it
  // made them. Agrees with the other ranks on what to run now, runs it, and tells `done` about each
  // operation that is over, or enqueued on a device. Returns how many are: none when no operation
  // is pending on all ranks yet. `stuck`: the program makes no other before one of them is done.
  using Done = std::function<void(Operation& operation, const MaybeError& error)>;
  size_t RunAgreed(const std::vector<Operation*>& pending, bool stuck, size_t threshold,
                   const Done& done);

  // Until every rank of the job is in here: zeros for the all-reduces that others give to
  // RunAgreed. Returns the rank that came last.
  Result<int> Join(size_t threshold);

  // For failures outside of Run: ends the job's collectives. Any thread.
  void SetBroken(const Error& error);
  // Collective over the group, which has agreed on what comes next on its device: returns when no
  // other group's is before it, and none is until the result has gone. Null in a job without
  // groups, unless `always`.
  Result<std::unique_ptr<LaunchOrder::Turn>> TakeTurn(Group& group, bool always = false);
  // Until nothing is in flight there, if it has a device.
  MaybeError AwaitDevice(const Group& group);
  // Before the communicators go.
  void FreeBuffer();
  // From now on, no executor of this process calls Operation::allocate. Returns when none does. Any
  // thread.
  static void StopAllocating();

  // The first failure; after it every call returns it. Any thread.
  MaybeError broken() const;

 private:
  // Zeros, as the others run `agreed`.
  MaybeError GoAlong(Group& group, const std::vector<Negotiator::Joint>& agreed, size_t threshold);
  // What all ranks have agreed on.
  void RunBatches(const std::vector<Operation*>& agreed, size_t threshold, Spent spent,
                  int64_t waited_ns, int64_t begin_ns, const Done& done);
  MaybeError RunBatch(const std::vector<Operation*>& operations, Progress::Run run);
  MaybeError LaunchBatch(const std::vector<Operation*>& operations, Progress::Run run);
  MaybeError RunFused(Group& group, const std::vector<Operation*>& operations, Spent& spent,
                      std::vector<int64_t>& ends);
  MaybeError Transfer(Group& group, Collective what, Spent& spent);
  // Of an operation with any number of rows, once it is agreed on: the ranks tell each other how
  // many they have, and memory for them is there afterwards, which says where the data goes along.
  MaybeError Measure(Operation& operation);
  MaybeError AgreeOnPlaces(Operation& operation, const Collective& what);
  // An all-gather of unequal parts, on the host.
  MaybeError GatherRows(const Operation& operation, Spent& spent);
  MaybeError RunOnDevice(Operation& operation, Spent& spent);
  // `error` with who was in what.
  Error Locate(const Operation& operation, Error error) const;
  // Locates it, and ends the job's collectives, unless only the group is affected.
  Error Break(const Operation& operation, Error error);
  // Memory for `bytes`, kept for the next time.
  Result<std::byte*> Buffer(size_t bytes);

  Groups& groups_;
  Progress& progress_;
  Failure& failure_;
  LaunchOrder& order_;
  const bool main_;
  Negotiator negotiator_;
  int64_t stalled_since_ns_ = 0;  // when the first round began that agreed on nothing; else 0
  std::byte* buffer_ = nullptr;   // from the world's communicator, or plain
  size_t buffer_bytes_ = 0;
  bool buffer_is_plain_ = false;
};

}  // namespace dtrain::runtime
