// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/support/fake_nccl/nccl/codes.h"
#include "tests/support/fake_nccl/nccl/profile.h"
#include "tests/support/fake_nccl/nccl/registration.h"
#include "tests/support/fake_nccl/nccl/witness.h"
#include "tests/support/fake_nccl/nccl/world.h"

namespace fake_nccl {

class Job;

// What kernels need of a communicator: outlives it where they do.
struct Line {
  std::shared_ptr<World> world;  // nullptr before the ranks have met
  int device = 0;
  std::atomic<bool> abort{false};
  std::atomic<int> proxy_error{kSuccess};
  std::atomic<int> captured{0};  // kernels in graphs that live

  // Operations run in the order of the calls, whatever their streams.
  std::mutex mutex;
  std::condition_variable changed;
  int issued = 0, finished = 0;

  int unfinished() {
    const std::lock_guard lock(mutex);
    return issued - finished;
  }
};

}  // namespace fake_nccl

// The API's ncclComm. Freed by destroy and abort, whoever is inside: for AddressSanitizer it really
// is; in other builds it stays, marked, so that its use is counted and not a crash.
struct ncclComm {
  std::shared_ptr<fake_nccl::Line> line = std::make_shared<fake_nccl::Line>();
  int rank = 0, size = 0, device = 0;
  bool blocking = true;
  std::atomic<int> state{fake_nccl::kSuccess};
  std::atomic<bool> gone{false};
  bool ready = false, finalized = false, revoked = false, destroyed = false;
  unsigned connected = 0;  // kinds of collectives, a bit each
  int operations = 0;
  std::vector<std::shared_ptr<fake_nccl::Registration>> registrations;  // as NCCL's, without a lock
  fake_nccl::Job* job = nullptr;  // the last one of a non-blocking communicator

  volatile int word = 0;       // unlocked: ThreadSanitizer reports who breaks the rules
  std::atomic<int> inside{0};  // calls and jobs
  std::atomic<bool> ended_inside{false};
  std::atomic<pid_t> user{0};  // the thread of the call
};

namespace fake_nccl {

// A call that only one thread may make at a time.
class CommCall {
 public:
  explicit CommCall(ncclComm* comm);
  ~CommCall();
  CommCall(const CommCall&) = delete;
  CommCall& operator=(const CommCall&) = delete;

 private:
  ncclComm* const comm_;
  const DeviceCall device_;
};

// A thread of the fake's own inside.
class CommJob {
 public:
  explicit CommJob(ncclComm* comm) : comm_(comm) { comm_->inside.fetch_add(1); }
  ~CommJob() { comm_->inside.fetch_sub(1); }
  CommJob(const CommJob&) = delete;
  CommJob& operator=(const CommJob&) = delete;

 private:
  ncclComm* const comm_;
};

// The communicator's context is this thread's for as long as it lives.
class CommContext {
 public:
  explicit CommContext(int device);
  ~CommContext();
  CommContext(const CommContext&) = delete;
  CommContext& operator=(const CommContext&) = delete;
};

// What ncclCommGetAsyncError says.
int StateOf(ncclComm& comm);
// As a call checks it first: kSuccess, or what the call returns.
int CheckReady(ncclComm& comm);
// For a host thread that waits inside `comm`.
bool Stopped(ncclComm& comm);
void JoinJob(ncclComm& comm);
// Counts that the communicator ends with another thread inside, if one is.
void LookInside(ncclComm& comm);
void Free(ncclComm* comm);

[[noreturn]] void Hang();

}  // namespace fake_nccl
