// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/remote_spawner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/spawn/remote_link.h"
#include "agent/spawn/remote_processes.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/process_tree.h"

namespace dtrain::spawn {
namespace {

using Stage = RemoteJob::Stage;

// Of one that starts as many jobs as it may; it writes a line about each refusal.
constexpr Duration kBusyLimit = std::chrono::seconds(60);
constexpr Duration kBusyPause = std::chrono::seconds(1);
// Of an agent that starts, and may have jobs to take over.
constexpr Duration kReadyLimit = std::chrono::seconds(10);
constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(1);
constexpr char kAdvice[] = "see systemctl status dtrain-spawner, and start it if it does not run";

std::string HowEnded(const SpawnerEnded& ended) {
  if (ended.signal != 0) return absl::StrCat("killed by signal ", ended.signal);
  if (ended.exit_code >= 0) return absl::StrCat("exited with code ", ended.exit_code);
  return "its process has ended";
}

absl::Status StatusOf(const SpawnerRefused& refused) {
  switch (refused.stage) {
    case spawner::Stage::kPolicy:
      return absl::UnauthenticatedError(
          absl::StrCat("dtrain-spawner refuses: ", refused.words, " (spawner.conf)"));
    case spawner::Stage::kBusy:
      return absl::ResourceExhaustedError(absl::StrCat("dtrain-spawner: ", refused.words));
    default:
      return absl::FailedPreconditionError(absl::StrCat("dtrain-spawner: ", refused.words));
  }
}

}  // namespace

RemoteSpawner::RemoteSpawner(loop::Loop& loop, std::string path, const SpawnerLimits& limits)
    : loop_(loop),
      path_(std::move(path)),
      limits_(limits),
      pause_(kFirstPause),
      retry_(loop),
      ready_limit_(loop) {
  Connect();
}

RemoteSpawner::~RemoteSpawner() = default;

// ---- the connection -----------------------------------------------------------------------

void RemoteSpawner::Connect() {
  auto made = SpawnerConnection::Open(
      loop_, path_, [this](const SpawnerWord& event) { OnEvent(event); },
      [this](const std::string& why) { OnClosed(why); }, limits_.answer);
  if (!made.ok()) return OnClosed(std::string(made.status().message()));
  connection_ = *std::move(made);
  connection_->List([this](absl::StatusOr<SpawnerConnection::Answer> answer) {
    if (answer.ok()) OnList(std::get<SpawnerJobs>(answer->word).jobs);
  });
}

void RemoteSpawner::OnClosed(const std::string& why) {
  ready_ = false;
  connection_.reset();
  why_away_ = why;
  if (!std::exchange(told_, true)) {
    log::Error(absl::StrCat("dtrain-spawner does not serve on ", path_, ": ", why,
                            "; jobs run on, and new ones wait for it: ", kAdvice));
  }
  retry_.After(pause_, [this] { Connect(); });
  pause_ = std::min(pause_ * 2, kLongestPause);
}

void RemoteSpawner::WhenReady(absl::AnyInvocable<void(absl::Status)> done) {
  if (ready_) return done(absl::OkStatus());
  on_ready_ = std::move(done);
  ready_limit_.After(kReadyLimit, [this] {
    std::exchange(on_ready_, nullptr)(absl::UnavailableError(
        absl::StrCat("--spawner: dtrain-spawner does not serve on ", path_, ": ",
                     why_away_.empty() ? "it has not answered" : why_away_, "; ", kAdvice)));
  });
}

// What it has and we have not: before the first time, of an agent before us; later, what was
// started while we lost the connection, and nobody waits for. What we have and it has not is gone.
void RemoteSpawner::OnList(const std::vector<SpawnerJob>& listed) {
  ready_ = true;
  told_ = false;
  pause_ = kFirstPause;
  log::Info(absl::StrCat("dtrain-spawner serves on ", path_, ", jobs: ", listed.size()));
  const bool first = !std::exchange(listed_once_, true);
  const auto is_listed = [&](const Job& job) {
    return std::any_of(listed.begin(), listed.end(),
                       [&](const SpawnerJob& each) { return each.key == job->key; });
  };
  std::vector<Job> gone;
  for (const Job& job : jobs_) {
    if (job->stage == Stage::kRuns && !is_listed(job)) gone.push_back(job);
  }
  for (const Job& job : gone) Gone(job, "its process has ended");
  for (const SpawnerJob& each : listed) {
    // Those that do not run yet end with the connection on which they were asked for.
    if (each.state < spawner::State::kRunning || Find(each.key) != nullptr) continue;
    auto job = std::make_shared<RemoteJob>(loop_);
    job->stage = Stage::kRuns;
    job->held = false;
    job->key = each.key;
    job->order.owner = {each.key.uid, absl::StrCat(each.key.uid)};
    job->link = each.link;
    job->cgroup = each.cgroup;
    job->kill = !first;
    jobs_.push_back(job);
    const Duration limit =
        std::chrono::milliseconds(each.lease_ms) + std::chrono::milliseconds(each.grace_ms);
    job->limit.After(limit + limits_.unknown, [this, weak = std::weak_ptr<RemoteJob>(job)] {
      const Job late = weak.lock();
      if (late == nullptr) return;
      log::Warn(absl::StrCat("killing ", Describe(late->key),
                             ": no agent has taken it over, and its time is up"));
      Kill(late);
    });
  }
  const std::list<Job> jobs = jobs_;
  for (const Job& job : jobs) {
    if (job->kill) Kill(job);
    if (job->stage == Stage::kWaiting) Ask(job);
  }
  ready_limit_.Cancel();
  if (on_ready_) std::exchange(on_ready_, nullptr)(absl::OkStatus());
}

void RemoteSpawner::OnEvent(const SpawnerWord& event) {
  if (const auto* ended = std::get_if<SpawnerEnded>(&event)) {
    if (const Job job = Find(ended->key)) Gone(job, HowEnded(*ended));
    return;
  }
  const auto& stuck = std::get<SpawnerUnkillable>(event);
  std::vector<os::ProcessInfo> processes;
  for (const pid_t pid : stuck.pids) {
    if (auto process = os::FindProcess(pid)) processes.push_back(*process);
  }
  log::Error(absl::StrCat(Describe(stuck.key), ": dtrain-spawner cannot end its processes: ",
                          processes.size(), " outlive SIGKILL"));
  const Job job = Find(stuck.key);
  quarantine().Killed(
      loop_.Now(), stuck.key.job_id,
      {stuck.key.uid, job != nullptr ? job->order.owner.name : absl::StrCat(stuck.key.uid)},
      processes);
}

RemoteSpawner::Job RemoteSpawner::Find(const JobKey& key) const {
  for (const Job& job : jobs_) {
    if (job->stage == Stage::kRuns && job->key == key) return job;
  }
  return nullptr;
}

// ---- starting -----------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Processes>> RemoteSpawner::Spawn(Order order) {
  auto job = std::make_shared<RemoteJob>(loop_);
  job->key = {order.owner.uid, order.job_id, order.attempt};
  job->order = std::move(order);
  jobs_.push_back(job);
  auto processes = std::make_unique<RemoteProcesses>(loop_, *this, job);
  ready_ ? Ask(job) : AwaitSpawner(job);
  return processes;
}

