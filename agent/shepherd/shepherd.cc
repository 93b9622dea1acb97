// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/shepherd.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "agent/shepherd/preflight.h"
#include "agent/shepherd/run_shepherd.h"
#include "agent/shepherd/worker_env.h"
#include "common/base/exit_code.h"
#include "common/base/programs.h"
#include "common/log/log.h"
#include "common/loop/signal_sender.h"
#include "common/os/environment.h"
#include "common/os/pidfd.h"

namespace dtrain::shepherd {
namespace {

constexpr int kReapAtOnce = 100;
// What became of the workers, for another launcher of a detached job.
constexpr Duration kKeptForLate = std::chrono::hours(24);

}  // namespace

Shepherd::Shepherd(loop::Loop& loop, std::string program, Agent agent, const ShepherdLimits& limits)
    : loop_(loop),
      agent_env_(os::OwnEnvironment()),
      is_behind_door_(std::holds_alternative<AgentLine::Door>(agent)),
      line_(MakeLine(std::move(agent))),
      launcher_(line_.launcher()),
      report_(loop, line_),
      sweeper_(loop),
      memory_(loop, sweeper_, launcher_),
      cgroup_(part_, is_behind_door_, sweeper_, launcher_),
      scratch_(launcher_),
      state_(launcher_),
      code_(loop, launcher_,
            [this] {
              if (core_.state() == State::kWaiting) Feed(StopAsked{});
            }),
      workers_(loop, launcher_,
               [this](uint32_t rank, v1::StreamKind kind) { logs_.OnGrown(rank, kind); }),
      user_signals_(loop, workers_),
      saves_(loop, sweeper_, [this](const auto& saves) { OnSaves(saves); }),
      offspring_(loop, workers_, sweeper_, launcher_),
      aborts_(loop, workers_),
      containers_(loop, agent_env_, core_, sweeper_, launcher_),
      pmi_(loop, launcher_, workers_, aborts_),
      servers_(loop, std::move(program), core_, launcher_, aborts_,
               [this](uint32_t rank) { mpi_.OnJoined(rank); }),
      mpi_(loop, core_, workers_, pmi_, launcher_),
      meeting_(loop, core_, part_, workers_, launcher_),
      loners_(loop, core_, workers_, pmi_, launcher_),
      logs_(loop, workers_, report_, launcher_),
      departure_(loop, line_, logs_, limits.going_down),
      pages_(loop, workers_, report_, launcher_),
      exits_(loop, workers_, aborts_, cgroup_, scratch_, launcher_),
      checkpoint_(loop, part_, agent_env_, launcher_, limits.still),
      requests_({core_, part_, launcher_, workers_, user_signals_, code_, pmi_, servers_, logs_,
                 checkpoint_},
                {[this](v1::JobPart part) { OnStart(std::move(part)); },
                 [this](const v1::StopWorkers& stop) {
                   if (stop.all_ended()) return LetEnd();
                   OnStop({std::chrono::milliseconds(stop.grace_ms()), stop.cancelled(),
                           std::chrono::milliseconds(part_.grace_limit_ms())});
                 },
                 [this] { OnSavingElsewhere(); }}),
      deadline_(loop),
      signals_(loop, {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2},
               [this](int signal) { OnSignal(signal); }) {}

AgentLine Shepherd::MakeLine(Agent agent) {
  AgentLine::Handlers handlers{
      [this](v1::JobRequest request) { requests_.Take(std::move(request)); },
      [this](Duration silence) { OnSilent(silence); },
      [this](Duration grace) {
        OnStop({grace, /*cancelled=*/true});
      },
      [this](v1::ReadLogs request, os::UniqueFd socket) {
        logs_.Serve(std::move(request), std::move(socket));
      },
      [this](uint32_t port, os::UniqueFd socket) { servers_.Hold(port, std::move(socket)); },
      [this] { OnAnotherLauncher(); },
      [this] { report_.TellAccount(); },
      [this] { OnReleased(); },
      [this] { OnAgentLost(); },
      [this] { servers_.MoveLog(); }};
  if (auto* door = std::get_if<AgentLine::Door>(&agent)) {
    return {loop_, std::move(*door), std::move(handlers)};
  }
  return {loop_, std::get<os::UniqueFd>(std::move(agent)), std::move(handlers)};
}

// What the one before was told and still counts; the rest goes on as it comes.
void Shepherd::OnAnotherLauncher() {
  requests_.BeginAnew();
  v1::JobEvent event;
  if (reported_started_) {
    *event.mutable_started() = started_;
    launcher_.Send(event);
  }
  exits_.SayAgain();
  pmi_.SayAgain();
  servers_.SayAgain();
  launcher_.SendFailuresAgain();
  if (finished_) {
    *event.mutable_finished() = *finished_;
    launcher_.Send(event);
  }
  event.mutable_retold();
  launcher_.Send(event);
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
    launcher_.SendFailure(MakeFailure(v1::NodeFailure::KIND_REFUSED, kExitStartAgents,
                                      "the job names no worker or no program for this node"));
    Feed(StopAsked{});
    return;
  }
  part_ = std::move(part);
  if (!code_.Place(part_)) {
    launcher_.SendFailure(MakeFailure(v1::NodeFailure::KIND_REFUSED, kExitStartAgents,
                                      "the job starts before its code is staged"));
    Feed(StopAsked{});
    return;
  }
  report_.job().Begin(part_);
  report_.Tell();
  Feed(PartArrived{static_cast<size_t>(part_.workers_size()),
                   std::chrono::milliseconds(part_.grace_ms()), WorkerContainers::Needed(part_),
                   std::chrono::milliseconds(part_.grace_limit_ms())});
}

