// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "runtime/arguments.h"
#include "runtime/base/result.h"
#include "runtime/engine/job.h"
#include "runtime/engine/page.h"

namespace dtrain::runtime {

enum class Phase { kNew, kJoined, kFailed, kBroken, kLeft };

// What any thread may ask for at any time; -1 outside of a job.
struct Position {
  std::atomic<int> rank{-1};
  std::atomic<int> size{-1};
  std::atomic<int> local_rank{-1};
  std::atomic<int> local_size{-1};
  std::atomic<int> node_rank{-1};
  std::atomic<int> nodes{-1};
  std::atomic<const char*> backend{"none"};
};

// All that the C functions share. Never destroyed: a program that exits while a thread of its own
// is inside a collective must not crash on the way out.
struct Process {
  std::atomic<bool> busy{false};
  std::atomic<Phase> phase{Phase::kNew};
  // A fork has our state, but neither our threads nor our connections. Set in the child of any that
  // follows the first dtrain_init.
  std::atomic<bool> forked{false};
  Position position;
  Launcher launcher;
  ProgressPage page;
  std::mutex job_mutex;  // only while `job` is exchanged, and for reading it without `busy`
  std::unique_ptr<Job> job;
};

Process& TheProcess();

MaybeError RequireJoined(const Process& process);
MaybeError Initialise(Process& process, const dtrain_config* config);
MaybeError Finalise(Process& process);

// The text of this thread's last failure.
const char* LastError();
dtrain_status Fail(const Error& error);
// As Fail, for when there may be no memory for an Error.
dtrain_status FailPlainly(dtrain_status status, const char* text);

// Runs `body`, which returns MaybeError, as the only call in this process; no exception passes.
template <typename Body>
dtrain_status Call(const char* name, Body body) noexcept {
  Process* process = nullptr;
  dtrain_status status = DTRAIN_OK;
  try {
    Process& candidate = TheProcess();
    if (candidate.busy.exchange(true, std::memory_order_acquire)) {
      return Fail({DTRAIN_ERROR_BUSY, std::string(name) + ": another thread is inside a call of "
                                                          "libdtrain; only one may be at a time"});
    }
    process = &candidate;
    if (const MaybeError error = body(candidate)) {
      status = Fail({error->code, std::string(name) + ": " + error->message});
    }
  } catch (const std::bad_alloc&) {
    status = FailPlainly(DTRAIN_ERROR_RESOURCES, "out of memory");
  } catch (const std::exception& e) {
    status = FailPlainly(DTRAIN_ERROR_INTERNAL, e.what());
  } catch (...) {
    status = FailPlainly(DTRAIN_ERROR_INTERNAL, "unknown exception");
  }
  if (process != nullptr) process->busy.store(false, std::memory_order_release);
  return status;
}

}  // namespace dtrain::runtime