void RemoteSpawner::AwaitSpawner(const Job& job) {
  job->limit.After(limits_.away, [this, weak = std::weak_ptr<RemoteJob>(job)] {
    const Job late = weak.lock();
    if (late == nullptr || late->stage != Stage::kWaiting) return;
    Fail(late, absl::FailedPreconditionError(absl::StrCat(
                   "dtrain-spawner, which starts the jobs of this node, is not there: ", why_away_,
                   "; ", kAdvice)));
  });
}

void RemoteSpawner::Ask(const Job& job) {
  job->limit.Cancel();
  const Order& order = job->order;
  SpawnAsk ask{order.job_id, order.attempt, order.lease_ms, order.grace_ms, ""};
  std::shared_ptr<Accepted> connection;
  if (order.connected) {
    connection = order.connected->lock();
    if (connection == nullptr) return Fail(job, absl::CancelledError("the launcher is gone"));
    // What any user may try must not look to the spawner as if we broke its rules.
    if (connection->used && !job->asked_again && !job->busy_since) {
      return Fail(job, absl::FailedPreconditionError(
                           "the launcher's connection has started a job before: connect again"));
    }
    if (HasNamedPeer(connection->socket.get())) {
      return Fail(job, absl::FailedPreconditionError(
                           "the launcher has bound its end of the connection to a name, and so "
                           "does not show who it is: connect without bind"));
    }
    connection->used = true;
  } else {
    ask.account = order.owner.name;
  }
  job->stage = Stage::kAsked;
  const absl::Status asked =
      connection_->Spawn(ask, connection != nullptr ? connection->socket.get() : -1,
                         [this, job](absl::StatusOr<SpawnerConnection::Answer> answer) {
                           OnSpawned(job, std::move(answer));
                         });
  if (!asked.ok()) Fail(job, asked);
}

