// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
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
  // Held by whoever is inside a call, but for waiting: others wait for their turn.
  std::mutex turn;
  // Held throughout dtrain_group_create; taken before `turn`. Ranks match its calls by their order.
  std::mutex making;
  // Shared by those who wait for a collective; alone by who ends the job under them.
  std::shared_mutex waiting;
  std::atomic<Phase> phase{Phase::kNew};
  // A fork has our state, but neither our threads nor our connections. Set in the child of any that
  // follows the first dtrain_init.
  std::atomic<bool> forked{false};
  Position position;
  Launcher launcher;
  ProgressPage page;
  std::mutex job_mutex;  // only while `job` is exchanged, and for reading it without `turn`
  std::unique_ptr<Job> job;
};

Process& TheProcess();

MaybeError RequireJoined(const Process& process);
MaybeError Initialise(Process& process, const dtrain_config* config);
MaybeError Finalise(Process& process, Job::Leaving how);
MaybeError Rejoin(Process& process, const dtrain_config* config);

// The text of this thread's last failure.
const char* LastError();
dtrain_status Fail(const Error& error);
// As Fail, for when there may be no memory for an Error.
dtrain_status FailPlainly(dtrain_status status, const char* text);

// Runs `body`, which returns MaybeError, with `lock`; no exception passes. In a fork nobody may
// unlock what a thread of its parent has locked, and there the body does not get as far as the job.
template <typename Lock, typename Body>
dtrain_status CallWith(Lock lock, const char* name, Body body) noexcept {
  try {
    Process& process = TheProcess();
    if (!process.forked.load(std::memory_order_relaxed)) lock.lock();
    if (const MaybeError error = body(process)) {
      return Fail({error->code, std::string(name) + ": " + error->message});
    }
    return DTRAIN_OK;
  } catch (const std::bad_alloc&) {
    return FailPlainly(DTRAIN_ERROR_RESOURCES, "out of memory");
  } catch (const std::exception& e) {
    return FailPlainly(DTRAIN_ERROR_INTERNAL, e.what());
  } catch (...) {
    return FailPlainly(DTRAIN_ERROR_INTERNAL, "unknown exception");
  }
}

// As the only call in this process; another thread's waits until this one is over.
template <typename Body>
dtrain_status Call(const char* name, Body body) noexcept {
  return CallWith(std::unique_lock(TheProcess().turn, std::defer_lock), name, body);
}

// Beside other calls: for what uses nothing but the queue.
template <typename Body>
dtrain_status CallBeside(const char* name, Body body) noexcept {
  return CallWith(std::shared_lock(TheProcess().waiting, std::defer_lock), name, body);
}

// For dtrain_group_create: runs `begin`, which must fail outside a job, as Call does, and then
// `wait` as CallBeside does. The job does not end in between.
template <typename Begin, typename Wait>
dtrain_status CallToMake(const char* name, Begin begin, Wait wait) noexcept {
  const auto both = [&](Process& process) -> MaybeError {
    std::unique_lock turn(process.turn, std::defer_lock);
    if (!process.forked.load(std::memory_order_relaxed)) turn.lock();
    if (MaybeError error = begin(process)) return error;
    const std::shared_lock beside(process.waiting);
    turn.unlock();
    return wait(process);
  };
  return CallWith(std::unique_lock(TheProcess().making, std::defer_lock), name, both);
}

}  // namespace dtrain::runtime
