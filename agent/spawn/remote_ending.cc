// SPDX-License-Identifier: Apache-2.0
// How RemoteSpawner takes jobs over and ends them.
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/spawn/remote_link.h"
#include "agent/spawn/remote_processes.h"
#include "agent/spawn/remote_spawner.h"
#include "common/log/log.h"
#include "common/os/cgroup.h"
#include "common/os/process_tree.h"

namespace dtrain::spawn {
namespace {

// The spawner sees the end of a shepherd, and of all that was with it, as soon as we do.
constexpr Duration kEndTold = std::chrono::milliseconds(200);
constexpr Duration kHowLimit = std::chrono::seconds(2);
// Of a job's processes, which may be many, for Quarantine to choose from.
constexpr size_t kMostLooked = 1024;

}  // namespace

// ---- those of the previous agent ------------------------------------------------------------

Spawner::Found RemoteSpawner::Adopt(Trace trace) {
  Found found;
  Job job;
  for (const Job& each : jobs_) {
    const bool same = each->key.job_id == trace.job_id && each->key.attempt == trace.attempt;
    if (same && !each->held && (!trace.uid || *trace.uid == each->key.uid)) job = each;
  }
  if (job == nullptr) {
    found.why_not = "dtrain-spawner has no such job: it has ended";
    job = std::make_shared<RemoteJob>(loop_);
    job->stage = RemoteJob::Stage::kGone;
    job->key = {trace.uid.value_or(0), trace.job_id, trace.attempt};
    job->shepherd_ended = true;
    job->how_ended = found.why_not;
    job->order.owner = {job->key.uid, absl::StrCat(job->key.uid)};
  }
  job->limit.Cancel();
  job->held = true;
  if (trace.record) job->order.owner.name = trace.record->owner();
  found.owner = job->order.owner;
  found.processes = std::make_unique<RemoteProcesses>(loop_, *this, job);
  if (job->stage == RemoteJob::Stage::kGone) return found;
  if (!trace.record) {
    found.why_not = "the agent's record of it is missing or damaged";
    return found;
  }
  const auto pid = static_cast<pid_t>(trace.record->shepherd_pid());
  auto pidfd = os::OpenProcess(pid, trace.record->shepherd_start_time(), job->key.uid);
  auto socket = ConnectToLink(job->link);
  if (!pidfd.ok() || !socket.ok()) {
    found.why_not = std::string((pidfd.ok() ? socket.status() : pidfd.status()).message());
    return found;
  }
  job->pid = pid;
  job->start_time = trace.record->shepherd_start_time();
  job->pidfd = *std::move(pidfd);
  job->socket = *std::move(socket);
  WatchShepherd(job);
  return found;
}

// ---- ending -------------------------------------------------------------------------------

// With it goes what it had left, unless the spawner has nothing of it any more.
void RemoteSpawner::WatchShepherd(const Job& job) {
  job->exit_watch = std::make_unique<loop::FdWatch>(loop_, job->pidfd.get());
  job->exit_watch->OnReadable([this, weak = std::weak_ptr<RemoteJob>(job)] {
    const Job ended = weak.lock();
    if (ended == nullptr) return;
    ended->after_end.After(kEndTold, [this, weak] {
      const Job left = weak.lock();
      if (left == nullptr) return;
      Kill(left);
      left->after_end.After(kHowLimit, [this, weak] {
        if (const Job late = weak.lock()) ShepherdEnded(*late, "its process has ended");
      });
    });
  });
}

void RemoteSpawner::ShepherdEnded(RemoteJob& job, std::string how) {
  if (std::exchange(job.shepherd_ended, true)) return;
  job.after_end.Cancel();
  job.how_ended = std::move(how);
  if (job.on_shepherd_ended) std::exchange(job.on_shepherd_ended, nullptr)(job.how_ended);
}

// `job`: by value, as its listeners may let go of it.
void RemoteSpawner::Gone(Job job, std::string how) {
  job->stage = RemoteJob::Stage::kGone;
  jobs_.remove(job);
  for (loop::Timer* timer : {&job->limit, &job->patience, &job->after_end, &job->killed_later}) {
    timer->Cancel();
  }
  job->exit_watch.reset();
  job->words.reset();
  job->presence.reset();
  ShepherdEnded(*job, std::move(how));
  if (job->on_gone) std::exchange(job->on_gone, nullptr)();
}

void RemoteSpawner::Kill(const Job& job) {
  if (job->stage != RemoteJob::Stage::kRuns) return;
  job->kill = true;
  if (!ready_) return;  // once it is back
  connection_->Kill(job->key, [this, job](absl::StatusOr<SpawnerConnection::Answer> answer) {
    if (!answer.ok() || job->stage != RemoteJob::Stage::kRuns) return;
    if (std::holds_alternative<SpawnerDone>(answer->word)) return OnKilled(job);
    // The spawner reported its end on an earlier connection.
    Gone(job, "its process has ended");
  });
}

void RemoteSpawner::KillLater(const Job& job, Duration delay) {
  job->killed_later.After(delay, [this, weak = std::weak_ptr<RemoteJob>(job)] {
    if (const Job late = weak.lock()) Kill(late);
  });
}

// All that is in its cgroup now has got SIGKILL.
void RemoteSpawner::OnKilled(const Job& job) {
  std::vector<pid_t> pids = os::Cgroup(job->cgroup).Processes();
  if (pids.size() > kMostLooked) pids.resize(kMostLooked);
  std::vector<os::ProcessInfo> processes;
  for (const pid_t pid : pids) {
    if (auto process = os::FindProcess(pid)) processes.push_back(*process);
  }
  quarantine().Killed(loop_.Now(), job->key.job_id, {job->key.uid, job->order.owner.name},
                      processes);
}

void RemoteSpawner::LetGo(const Job& job, Duration patience) {
  job->held = false;
  switch (job->stage) {
    case RemoteJob::Stage::kWaiting:
      return Fail(job, absl::CancelledError("nobody waits for it"));
    case RemoteJob::Stage::kRuns:
      job->socket.Reset();
      job->patience.After(patience, [this, weak = std::weak_ptr<RemoteJob>(job)] {
        const Job late = weak.lock();
        if (late == nullptr) return;
        log::Warn(
            absl::StrCat("killing ", Describe(late->key), ": its shepherd did not end by itself"));
        Kill(late);
      });
      return;
    case RemoteJob::Stage::kAsked:
    case RemoteJob::Stage::kGone:
      return;
  }
}

}  // namespace dtrain::spawn
