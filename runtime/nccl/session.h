// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/nccl/device.h"
#include "runtime/nccl/issue_thread.h"
#include "runtime/nccl/libraries.h"
#include "runtime/nccl/timed_turn.h"
#include "runtime/nccl/watchdog.h"

namespace dtrain::runtime {

class NcclHandle;

// What the NCCL communicators of a process have in common: the thread that calls NCCL, the
// watchdog, and the first failure, which ends them all. An abort frees what other ranks of the
// machine still look at, and may wait for the whole GPU; so none is aborted while another one goes
// on. Any thread.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // The process's one, made for the first communicator, on the device that `open` gives, and gone
  // with the last. `longest_end` bounds NCCL's abort and destroy.
  using OpenDevice = std::function<Result<std::unique_ptr<Device>>()>;
  static Result<std::shared_ptr<Session>> Join(const Libraries& libraries, const OpenDevice& open,
                                               std::chrono::milliseconds longest_end);
  Session(const Libraries& libraries, std::shared_ptr<const Device> device,
          std::chrono::milliseconds longest_end);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Libraries& libraries() const { return libraries_; }
  const std::shared_ptr<const Device>& device() const { return device_; }
  std::chrono::milliseconds longest_end() const { return longest_end_; }

  // Whether no communicator has been made before. Asked once.
  bool IsNew() { return !used_.exchange(true); }

  // `tell` hears of the first failure, once, on any thread, with no lock of ours held.
  void SetOnFailure(std::function<void(const Error&)> tell);

  // What NCCL answers to `call`, on its thread; `name` is the function's, for messages. `call` must
  // own all that it touches. What goes wrong is the end of everything.
  using NcclCall = std::function<int()>;
  MaybeError Call(const char* name, NcclCall call, Deadline deadline);
  // As Call, for what may be refused without harm; only a call that does not come back has any.
  // `late` is then the reason.
  MaybeError Try(const char* name, NcclCall call, Deadline deadline, const std::string& late);
  // As Call, on the calling thread: what a graph is made of.
  MaybeError CallHere(const char* name, const NcclCall& call, Deadline deadline);
  // From here on, NCCL may wait for a graph before it lets go of a communicator.
  void SetCaptured() { captured_.store(true); }

  // What has failed here may hold up other ranks, who cannot be asked: unless it is settled with
  // them within `patience`, it is the end of everything. One at a time.
  void BreakUnlessSettled(const Error& reason, std::chrono::milliseconds patience);
  void Settle();

  // The first reason counts.
  void Break(const Error& reason);
  MaybeError broken() const;
  // Break; and waits until nothing that was enqueued touches its buffers any more.
  Error Fail(const Error& reason);
  // Nobody looks any more: the driver hangs.
  bool WatchdogHangs() const { return watchdog_ != nullptr && watchdog_->Hangs(); }
  void WakeWatchdog();

  void Add(NcclHandle* handle);
  // Ends the handle's communicator, in order when nothing is broken. False when its end hangs, or
  // it had to be left as it is: then the next call about the device may hang, too.
  bool Remove(NcclHandle* handle);

 private:
  struct Answer {
    int code = 0;
    std::string said;  // by NCCL, of its last error
  };
  MaybeError Verdict(const char* name, const Answer& answer) const;
  std::chrono::milliseconds Look();
  void End();
  bool AbortAll(std::vector<abi::NcclComm*> comms);
  void AwaitEnd();
  bool Destroy(NcclHandle* handle);

  const Libraries& libraries_;
  const std::shared_ptr<const Device> device_;
  const std::chrono::milliseconds longest_end_;
  std::shared_ptr<IssueThread> issue_;
  std::unique_ptr<Watchdog> watchdog_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  MaybeError broken_;
  std::atomic<bool> is_broken_{false};
  bool ended_ = false;      // after broken_: the aborts are over
  bool abandoned_ = false;  // a call has not come back
  std::atomic<bool> captured_{false};
  std::atomic<bool> used_{false};
  std::atomic<bool> spoiled_{false};  // an end hangs, and with it the thread that calls NCCL
  std::function<void(const Error&)> on_failure_;
  MaybeError unsettled_;
  Deadline settled_by_ = Deadline::max();

  TimedTurn looking_;  // the watchdog has it while it looks at the handles
  std::vector<NcclHandle*> handles_;
};

}  // namespace dtrain::runtime
