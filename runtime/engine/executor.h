// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/result.h"
#include "runtime/engine/fusion.h"
#include "runtime/engine/group.h"
#include "runtime/engine/page.h"

namespace dtrain::runtime {

// One collective of the program on its way.
struct Operation {
  Group* group = nullptr;
  Collective what;
  std::string name;     // of the program's own, or empty
  uint64_t number = 0;  // among those of its group; given by the executor
};

// Runs collectives one after another: tells the page, names what failed, and after a failure
// refuses everything with that first one's text. One thread at a time, but for broken().
class Executor {
 public:
  Executor(const Environment& env, Groups& groups, ProgressPage& page)
      : env_(env), groups_(groups), page_(page) {}
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Returns at the end of the collective; with device buffers and !wait_for_device, when it is
  // enqueued.
  MaybeError Run(Operation& operation, bool wait_for_device);

  // `ready` are all-reduces of one group, the next ones of this process in their order. Agrees with
  // the other ranks on how many of them to run now, runs those, tells `done` about each of them as
  // soon as it is done, and returns their number.
  using Done = std::function<void(Operation& operation, const MaybeError& error)>;
  size_t RunAgreed(const std::vector<Operation*>& ready, size_t threshold, const Done& done);

  // Until every rank of the job is in here: zeros for the all-reduces that others give to
  // RunAgreed. Returns the rank that came last.
  Result<int> Join(size_t threshold);

  // For failures outside of Run: ends the job's collectives.
  void SetBroken(const Error& error);
  // Before the communicators go.
  void FreeBuffer();

  // The first failure; after it every call returns it. Any thread.
  MaybeError broken() const;

 private:
  // `about` is the operation that a failure is about.
  Result<size_t> Agree(const std::vector<Operation*>& ready, Spent& spent, const Operation*& about);
  // What all ranks offer. Not for groups of one.
  Result<Agreement> MakeAgreement(Group& group, std::vector<int32_t> offer, Spent& spent);
  // A small one of the library's own, where agreements go.
  MaybeError RunOwn(Group& group, Collective what, Spent& spent);
  // `mine`: none of a rank that is in Join.
  Error Disagreement(Group& group, const Operation* mine);
  // Tells the ranks that are in Join about the operations; those give none.
  Result<std::vector<Collective>> ShareWithJoined(Group& group, size_t count,
                                                  const std::vector<Operation*>& mine);
  Result<Agreement> AgreeAsJoined(Group& group);
  MaybeError GoAlong(Group& group, size_t count, size_t threshold);
  // The first `count` of `ready`, which all ranks have agreed on.
  void RunBatches(const std::vector<Operation*>& ready, size_t count, size_t threshold, Spent spent,
                  int64_t waited_ns, int64_t begin_ns, const Done& done);
  MaybeError RunBatch(const std::vector<Operation*>& operations, Spent& spent, int64_t waited_ns,
                      int64_t begin_ns);
  MaybeError RunFused(Group& group, const std::vector<Operation*>& operations, Spent& spent,
                      std::vector<int64_t>& ends);
  MaybeError Transfer(Group& group, Collective what, Spent& spent);
  static void FillRecord(TimelineRecord& record, uint64_t number, uint64_t bytes, TimelineKind kind,
                         const Spent& spent);
  void Record(const Operation& operation, int64_t begin_ns, int64_t end_ns, const Spent& spent);
  // Adds to `error` who was in what, and ends the job's collectives.
  Error Break(const Operation& operation, Error error);
  // Memory for `bytes`, kept for the next time.
  Result<std::byte*> Buffer(size_t bytes);

  const Environment& env_;
  Groups& groups_;
  ProgressPage& page_;
  std::byte* buffer_ = nullptr;  // from the world's communicator, or plain
  size_t buffer_bytes_ = 0;
  bool buffer_is_plain_ = false;

  std::atomic<bool> is_broken_{false};
  mutable std::mutex broken_mutex_;
  MaybeError broken_;
};

}  // namespace dtrain::runtime