void Shepherd::OnStop(const StopAsked& stop) {
  Feed(stop);
  LetEnd();
}

// In other states no grace runs.
void Shepherd::OnSavingElsewhere() {
  const State state = core_.state();
  if (state == State::kStopping || state == State::kLingering || state == State::kHurrying) {
    Feed(Wrote{});
  }
}

// It may be gone, or its agent stand still. The agent, if it runs, knows that as well.
void Shepherd::OnSilent(Duration silence) {
  log::Warn(absl::StrCat("nothing was heard of the launcher for ",
                         std::chrono::duration_cast<std::chrono::milliseconds>(silence).count(),
                         " ms; the workers are ended"));
  departure_.OnSilent(launcher_.is_detached() && line_.kept() != nullptr
                          ? std::max(silence, kKeptForLate)
                          : silence);
  OnStop({std::chrono::milliseconds(part_.grace_ms()), /*cancelled=*/true});
}

void Shepherd::OnAgentLost() {
  if (core_.state() == State::kFinished) return departure_.Leave();
  logs_.Discard();
  Feed(AgentGone{});
  LetEnd();
}

void Shepherd::OnSignal(int signal) {
  if (signal == SIGCHLD) {
    OnChildren();
  } else if (signal == SIGUSR1 || signal == SIGUSR2) {
    const bool from_agent = loop::SignalWatch::SenderOf(signal).pid == getppid();
    user_signals_.Take(signal, from_agent ? UserSignals::From::kAgent : UserSignals::From::kOthers);
  } else {
    if (core_.state() <= State::kRunning) {
      launcher_.SendFailure(MakeFailure(
          v1::NodeFailure::KIND_LEAVES, kExitNodeLost,
          absl::StrCat("this host leaves the job: dtrain there got ", loop::NameSignal(signal))));
    }
    departure_.Hurry();
    Feed(AgentGone{});
    LetEnd();
  }
}