bool RemoteSpawner::MayAskAgain(RemoteJob& job, const SpawnerRefused& refused) const {
  // A name is taken for long only if its job is one that runs.
  if (!job.held || refused.stage != spawner::Stage::kBusy || Find(job.key) != nullptr) return false;
  if (!job.busy_since) job.busy_since = loop_.Now();
  return loop_.Now() < *job.busy_since + kBusyLimit;
}

void RemoteSpawner::AskLater(const Job& job) {
  job->stage = Stage::kWaiting;
  job->limit.After(kBusyPause, [this, weak = std::weak_ptr<RemoteJob>(job)] {
    const Job late = weak.lock();
    if (late == nullptr || late->stage != Stage::kWaiting) return;
    ready_ ? Ask(late) : AwaitSpawner(late);
  });
}

void RemoteSpawner::OnSpawned(const Job& job, absl::StatusOr<SpawnerConnection::Answer> answer) {
  // The spawner may not even have read it.
  if (!answer.ok() && job->held && !std::exchange(job->asked_again, true)) {
    job->stage = Stage::kWaiting;
    return AwaitSpawner(job);
  }
  if (!answer.ok()) {
    return Fail(job, absl::FailedPreconditionError(
                         absl::StrCat("the connection to dtrain-spawner has ended meanwhile: ",
                                      answer.status().message(), "; launch again")));
  }
  if (const auto* refused = std::get_if<SpawnerRefused>(&answer->word)) {
    return MayAskAgain(*job, *refused) ? AskLater(job) : Fail(job, StatusOf(*refused));
  }
  const auto& started = std::get<SpawnerStarted>(answer->word);
  const bool is_ours = started.key == job->key;
  job->stage = Stage::kRuns;
  job->key = started.key;  // whatever it is, it ends by this name
  job->link = started.link;
  job->cgroup = started.cgroup;
  absl::Status taken = absl::InternalError(absl::StrCat(
      "dtrain-spawner has started ", Describe(started.key), ", and not for ",
      Escape(job->order.owner.name, 64), ", whose name or connection it was given; it is killed"));
  if (is_ours) taken = TakeOver(*job, started, std::move(answer->fds));
  if (!taken.ok()) {
    log::Error(absl::StrCat(Describe(started.key), ": ", taken.message()));
    Kill(job);
  } else {
    WatchShepherd(job);
    if (!job->held) Kill(job);  // nobody waits for it any more
  }
  Started(*job, std::move(taken));
}

absl::Status RemoteSpawner::TakeOver(RemoteJob& job, const SpawnerStarted& started,
                                     std::vector<os::UniqueFd> fds) {
  if (fds.size() != 2 || !IsPipe(fds[1].get())) {
    return absl::InternalError("dtrain-spawner has not passed a pidfd and a pipe");
  }
  job.words = std::make_unique<JobWords>(
      loop_, std::move(fds[1]),
      absl::StrCat("job ", job.key.job_id, " of ", Escape(job.order.owner.name, 64)));
  job.pidfd = std::move(fds[0]);
  job.pid = PidOf(job.pidfd.get());
  if (job.pid == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the shepherd has ended at once; what it said stands in the agent's log behind \"job ",
        job.key.job_id, " of ", Escape(job.order.owner.name, 64), "\""));
  }
  job.start_time = os::StartTime(job.pid).value_or(0);
  auto socket = ConnectToLink(started.link);
  if (!socket.ok()) return socket.status();
  job.socket = *std::move(socket);
  return absl::OkStatus();
}

void RemoteSpawner::Fail(const Job& job, absl::Status why) {
  job->stage = Stage::kGone;
  job->limit.Cancel();
  jobs_.remove(job);
  job->presence.reset();
  Started(*job, std::move(why));
}

void RemoteSpawner::Started(RemoteJob& job, absl::Status status) {
  job.started = std::move(status);
  if (job.on_started) std::exchange(job.on_started, nullptr)(*job.started);
}

}  // namespace dtrain::spawn
