// SPDX-License-Identifier: Apache-2.0
#include "spawner/core.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dtrain::spawner {
namespace {

constexpr Ms kStoodStill{5'000};

bool Same(const Name& a, const Name& b) {
  return a.uid == b.uid && a.attempt == b.attempt && std::strcmp(a.job, b.job) == 0;
}

template <typename Jobs, typename F>
size_t Count(const Jobs& jobs, F f) {
  return static_cast<size_t>(
      std::count_if(jobs.begin(), jobs.end(), [&](const auto& entry) { return f(entry.second); }));
}

bool IsBegun(const SpawnerCore::Job& job) {
  return job.state == State::kStarting || (job.state == State::kAsking && job.begun);
}

}  // namespace

std::string SpawnerCore::OnSpawn(Time now, const SpawnRequest& request, uid_t uid,
                                 const std::string& who) {
  Job job;
  std::memcpy(job.name.job, request.job, sizeof(job.name.job));
  job.name.uid = uid;
  job.name.attempt = request.attempt;
  if (Count(jobs_, [&](const Job& other) { return Same(other.name, job.name); }) != 0) {
    return "a job of this name is there";
  }
  const auto waits = [](const Job& other) { return other.state == State::kAsking && !other.begun; };
  const auto hers = [&](const Job& other) { return waits(other) && other.who == who; };
  if (Count(jobs_, hers) >= kMostWaitingOfUser) return "32 jobs of this user wait to be started";
  if (Count(jobs_, waits) >= kMostWaiting) return "256 jobs wait to be started";
  job.number = ++last_;
  job.who = who;
  job.lease = Ms(request.lease_ms);
  job.grace = Ms(request.grace_ms);
  job.tag = request.header.tag;
  job.since = now;
  jobs_[job.number] = job;
  BeginAskers();
  return "";
}

bool SpawnerCore::OnKill(Time now, const Name& name) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const auto& entry) { return Same(entry.second.name, name); });
  if (found == jobs_.end()) return false;
  if (found->second.state == State::kRunning) {
    Kill(now, found->second);
  } else if (found->second.state != State::kKilling) {
    OnFailed(now, found->first, Stage::kKilled, ECANCELED, "killed before it ran");
  }
  return true;
}

void SpawnerCore::OnDisconnected(Time now) {
  breaches_ = 0;
  std::vector<uint64_t> waiting;
  for (const auto& [number, job] : jobs_) {
    if (!job.spawned) waiting.push_back(number);
  }
  for (const uint64_t number : waiting) {
    OnFailed(now, number, Stage::kKilled, ECANCELED, "the agent's connection ended before it ran");
  }
}

void SpawnerCore::OnAccount(Time now, uint64_t number, uid_t uid) {
  Job* job = Find(number, State::kAsking);
  if (job == nullptr || !job->begun) return;
  Name name = job->name;
  name.uid = uid;
  const auto known = [](const Job& other) { return other.state != State::kAsking; };
  const size_t of_user =
      Count(jobs_, [&](const Job& other) { return known(other) && other.name.uid == uid; });
  std::string why;
  if (Count(jobs_, [&](const Job& other) { return &other != job && Same(other.name, name); }) !=
      0) {
    why = "a job of this name is there";
  } else if (Count(jobs_, known) >= kMostJobs) {
    why = "256 jobs run on this node";
  } else if (of_user >= kMostOfUser) {
    why = "32 jobs of this user run on this node";
  }
  if (!why.empty()) return OnFailed(now, number, Stage::kBusy, EAGAIN, why);
  job->name = name;
  job->state = State::kStarting;
  job->since = now;
  Act(Action::kStart, *job);
}

void SpawnerCore::OnStarted(Time now, uint64_t number) {
  Job* job = Find(number, State::kStarting);
  if (job == nullptr) return;
  job->state = State::kRunning;
  job->since = now;
  job->spawned = true;
  Act(Action::kSpawned, *job);
  BeginAskers();
}

