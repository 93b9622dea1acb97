// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/shepherd.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/shepherd/failure.h"
#include "common/base/exit_code.h"
#include "common/base/programs.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/environment.h"
#include "common/os/pidfd.h"

namespace dtrain::shepherd {
namespace {

constexpr int kReapAtOnce = 100;
constexpr size_t kTailLines = 20;
constexpr size_t kTailBytes = 8 << 10;
// While the launcher is away, the exits of very many workers come without their last words rather
// than not at all.
constexpr size_t kLittleRoom = 8 << 20;
constexpr v1::StreamKind kStreams[] = {v1::STREAM_KIND_STDOUT, v1::STREAM_KIND_STDERR};

}  // namespace

Shepherd::Shepherd(loop::Loop& loop, std::string program, Agent agent)
    : loop_(loop),
      agent_(std::move(program)),
      agent_env_(os::OwnEnvironment()),
      has_workers_cgroup_(std::holds_alternative<AgentLine::Door>(agent)),
      feed_(loop, [this](uint32_t rank, const absl::Status& why) { OnUnreadable(rank, why); }),
      sweeper_(loop),
      deadline_(loop),
      drain_(loop),
      exit_(loop),
      pages_(loop),
      mpi_look_(loop),
      report_due_(loop),
      signals_(loop, {SIGCHLD, SIGTERM, SIGINT, SIGHUP}, [this](int signal) { OnSignal(signal); }),
      line_(MakeLine(std::move(agent))) {
  hooks_.log_grown = [this](uint32_t rank, v1::StreamKind kind) { MarkGrown(rank, kind); };
  hooks_.log_stuck = [this](uint32_t rank, const absl::Status& why) {
    if (absl::IsOutOfRange(why)) {
      // The worker would wait for ever, and with -q nobody would know.
      return SendFailure(MakeFailure(
          v1::NodeFailure::KIND_STATE, kExitState,
          absl::StrCat("the output of rank ", rank,
                       " has reached the limit of file sizes: ", std::string(why.message()),
                       "; raise the limit (ulimit -f) where dtrain or its agent is started")));
    }
    Warn(absl::StrCat(
        "the output of rank ", rank, " waits: ", std::string(why.message()),
        "; the worker is blocked, nothing is lost, and it continues when there is room "
        "(see XDG_RUNTIME_DIR and TMPDIR of the node)"));
  };
  hooks_.stdin_taken = [this](uint32_t rank, bool closed) {
    v1::JobEvent event;
    event.mutable_stdin_taken()->set_rank(rank);
    event.mutable_stdin_taken()->set_closed(closed);
    Send(event);
  };
}

AgentLine Shepherd::MakeLine(Agent agent) {
  AgentLine::Handlers handlers{
      [this](v1::JobRequest request) { OnRequest(std::move(request)); },
      [this](Duration silence) { OnSilent(silence); },
      [this](Duration grace) {
        Feed(StopAsked{grace});
        LetEnd();
      },
      [this](v1::ReadLogs request, os::UniqueFd socket) {
        feed_.Serve(std::move(request), std::move(socket));
      },
      [this](uint32_t port, os::UniqueFd socket) { held_[port] = std::move(socket); },
      [this] { OnAdopted(); },
      [this] { OnReleased(); },
      [this] { OnAgentLost(); }};
  if (auto* door = std::get_if<AgentLine::Door>(&agent)) {
    return {loop_, std::move(*door), std::move(handlers)};
  }
  return {loop_, std::get<os::UniqueFd>(std::move(agent)), std::move(handlers)};
}

void Shepherd::OnRequest(v1::JobRequest request) {
  switch (request.kind_case()) {
    case v1::JobRequest::kCommon:
      common_ = std::move(*request.mutable_common());
      break;
    case v1::JobRequest::kStart:
      common_.MergeFrom(request.start());
      OnStart(std::exchange(common_, {}));
      break;
    case v1::JobRequest::kSignal:
      if (const int signal = request.signal().signal(); signal < 1 || signal > SIGRTMAX) {
        return line_.launcher().Break(absl::StrCat("no signal has the number ", signal));
      }
      for (auto& worker : workers_) worker->Signal(request.signal().signal());
      break;
    case v1::JobRequest::kStop:
      Feed(StopAsked{std::chrono::milliseconds(request.stop().grace_ms())});
      LetEnd();
      break;
    case v1::JobRequest::kStdin:
      OnStdin(request.stdin());
      break;
    case v1::JobRequest::kFenceRelease:
      if (pmi_) Carry(pmi_->OnFenceRelease(request.fence_release()));
      break;
    case v1::JobRequest::kPmix:
      if (pmix_) pmix_->OnDown(request.pmix());
      break;
    case v1::JobRequest::kHeartbeat: {
      v1::JobEvent event;
      event.mutable_heartbeat();
      line_.launcher().SendState(LauncherLine::kBeat, event);
      break;
    }
    case v1::JobRequest::kLogsTaken:
      for (const v1::LogPosition& taken : request.logs_taken().streams()) OnLogTaken(taken);
      break;
    default:
      log::Error(absl::StrCat("the agent passed on what is not for a shepherd: request ",
                              static_cast<int>(request.kind_case())));
  }
}

// What an agent knows that was there from the start, and how far all is now.
void Shepherd::OnAdopted() {
  v1::ShepherdEvent event;
  v1::Account& account = *event.mutable_account();
  *account.mutable_kept() = *line_.kept();
  *account.mutable_report() = report_.report();
  account.set_finished(core_.state() == State::kFinished);
  line_.Tell(event);
  if (core_.state() == State::kFinished) TellEnded();
}

void Shepherd::OnReleased() {
  if (core_.state() == State::kFinished) return loop_.Stop();
  line_.End();
}

void Shepherd::OnStart(v1::JobPart part) {
  if (core_.state() != State::kWaiting) {
    log::Error("the agent sent a second part");
    return;
  }
  if (!HasWork(part)) {
    SendFailure(MakeFailure(v1::NodeFailure::KIND_REFUSED, kExitStartAgents,
                            "the job names no worker or no program for this node"));
    Feed(StopAsked{});
    return;
  }
  part_ = std::move(part);
  report_.Begin(part_);
  Report();
  Feed(PartArrived{static_cast<size_t>(part_.workers_size()),
                   std::chrono::milliseconds(part_.grace_ms()), WorkerContainers::Needed(part_)});
}

void Shepherd::OnStdin(const v1::StdinData& data) {
  Worker* worker = Find(data.rank());
  if (worker != nullptr && worker->stdin_feeder() != nullptr) {
    worker->stdin_feeder()->Write(data.data(), data.end());
  } else {
    hooks_.stdin_taken(data.rank(), true);
  }
}

// It may be gone, or its agent stand still. The agent, if it runs, knows that as well.
void Shepherd::OnSilent(Duration silence) {
  log::Warn(absl::StrCat("nothing was heard of the launcher for ",
                         std::chrono::duration_cast<std::chrono::milliseconds>(silence).count(),
                         " ms; the workers are ended"));
  Feed(StopAsked{std::chrono::milliseconds(part_.grace_ms())});
  LetEnd();
}

void Shepherd::OnAgentLost() {
  if (core_.state() == State::kFinished) return Exit();
  for (auto& worker : workers_) {
    for (v1::StreamKind kind : kStreams) worker->log(kind).Discard();
  }
  Feed(AgentGone{});
  LetEnd();
}

void Shepherd::OnSignal(int signal) {
  if (signal == SIGCHLD) {
    OnChildren();
  } else {
    told_to_end_ = true;
    Feed(AgentGone{});
    LetEnd();
    if (core_.state() == State::kFinished) line_.WaitAtMost(kGoingDownLimit);
  }
}

void Shepherd::OnChildren() {
  // In portions: against a fork bomb there would be no end, and a stop must get through.
  for (int i = 0; i < kReapAtOnce; ++i) {
    pid_t pid = os::EndedChild();
    if (pid == 0) return sweeper_.OnReaped();
    Worker* worker = nullptr;
    for (auto& w : workers_) {
      if (w->pid() == pid && !w->ended()) worker = w.get();
    }
    if (worker == nullptr) {
      if (containers_ && containers_->OnChild(pid)) continue;
      const std::vector<Helper*> helpers = Helpers();
      const bool is_helper = std::any_of(helpers.begin(), helpers.end(),
                                         [pid](Helper* helper) { return helper->OnChild(pid); });
      if (!is_helper) os::ReapQuietly(pid);
    } else if (auto status = worker->Reap()) {
      OnWorkerEnded(*worker, *status);
    }
  }
  loop_.Post([this] { OnChildren(); });
}

void Shepherd::OnWorkerEnded(Worker& worker, const os::ExitStatus& of_process) {
  // What it wrote last is already in the pipes.
  for (v1::StreamKind kind : kStreams) (void)worker.log(kind).Drain();
  const os::ExitStatus status = EndOf(worker, of_process);
  if (auto& pmi = pmi_connections_[worker.rank()]) {
    pmi->ReadRest();
    pmi->Close();
  }
  // Of an abort, or that a rank has used what is served here: said before it ended, so heard
  // before. A rank may have ended because a helper did, and children are not told in an order.
  for (Helper* helper : Helpers()) {
    helper->ReadFrames();
    if (helper->pid() != 0) (void)helper->OnChild(helper->pid());
  }
  if (reported_started_) {
    v1::JobEvent event;
    *event.mutable_exit() = ExitOf(worker, status);
    if (status.code == 0 && status.signal == 0 && !core_.stop_asked()) JudgeMpi(worker.rank());
    SendGrown();
    ReportPages();  // its last counters, before the word that it is gone
    report_.OnExit(event.exit());
    ReportLater();
    Send(event);
    Carry(pmi_->OnGone(worker.rank()));
  }
  // Ranks of other nodes may use what is served here: until the launcher says that all is over.
  last_held_ =
      core_.live_workers() == 1 && StoresUsed() && !core_.stop_asked() && part_.node_count() > 1;
  if (!last_held_) Feed(WorkerEnded{});
}

// Of one in a container the runtime's client was reaped.
os::ExitStatus Shepherd::EndOf(Worker& worker, const os::ExitStatus& of_process) {
  if (!containers_) return of_process;
  if (!core_.stop_asked()) {
    auto failure = containers_->WhyNotStarted(
        worker.spec(), of_process, worker.log(v1::STREAM_KIND_STDERR).Tail(kTailLines, kTailBytes));
    if (failure) SendFailure(*std::move(failure));
  }
  return containers_->Ended(worker.spec(), of_process, core_.stop_asked());
}

v1::WorkerExit Shepherd::ExitOf(Worker& worker, const os::ExitStatus& status) {
  v1::WorkerExit exit;
  exit.set_rank(worker.rank());
  exit.set_pid(static_cast<uint32_t>(worker.pid()));
  exit.set_exit_code(status.code);
  exit.set_signal(status.signal);
  exit.set_core_dumped(status.core_dumped);
  exit.set_unix_nanos(absl::GetCurrentTimeNanos());
  exit.set_monotonic_nanos(std::chrono::nanoseconds(loop_.Now() - started_at_).count());
  exit.set_told_to_stop(core_.stop_asked());
  if (const auto abort = aborts_.find(worker.rank()); abort != aborts_.end()) {
    exit.set_aborted(true);
    exit.set_abort_code(abort->second.code.value_or(status.signal == 0 ? status.code : 1));
    exit.set_abort_unix_nanos(abort->second.unix_nanos);
  }
  // The kernel counts its kills per cgroup: each explains one SIGKILL that was not ours.
  if (status.signal == SIGKILL && !core_.stop_asked() && oom_kills_->Read() > oom_kills_told_) {
    ++oom_kills_told_;
    exit.set_out_of_memory(true);
    exit.set_memory_limit_bytes(oom_kills_->LimitBytes());
  }
  if ((status.code != 0 || status.signal != 0) && line_.launcher().room() > kLittleRoom) {
    exit.set_stderr_tail(worker.log(v1::STREAM_KIND_STDERR).Tail(kTailLines, kTailBytes));
    // Of those that were told to end, nobody asks why.
    if (!core_.stop_asked()) exit.set_error_file(ReadErrorFile(worker.rank()));
  }
  return exit;
}

void Shepherd::LetEnd() {
  if (std::exchange(last_held_, false)) Feed(WorkerEnded{});
}

void Shepherd::Feed(const Event& event) {
  auto actions = core_.OnEvent(loop_.Now(), event);
  if (!actions.ok()) {
    log::Error(std::string(actions.status().message()));
    return;
  }
  if (core_.stop_asked() && report_.report().job().state() == v1::JobOnNode::STATE_RUNNING) {
    report_.SetEnding();
    ReportLater();
  }
  Carry(*actions);
}

void Shepherd::Carry(const std::vector<Action>& actions) {
  for (Action action : actions) Do(action);
  deadline_.At(core_.NextDeadline(), [this] { Carry(core_.OnDeadline(loop_.Now())); });
}

void Shepherd::Do(Action action) {
  switch (action) {
    case Action::kPrepare:
      PrepareContainers();
      break;
    case Action::kSpawn:
      SpawnAll();
      break;
    case Action::kTerminate:
      for (auto& worker : workers_) {
        worker->Signal(SIGTERM);
        worker->Signal(SIGCONT);  // a stopped one would not notice
      }
      break;
    case Action::kKill:
      for (auto& worker : workers_) worker->Signal(SIGKILL);
      SpareHelpers();
      KillAll();
      break;
    case Action::kSweep:
      // Not from inside the reaping of the last worker.
      loop_.Post([this] { Sweep(); });
      break;
    case Action::kReportUnkillable:
      ReportUnkillable();
      break;
    case Action::kDrain:
      Drain();
      break;
    case Action::kFinish:
      Finish();
      break;
  }
}

void Shepherd::SpawnAll() {
  auto refused = CheckResources(part_);
  if (!refused) refused = CheckFiles(part_);
  os::SpawnError error;
  absl::Status started;
  if (!refused) {
    oom_kills_.emplace();
    PrepareCgroup();
    if (part_.require_cgroup() && !job_cgroup_) {
      refused = MakeFailure(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
                            absl::StrCat("--require-cgroup: ", no_cgroup_why_));
    } else {
      started_at_ = loop_.Now();
      started = StartWorkers(&error);
    }
  }
  if (!refused && !started.ok()) {
    refused =
        error.stage != os::SpawnStage::kNone
            ? SpawnFailure(part_, ProgramOf(part_, part_.workers(workers_.size())), error, started)
            : MakeFailure(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
                          absl::StrCat("cannot ", std::string(started.message())));
  }
  if (refused) {
    SendFailure(*std::move(refused));
    Feed(SpawnFailed{workers_.size()});
    return;
  }
  ServePmi();
  ServePmix();
  ReportStarted();
  WatchPages();
  Feed(Spawned{});
  WatchMpi();
}

}  // namespace dtrain::shepherd
