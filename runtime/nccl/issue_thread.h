// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "runtime/base/communicator.h"
#include "runtime/base/result.h"
#include "runtime/nccl/device.h"

namespace dtrain::runtime {

// The thread on which all calls into NCCL happen, for all communicators of a process: NCCL permits
// one thread at a time per device, and a call that does not come back must not hold up the program.
// It has the device's context, and disturbs no capture of another thread. Any thread.
//
// A body that is still running when nobody waits for it any more keeps its thread: it must own all
// that it touches.
class IssueThread {
 public:
  static Result<std::shared_ptr<IssueThread>> Start(std::shared_ptr<const Device> device);
  // Waits for its thread when that is idle, else leaves it behind.
  ~IssueThread();
  IssueThread(const IssueThread&) = delete;
  IssueThread& operator=(const IssueThread&) = delete;

  enum class Outcome {
    kDone,
    kNotBegun,  // other calls were in the way
    kStuck,     // begun, and still inside
  };
  // Runs `body` there, after those of other callers, and waits for its end, no longer than until
  // `deadline`, or until `give_up`, where there is one, says so: it is asked before `body` begins,
  // and every now and then.
  Outcome Run(std::function<void()> body, Deadline deadline,
              const std::function<bool()>& give_up = nullptr);

  // Runs `body` on the calling thread instead, while nothing runs there. False: something did,
  // until the deadline.
  bool RunHere(const std::function<void()>& body, Deadline deadline);

 private:
  struct State;
  explicit IssueThread(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void Main(State& state);

  const std::shared_ptr<State> state_;
};

}  // namespace dtrain::runtime