void Shepherd::OnChildren() {
  // In portions: against a fork bomb there would be no end, and a stop must get through.
  for (int i = 0; i < kReapAtOnce; ++i) {
    pid_t pid = os::EndedChild();
    if (pid == 0) {
      offspring_.OnReaped();
      return sweeper_.OnReaped();
    }
    Worker* const worker = workers_.FindRunning(pid);
    if (worker == nullptr) {
      if (!containers_.OnChild(pid) && !servers_.OnChild(pid) && !checkpoint_.OnChild(pid)) {
        os::ReapQuietly(pid);
      }
    } else if (auto status = worker->Reap()) {
      OnWorkerEnded(*worker, *status);
    }
  }
  loop_.Post([this] { OnChildren(); });
}

void Shepherd::OnWorkerEnded(Worker& worker, const os::ExitStatus& of_process) {
  // What it wrote last is already in the pipes.
  logs_.Drain(worker);
  const os::ExitStatus status = containers_.EndOf(worker, of_process);
  if (status.code == 0 && status.signal == 0 && !core_.stop_asked()) ++succeeded_;
  if (status.signal != 0) memory_.OnKill();
  pmi_.HearLast(worker.rank());
  servers_.CatchUp();
  if (reported_started_) {
    v1::JobEvent event;
    *event.mutable_exit() = exits_.Of(worker, status, core_);
    if (!core_.stop_asked()) {
      event.mutable_exit()->set_world(
          std::max(pmi_.WorldOf(worker.rank()), servers_.WorldOf(worker.rank())));
    }
    if (status.code == 0 && status.signal == 0 && !core_.stop_asked()) mpi_.Judge(worker.rank());
    logs_.TellGrown();
    pages_.Report();  // its last counters, before the word that it is gone
    report_.job().OnExit(event.exit());
    report_.TellLater();
    exits_.Say(event);
    pmi_.OnGone(worker.rank());
  }
  // Ranks of other nodes may use what is served here: until the launcher says that all is over.
  last_held_ = core_.live_workers() == 1 && servers_.stores_used() && !core_.stop_asked() &&
               part_.node_count() > 1;
  if (!last_held_) Feed(WorkerEnded{});
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
    report_.job().SetEnding();
    report_.TellLater();
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
      containers_.Prepare(part_, [this](bool ready) {
        if (ready) {
          Feed(Prepared{});
        } else {
          Feed(SpawnFailed{0});
        }
      });
      break;
    case Action::kSpawn:
      SpawnAll();
      break;
    case Action::kTerminate:
      offspring_.Terminate(containers_.all() != nullptr);
      saves_.Begin();
      break;
    case Action::kAwaitRest:
      // Not from inside the reaping of the last worker.
      loop_.Post([this] { AwaitRest(); });
      break;
    case Action::kTerminateRest:
      offspring_.TerminateRest();
      break;
    case Action::kTellKilled:
      if (core_.state() == State::kKilling) {
        offspring_.TellKilledWorkers(GraceFlag());
      } else {
        offspring_.TellKilledRest(GraceFlag());
      }
      break;
    case Action::kKill:
      memory_.OnKill();
      saves_.End();
      workers_.Signal(SIGKILL);
      sweeper_.Spare(servers_.pids());
      containers_.KillAll();
      break;
    case Action::kSweep:
      if (!sweeper_.NothingLeft()) memory_.OnKill();
      saves_.End();
      // Not from inside the reaping of the last worker.
      loop_.Post([this] { Sweep(); });
      break;
    case Action::kReportUnkillable:
      ReportUnkillable();
      break;
    case Action::kDrain:
      logs_.DrainAll([this] { Feed(Drained{}); });
      break;
    case Action::kFinish:
      Finish();
      break;
  }
}

void Shepherd::SpawnAll() {
  if (auto refused = StartWorkers()) {
    launcher_.SendFailure(*std::move(refused));
    return Feed(SpawnFailed{workers_.all().size()});
  }
  pmi_.Serve(part_);
  servers_.ServePmix([this] { return WorkerEnv(part_, agent_env_).Of(part_.workers(0), {}); },
                     scratch_.path());
  ReportStarted();
  pages_.Begin(part_.timeline_records());
  Feed(Spawned{});
  mpi_.Begin(part_, agent_env_);
  meeting_.Begin();
  loners_.Begin(part_, agent_env_);
}

