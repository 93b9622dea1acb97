// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/remote_processes.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/spawn/remote_spawner.h"
#include "common/log/log.h"
#include "common/os/cgroup.h"

namespace dtrain::spawn {
namespace {

// For a shepherd without workers to notice that its agent has no more for it.
constexpr Duration kLetGoPatience = std::chrono::seconds(10);
// For a shepherd that has reported what it cannot end to say how its job has ended.
constexpr Duration kLastWords = std::chrono::seconds(2);
// Of EndAll: for the spawner, which may be on its way back, and for memory to be given back.
constexpr Duration kAllEndedBound = std::chrono::seconds(10);

}  // namespace

RemoteProcesses::RemoteProcesses(loop::Loop& loop, RemoteSpawner& spawner,
                                 std::shared_ptr<RemoteJob> job)
    : loop_(loop),
      spawner_(spawner),
      job_(std::move(job)),
      end_limit_(loop),
      patience_(kLetGoPatience) {}

RemoteProcesses::~RemoteProcesses() {
  *alive_ = false;
  job_->on_started = nullptr;
  job_->on_shepherd_ended = nullptr;
  job_->on_gone = nullptr;
  spawner_.LetGo(job_, patience_);
}

void RemoteProcesses::WhenStarted(OnStarted done) {
  if (job_->started) return done(*job_->started);
  job_->on_started = std::move(done);
}

void RemoteProcesses::WhenShepherdEnded(OnEnded done) {
  if (job_->shepherd_ended) return done(job_->how_ended);
  job_->on_shepherd_ended = std::move(done);
}

void RemoteProcesses::Save(v1::JobRecord& record) const {
  record.set_uid(job_->order.owner.uid);
  record.set_owner(job_->order.owner.name);
  record.set_shepherd_pid(static_cast<uint32_t>(job_->pid));
  record.set_shepherd_start_time(job_->start_time);
  record.set_cgroup(job_->cgroup);
}

std::vector<uint32_t> RemoteProcesses::Living() const {
  std::vector<uint32_t> out;
  if (job_->cgroup.empty()) return out;
  for (const pid_t pid : os::Cgroup(job_->cgroup).Processes()) {
    if (pid != job_->pid) out.push_back(static_cast<uint32_t>(pid));
  }
  return out;
}

void RemoteProcesses::KillShepherd() { spawner_.Kill(job_); }

void RemoteProcesses::KillLiving() { spawner_.KillLater(job_, kLastWords); }

void RemoteProcesses::EndAll(loop::Task done) {
  when_all_ended_ = std::move(done);
  if (job_->stage != RemoteJob::Stage::kGone) {
    for (const uint32_t pid : Living()) killed_.insert(pid);
    if (job_->pid != 0) killed_.insert(static_cast<uint32_t>(job_->pid));
    job_->on_gone = [this] { AllEnded(); };
    end_limit_.After(kAllEndedBound, [this] {
      log::Error(
          absl::StrCat("job ", job_->key.job_id, ": dtrain-spawner has not ended it within ",
                       std::chrono::duration_cast<std::chrono::seconds>(kAllEndedBound).count(),
                       " s, and goes on trying"));
      AllEnded();
    });
    return spawner_.Kill(job_);
  }
  AllEnded();
}

// Never from inside.
void RemoteProcesses::AllEnded() {
  end_limit_.Cancel();
  job_->on_gone = nullptr;
  loop_.Post([this, alive = alive_] {
    if (*alive && when_all_ended_) std::exchange(when_all_ended_, nullptr)();  // may destroy us
  });
}

}  // namespace dtrain::spawn
