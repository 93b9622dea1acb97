// SPDX-License-Identifier: Apache-2.0
#include "runtime/process.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace dtrain::runtime {
namespace {

// A fixed buffer, so that reporting a failure cannot fail.
thread_local char last_error[1024];

Error State(const char* message) { return {DTRAIN_ERROR_STATE, message}; }

MaybeError MayJoin(const Process& process) {
  if (process.forked) {
    return State(
        "this process was forked from one that had called dtrain_init; only that one may "
        "join the job");
  }
  switch (process.phase.load()) {
    case Phase::kNew:
      return std::nullopt;
    case Phase::kJoined:
      return State("it was called before in this process, and dtrain_finalize was not");
    case Phase::kFailed:
      return State("it has already failed in this process, and cannot be tried again");
    case Phase::kBroken:
      return State("a collective of this process has failed, after which it cannot join again");
    case Phase::kLeft:
      break;
  }
  if (!process.launcher.closed) return std::nullopt;
  return State(
      "this launcher's PMI server lets a process join once only; 'dtrain launch' lets it "
      "join again after dtrain_finalize");
}

void SetPosition(Position& position, const Job& job) {
  const Places& places = job.places();
  position.rank = job.rank();
  position.size = job.size();
  position.local_rank = places.local;
  position.local_size = places.local_size();
  position.node_rank = places.node;
  position.nodes = places.node_count();
  position.backend = job.backend();
}

void ClearPosition(Position& position) {
  for (auto* number : {&position.rank, &position.size, &position.local_rank, &position.local_size,
                       &position.node_rank, &position.nodes}) {
    *number = -1;
  }
  position.backend = "none";
}

void SetJob(Process& process, std::unique_ptr<Job> job) {
  {
    const std::lock_guard<std::mutex> lock(process.job_mutex);
    std::swap(process.job, job);
  }
  // The old one ends outside of the lock.
}

void WatchForks() {
  static const bool watched = [] {
    return pthread_atfork(nullptr, nullptr, [] { TheProcess().forked = true; }) == 0;
  }();
  (void)watched;
}

}  // namespace

Process& TheProcess() {
  static Process* const process = new Process;
  return *process;
}

const char* LastError() { return last_error; }

dtrain_status Fail(const Error& error) { return FailPlainly(error.code, error.message.c_str()); }

dtrain_status FailPlainly(dtrain_status status, const char* text) {
  // Not memcpy: GCC 12 at -O2 takes the short-string buffer for the whole text and warns.
  std::snprintf(last_error, sizeof(last_error), "%s", text);
  return status;
}

MaybeError RequireJoined(const Process& process) {
  if (process.phase.load() == Phase::kJoined && !process.forked.load()) return std::nullopt;
  switch (process.phase.load()) {
    case Phase::kNew:
      return State("dtrain_init has not been called");
    case Phase::kFailed:
      return State("dtrain_init has failed in this process");
    case Phase::kBroken:
    case Phase::kLeft:
      return State("dtrain_finalize has been called");
    case Phase::kJoined:
      break;
  }
  return State(
      "this process was forked from the one that called dtrain_init; only that one may "
      "call collectives");
}

MaybeError Initialise(Process& process, const dtrain_config* given) {
  if (MaybeError error = MayJoin(process)) return error;
  dtrain_config config = DTRAIN_CONFIG_INIT;
  if (given != nullptr && !CopyKnown(given, &config, sizeof(config))) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
                 "dtrain_config.struct_size is wrong, or the structure sets fields that "
                 "libdtrain " DTRAIN_VERSION " does not have; start from DTRAIN_CONFIG_INIT"};
  }
  if (config.flags != 0) {
    return Error{DTRAIN_ERROR_UNSUPPORTED, "dtrain_config.flags has bits that are not defined"};
  }
  auto env = ReadEnvironment(config, [](const char* name) { return std::getenv(name); });
  if (!env.ok()) return env.error();  // nothing has happened yet: the caller may try again
  WatchForks();
  const bool first = process.phase.exchange(Phase::kFailed) == Phase::kNew;
  if (first) SetThisThreadsLane(kProgramLane);
  process.page.Open(env->page_fd);
  auto job = Job::Join(*env, process.launcher, process.page);
  if (!job.ok()) return job.error();
  SetPosition(process.position, **job);
  SetJob(process, std::move(*job));
  process.phase = Phase::kJoined;
  return std::nullopt;
}

namespace {

MaybeError Leave(Process& process, Job::Leaving how) {
  if (MaybeError error = RequireJoined(process)) return error;
  ClearPosition(process.position);
  process.phase = Phase::kLeft;
  MaybeError error = process.job->Leave(how);
  const bool to_return = how == Job::Leaving::kToReturn;
  if ((process.job->broken() && !to_return) || error) process.phase = Phase::kBroken;
  // Nothing is left that a thread could wait for.
  const std::lock_guard<std::shared_mutex> alone(process.waiting);
  SetJob(process, nullptr);
  return error;
}

}  // namespace

MaybeError Finalise(Process& process, Job::Leaving how) { return Leave(process, how); }

MaybeError Rejoin(Process& process, const dtrain_config* config) {
  if (MaybeError error = Leave(process, Job::Leaving::kToReturn)) return error;
  return Initialise(process, config);
}

}  // namespace dtrain::runtime