std::optional<v1::NodeFailure> Shepherd::StartWorkers() {
  if (auto refused = CheckResources(part_)) return refused;
  if (auto refused = CheckFiles(part_)) return refused;
  if (auto refused = CheckScripts(part_, agent_env_)) return refused;
  if (auto refused = cgroup_.Make()) return refused;
  if (auto refused = servers_.Open(part_)) return refused;
  scratch_.Make();
  state_.Choose(part_, containers_.all() != nullptr);
  checkpoint_.Begin();
  memory_.Begin();
  return workers_.Start(part_, {agent_env_, cgroup_, scratch_.path(), state_.folder(), code_.tree(),
                                servers_.pmix_port(), containers_.all()});
}

void Shepherd::ReportStarted() {
  v1::JobEvent event;
  *event.mutable_started() = workers_.Started();
  event.mutable_started()->set_cgroup(cgroup_.has());
  report_.job().OnStarted(event.started());
  report_.Tell();
  started_ = event.started();
  launcher_.Send(event);
  reported_started_ = true;
  logs_.Begin();
}

void Shepherd::AwaitRest() {
  if (core_.state() != State::kLingering && core_.state() != State::kHurrying) return;
  checkpoint_.End();
  sweeper_.Spare(servers_.pids());
  // What runs in a container ends with its first process.
  if (containers_.all() != nullptr) return Feed(NothingLeft{});
  offspring_.AwaitEnd(core_.NextDeadline(), [this] { Feed(NothingLeft{}); });
  if (core_.state() == State::kLingering) saves_.Begin();
}

void Shepherd::OnSaves(std::vector<SaveWatch::Save> saves) {
  if (!saves.empty()) {
    Feed(Wrote{});
    v1::JobEvent event;
    event.mutable_saving();
    launcher_.Send(event);
  }
  // Writing that gains no time is not mentioned: --grace alone decides.
  if (!core_.may_grow()) saves.clear();
  offspring_.TellWaiting(saves, core_.kill_at(), core_.limit_at(), core_.cancelled());
}

// What would have given more time.
absl::string_view Shepherd::GraceFlag() const {
  return core_.at_limit() ? "--grace-limit" : "--grace";
}

void Shepherd::Sweep() {
  offspring_.Stop();
  checkpoint_.End();
  servers_.End(
      [this] { containers_.Remove([this] { sweeper_.Sweep([this] { Feed(Swept{}); }); }); });
}

void Shepherd::ReportUnkillable() {
  std::string who = sweeper_.GiveUp();
  if (who.empty()) return;  // they went at the last moment
  report_.job().SetUnkillable();
  report_.Tell();
  launcher_.SendFailure(UnkillableFailure(who));
}

void Shepherd::Finish() {
  logs_.StopDraining();
  pages_.Stop();
  sweeper_.RemoveCgroup();
  memory_.End();
  scratch_.Remove();
  const bool all_succeeded = succeeded_ > 0 && succeeded_ == part_.workers_size();
  state_.Tidy(all_succeeded);
  if (const absl::Status removed = code_.Remove(part_); !removed.ok()) {
    launcher_.Warn(absl::StrCat("cannot ", removed.message()));
  }
  if (line_.lost()) return departure_.Leave();
  v1::JobEvent event;
  *event.mutable_finished() = logs_.Close();
  mpi_.End();
  loners_.End(all_succeeded);
  logs_.TellGrown();
  pages_.Report();
  report_.TellRest();
  finished_ = event.finished();
  launcher_.Send(event);
  report_.TellEnded(std::move(*event.mutable_finished()));
  logs_.End();
  departure_.Leave();
}

}  // namespace dtrain::shepherd