void SpawnerCore::OnFailed(Time now, uint64_t number, Stage stage, int error,
                           const std::string& words) {
  if (Job* job = Find(number, State::kStarting)) {
    Refuse(*job, stage, error, words);
    Kill(now, *job);
  } else if ((job = Find(number, State::kAsking)) != nullptr) {
    Refuse(*job, stage, error, words);
    Act(Action::kDropAsker, *job);
    Act(Action::kGone, *job);
    jobs_.erase(number);
  }
  BeginAskers();
}

void SpawnerCore::OnEmpty(Time now, uint64_t number) {
  const auto found = jobs_.find(number);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  if (job.state == State::kRunning) {
    job.state = State::kKilling;
    job.since = now;
  }
  if (job.state != State::kKilling || job.empty) return;
  job.empty = true;
  job.again = now + kAgain;
  Act(Action::kRemove, job);
}

void SpawnerCore::OnRemoved(Time, uint64_t number) {
  const auto found = jobs_.find(number);
  if (found == jobs_.end() || !found->second.empty) return;
  if (found->second.spawned) Act(Action::kEnded, found->second);
  Act(Action::kGone, found->second);
  jobs_.erase(found);
}

uint64_t SpawnerCore::Adopt(Time now, const Name& name, Ms lease, Ms grace) {
  Job job;
  job.number = ++last_;
  job.name = name;
  job.lease = lease;
  job.grace = grace;
  job.state = State::kRunning;
  job.since = now;
  job.spawned = true;
  jobs_[job.number] = job;
  return job.number;
}

void SpawnerCore::OnTick(Time now) {
  if (expected_ && now > *expected_ + kStoodStill) heard_ = now;
  std::vector<uint64_t> due;
  for (const auto& [number, job] : jobs_) {
    if (now >= Deadline(job)) due.push_back(number);
  }
  for (const uint64_t number : due) {
    Job& job = jobs_.at(number);
    switch (job.state) {
      case State::kAsking:
        OnFailed(now, number, Stage::kTime, ETIMEDOUT,
                 "looking up the account took longer than 20 s");
        break;
      case State::kStarting:
        OnFailed(now, number, Stage::kTime, ETIMEDOUT, "its start took longer than 5 s");
        break;
      case State::kRunning:
        Kill(now, job);
        break;
      case State::kKilling:
        job.again = now + kAgain;
        Act(job.empty ? Action::kRemove : Action::kKill, job);
        if (now >= job.since + patience_ && !std::exchange(job.told, true))
          Act(Action::kUnkillable, job);
        break;
    }
  }
}

std::optional<Time> SpawnerCore::NextDeadline() {
  std::optional<Time>& next = expected_ = std::nullopt;
  for (const auto& [number, job] : jobs_)
    next = std::min(next.value_or(Deadline(job)), Deadline(job));
  return next;
}

std::vector<SpawnerCore::Action> SpawnerCore::TakeActions() { return std::exchange(actions_, {}); }

Time SpawnerCore::Deadline(const Job& job) const {
  switch (job.state) {
    case State::kAsking:
      return job.since + kAskingTime;
    case State::kStarting:
      return job.since + kStartingTime;
    case State::kRunning:
      return std::max(job.since, heard_) + job.lease + job.grace + patience_;
    case State::kKilling:
      break;
  }
  return job.again;
}

void SpawnerCore::Refuse(const Job& job, Stage stage, int error, const std::string& words) {
  actions_.push_back({Action::kRefuse, job, stage, error, words});
}

void SpawnerCore::Kill(Time now, Job& job) {
  job.state = State::kKilling;
  job.since = now;
  job.again = now + kAgain;
  Act(Action::kKill, job);
}

void SpawnerCore::BeginAskers() {
  for (auto& [number, job] : jobs_) {
    if (job.state != State::kAsking || job.begun) continue;
    const std::string& who = job.who;
    if (Count(jobs_, IsBegun) >= kMostBegun) return;
    if (Count(jobs_, [&](const Job& other) { return IsBegun(other) && other.who == who; }) >=
        kMostBegunOfUser) {
      continue;
    }
    job.begun = true;
    Act(Action::kAsk, job);
  }
}

SpawnerCore::Job* SpawnerCore::Find(uint64_t number, State state) {
  const auto found = jobs_.find(number);
  return found == jobs_.end() || found->second.state != state ? nullptr : &found->second;
}

}  // namespace dtrain::spawner
