// SPDX-License-Identifier: Apache-2.0
// What the shepherd does when its core says so, and what it tells the agent.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/shepherd/failure.h"
#include "agent/shepherd/shepherd.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/process_tree.h"
#include "common/os/scratch_folder.h"

namespace dtrain::shepherd {
namespace {

// An agent that takes nothing more has been given up by its launcher.
constexpr Duration kExitLimit = std::chrono::seconds(30);
// From a worker's PMI abort to its exit. Some do it by themselves; MPICH over UCX never does when
// its peers live on, and waits to be killed.
constexpr Duration kAbortLimit = std::chrono::milliseconds(200);
// The same where the job's code is that of the exit: a busy node must not lose it.
constexpr Duration kAbortExitLimit = std::chrono::seconds(1);
constexpr Duration kDrainRetry = std::chrono::milliseconds(20);
constexpr Duration kReportEvery = std::chrono::seconds(1);
// Reports of growth wait while the agent has this much to read: they add up to one.
constexpr size_t kChannelBusy = 64 << 10;
// How often the workers' pages are read. A timeline's rings, which must not run full, are looked at
// more often, and read when a part of them is used: each message is work for all who pass it on, on
// cores that the workers need.
constexpr Duration kProgressEvery = std::chrono::seconds(1);
constexpr Duration kSpansEvery = std::chrono::milliseconds(100);
constexpr uint32_t kSpansPart = 4;
constexpr uint32_t kSpansAtOnce = 768;  // what mostly fits into a message that is not kept
// Spans leave so much for what matters more.
constexpr size_t kSpansRoom = 16 << 20;
// As dtrain-spawner makes it.
constexpr char kWorkersCgroup[] = "workers";
constexpr v1::StreamKind kLogKinds[] = {v1::STREAM_KIND_STDOUT, v1::STREAM_KIND_STDERR};

absl::StatusOr<os::Cgroup> MakeJobCgroup(const v1::JobPart& part, bool has_workers_cgroup) {
  auto parent =
      has_workers_cgroup ? os::FindWritableSibling(kWorkersCgroup) : os::FindWritableCgroup();
  if (!parent.ok()) return parent.status();
  std::string name = os::JobCgroupName(part.job_id(), part.attempt(), part.node_rank());
  auto made = os::Cgroup::Make(*parent, name);
  if (!absl::IsAlreadyExists(made.status())) return made;
  // Of a shepherd of this very job that was killed.
  os::Cgroup stale(absl::StrCat(*parent, "/", name));
  stale.Kill();
  (void)stale.Remove();
  return os::Cgroup::Make(*parent, name);
}

}  // namespace

void Shepherd::PrepareCgroup() {
  auto cgroup = MakeJobCgroup(part_, has_workers_cgroup_);
  if (!cgroup.ok()) return LoseCgroup(cgroup.status());
  job_cgroup_ = *std::move(cgroup);
  sweeper_.set_cgroup(*job_cgroup_);
  auto directory = job_cgroup_->Open();
  if (!directory.ok()) return LoseCgroup(directory.status());
  cgroup_fd_ = *std::move(directory);
}

void Shepherd::LoseCgroup(const absl::Status& why) {
  cgroup_fd_.Reset();
  job_cgroup_.reset();
  sweeper_.RemoveCgroup();
  no_cgroup_why_ =
      absl::StrCat("workers get no cgroup of their own (", std::string(why.message()), ")");
  if (part_.require_cgroup()) return;
  Warn(absl::StrCat(no_cgroup_why_, "; their process groups and descendants are tracked instead"),
       /*detail=*/true);
}

absl::Status Shepherd::StartWorkers(os::SpawnError* error) {
  auto limits = limits_.For(part_);
  const auto directories = os::TemporaryDirectories();
  const std::string mark = os::ProcessMark(getpid());
  const std::string pid_namespace = os::PidNamespace();
  const WorkerEnv env(part_, agent_env_);
  if (absl::Status open = OpenPmix(); !open.ok()) return open;
  if (absl::Status open = OpenStores(); !open.ok()) return open;
  const uint16_t pmix = pmix_ ? pmix_->port() : 0;
  const bool crowded = IsCrowded(part_);
  MakeScratch();
  const std::string scratch = scratch_ ? scratch_->path() : "";
  for (int i = 0; i < part_.workers_size();) {
    WorkerSetup setup{part_,
                      env,
                      directories,
                      limits,
                      cgroup_fd_.get(),
                      mark,
                      pid_namespace,
                      scratch,
                      pmix,
                      crowded,
                      containers_ ? &*containers_ : nullptr};
    auto worker = Worker::Start(loop_, setup, part_.workers(i), hooks_, error);
    if (worker.ok()) {
      workers_.push_back(*std::move(worker));
      ++i;
    } else if (error->stage == os::SpawnStage::kCgroup && i == 0 && !part_.require_cgroup()) {
      // The directory could be made, but the system lets nobody in (not delegated).
      LoseCgroup(worker.status());
    } else {
      return worker.status();
    }
  }
  return absl::OkStatus();
}

void Shepherd::ServePmi() {
  pmi_.emplace(part_);
  for (auto& worker : workers_) {
    uint32_t rank = worker->rank();
    pmi_connections_[rank] = std::make_unique<PmiConnection>(
        loop_, worker->TakePmiSocket(), [this, rank](absl::string_view message) {
          Carry(pmi_->OnMessage(rank, message));
          return pmi_->SpeaksFrames(rank);
        });
  }
}

void Shepherd::Carry(PmiServer::Actions actions) {
  for (PmiServer::Action& action : actions) {
    if (auto* reply = std::get_if<PmiServer::Reply>(&action)) {
      pmi_connections_[reply->rank]->Send(reply->message);
    } else if (auto* drop = std::get_if<PmiServer::Drop>(&action)) {
      pmi_connections_[drop->rank]->Close();
      Warn(
          absl::StrCat("rank ", drop->rank, " was cut off from PMI (PMI_FD): it sent ", drop->why));
    } else if (auto* abort = std::get_if<PmiServer::Abort>(&action)) {
      OnAbortAsked(abort->rank, abort->code);
    } else {
      v1::JobEvent event;
      *event.mutable_fence_enter() = std::get<v1::FenceEnter>(std::move(action));
      Send(event);
    }
  }
}

// The rank's exit is what tells the launcher, so it must come, however often it asks.
void Shepherd::OnAbortAsked(uint32_t rank, std::optional<int> code) {
  Worker* const worker = Find(rank);
  if (worker == nullptr || worker->ended() || aborts_.count(rank) > 0) return;
  auto timer = std::make_unique<loop::Timer>(loop_);
  timer->After(code ? kAbortLimit : kAbortExitLimit, [worker] { worker->Signal(SIGKILL); });
  aborts_[rank] = {code, absl::GetCurrentTimeNanos(), std::move(timer)};
}

void Shepherd::ReportStarted() {
  v1::JobEvent event;
  *event.mutable_started() = StartedWorkers();
  report_.OnStarted(event.started());
  Report();
  Send(event);
  reported_started_ = true;
  FeedLogs();
}

void Shepherd::Report() {
  report_due_.Cancel();
  reported_at_ = loop_.Now();
  report_.SetTold();
  v1::ShepherdEvent event;
  *event.mutable_report() = report_.report();
  line_.Tell(event);
}

void Shepherd::ReportLater() {
  if (!report_.changed()) return;
  report_due_.At(reported_at_ + kReportEvery, [this] {
    if (report_.changed()) Report();
  });
}

v1::Started Shepherd::StartedWorkers() const {
  v1::Started started;
  started.set_cgroup(job_cgroup_.has_value());
  for (const auto& worker : workers_) {
    v1::WorkerStarted* entry = started.add_workers();
    entry->set_rank(worker->rank());
    entry->set_pid(static_cast<uint32_t>(worker->pid()));
  }
  return started;
}

void Shepherd::WatchPages() {
  pages_.After(part_.timeline_records() > 0 ? kSpansEvery : kProgressEvery, [this] {
    if (loop_.Now() >= progress_due_) {
      progress_due_ = loop_.Now() + kProgressEvery;
      for (auto& worker : workers_) worker->LookAtState();
      ReportPages();
    } else {
      TakeManySpans();
    }
    if (core_.state() != State::kFinished) WatchPages();
  });
}

void Shepherd::ReportPages() {
  v1::JobEvent now, last;  // the last of a rank must arrive
  for (auto& worker : workers_) {
    TakeSpans(*worker, 1);
    if (worker->progress_told()) continue;
    auto progress = worker->page().Read();
    v1::RankProgress state;
    const bool of_note = worker->AddState(progress ? *progress : state);
    if (!progress && !of_note) continue;
    if (!progress) progress = std::move(state);
    progress->set_rank(worker->rank());
    report_.OnProgress(*progress);
    v1::JobEvent& event = worker->ended() ? last : now;
    *event.mutable_progress()->add_ranks() = *std::move(progress);
    if (worker->ended()) worker->set_progress_told();
  }
  ReportLater();
  if (last.has_progress()) Send(last);
  if (now.has_progress() && !line_.launcher().waits(LauncherLine::kProgress)) {
    line_.launcher().SendState(LauncherLine::kProgress, now);
  }
}

void Shepherd::TakeManySpans() {
  for (auto& worker : workers_) {
    TakeSpans(*worker, std::max(part_.timeline_records() / kSpansPart, uint32_t{1}));
  }
}

void Shepherd::TakeSpans(Worker& worker, uint64_t least) {
  LauncherLine& launcher = line_.launcher();
  // What a worker adds meanwhile waits for the next time: it may add without an end.
  uint64_t left = std::min<uint64_t>(worker.page().spans(), part_.timeline_records());
  // No launcher, or one that reads slowly: the worker's ring fills and counts what it drops. Of a
  // worker that has ended nobody would count them.
  while (left >= least && launcher.attached() && launcher.room() > kSpansRoom &&
         (worker.ended() || !launcher.waits(LauncherLine::kSpans))) {
    spans_.Clear();
    spans_.set_rank(worker.rank());
    if (!worker.page().TakeSpans(kSpansAtOnce, spans_)) return;
    left -= std::min<uint64_t>(left, static_cast<uint64_t>(spans_.kind_size()));
    v1::JobEvent event;
    event.set_spans(spans_.SerializeAsString());
    if (worker.ended()) {
      Send(event);
    } else {
      launcher.SendState(LauncherLine::kSpans, event);
    }
  }
}

void Shepherd::ReportUnkillable() {
  std::string who = sweeper_.GiveUp();
  if (who.empty()) return;  // they went at the last moment
  report_.SetUnkillable();
  Report();
  SendFailure(MakeFailure(
      v1::NodeFailure::KIND_CLEANUP, kExitCleanup,
      absl::StrCat("could not end leftover processes of the job: ", who, " still there ",
                   std::chrono::duration_cast<std::chrono::seconds>(kUnkillableAfter).count(),
                   " s after SIGKILL; a driver or a network file system holds it, the node may "
                   "need a reboot")));
}

bool Shepherd::DrainAll() {
  bool all = true;
  for (auto& worker : workers_) {
    for (v1::StreamKind kind : kLogKinds) all &= worker->log(kind).Drain();
  }
  return all;
}

void Shepherd::Drain() {
  if (core_.state() != State::kDraining) return;
  if (DrainAll()) {
    loop_.Post([this] { Feed(Drained{}); });
  } else {
    drain_.After(kDrainRetry, [this] { Drain(); });
  }
}

void Shepherd::Finish() {
  drain_.Cancel();
  sweeper_.RemoveCgroup();
  RemoveScratch();
  if (line_.lost()) return Exit();
  v1::JobEvent event;
  v1::Finished* finished = event.mutable_finished();
  uint64_t lost = 0;
  for (auto& worker : workers_) {
    for (v1::StreamKind kind : kLogKinds) {
      LogStream& log = worker->log(kind);
      lost += log.Pending();
      log.Close();
      if (!reported_started_) continue;
      v1::LogEnd* end = finished->add_logs();
      end->set_rank(worker->rank());
      end->set_stream(kind);
      end->set_size(log.size());
    }
  }
  if (lost > 0) Warn(absl::StrCat("no room for the last ", lost, " bytes of the workers' output"));
  TellMpiSuspects();
  SendGrown();
  pages_.Cancel();
  ReportPages();
  if (report_.changed()) Report();
  Send(event);
  ended_ = std::move(*finished);
  TellEnded();
  feed_.End();
  Exit();
}

void Shepherd::TellEnded() {
  v1::ShepherdEvent event;
  *event.mutable_ended() = ended_;
  line_.Tell(event);
}

void Shepherd::Exit() {
  if (line_.kept() != nullptr && !line_.lost()) {  // OnReleased, OnAgentLost
    if (told_to_end_) line_.WaitAtMost(kGoingDownLimit);
    return;
  }
  // Output is here and nowhere else. It waits for as long as there is an agent to read it.
  if (!line_.lost()) return feed_.WhenAllDelivered([this] { ExitOnceSaid(); });
  // Given up while there still is an agent, why must reach it.
  ExitOnceSaid();
}

void Shepherd::ExitOnceSaid() {
  line_.WhenSaid([this] { loop_.Stop(); });
  exit_.After(kExitLimit, [this] { loop_.Stop(); });
}

void Shepherd::SendFailure(v1::NodeFailure failure) {
  v1::JobEvent event;
  *event.mutable_failure() = std::move(failure);
  Send(event);
}

void Shepherd::Warn(std::string message, bool detail) {
  v1::JobEvent event;
  event.mutable_warning()->set_detail(detail);
  event.mutable_warning()->set_message(std::move(message));
  Send(event);
}

Worker* Shepherd::Find(uint32_t rank) {
  for (auto& worker : workers_) {
    if (worker->rank() == rank) return worker.get();
  }
  return nullptr;
}

}  // namespace dtrain::shepherd
