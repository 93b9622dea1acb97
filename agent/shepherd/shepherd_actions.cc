// SPDX-License-Identifier: Apache-2.0
// What the shepherd does when its core says so, and what it tells the agent.
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "agent/shepherd/preflight.h"
#include "agent/shepherd/shepherd.h"
#include "agent/shepherd/worker_env.h"
#include "common/base/exit_code.h"

namespace dtrain::shepherd {

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
}

std::optional<v1::NodeFailure> Shepherd::StartWorkers() {
  if (auto refused = CheckResources(part_)) return refused;
  if (auto refused = CheckFiles(part_)) return refused;
  if (auto refused = cgroup_.Make()) return refused;
  if (auto refused = servers_.Open(part_)) return refused;
  scratch_.Make();
  return workers_.Start(
      part_, {agent_env_, cgroup_, scratch_.path(), servers_.pmix_port(), containers_.all()});
}

void Shepherd::ReportStarted() {
  v1::JobEvent event;
  *event.mutable_started() = workers_.Started();
  event.mutable_started()->set_cgroup(cgroup_.has());
  report_.job().OnStarted(event.started());
  report_.Tell();
  launcher_.Send(event);
  reported_started_ = true;
  logs_.Begin();
}

void Shepherd::Sweep() {
  servers_.End(
      [this] { containers_.Remove([this] { sweeper_.Sweep([this] { Feed(Swept{}); }); }); });
}

void Shepherd::ReportUnkillable() {
  std::string who = sweeper_.GiveUp();
  if (who.empty()) return;  // they went at the last moment
  report_.job().SetUnkillable();
  report_.Tell();
  launcher_.SendFailure(MakeFailure(
      v1::NodeFailure::KIND_CLEANUP, kExitCleanup,
      absl::StrCat("could not end leftover processes of the job: ", who, " still there ",
                   std::chrono::duration_cast<std::chrono::seconds>(kUnkillableAfter).count(),
                   " s after SIGKILL; a driver or a network file system holds it, the node may "
                   "need a reboot")));
}

void Shepherd::Finish() {
  logs_.StopDraining();
  pages_.Stop();
  sweeper_.RemoveCgroup();
  scratch_.Remove();
  if (line_.lost()) return departure_.Leave();
  v1::JobEvent event;
  *event.mutable_finished() = logs_.Close();
  mpi_.End();
  logs_.TellGrown();
  pages_.Report();
  report_.TellRest();
  launcher_.Send(event);
  ended_ = std::move(*event.mutable_finished());
  TellEnded();
  logs_.End();
  departure_.Leave();
}

void Shepherd::TellEnded() {
  v1::ShepherdEvent event;
  *event.mutable_ended() = ended_;
  line_.Tell(event);
}

}  // namespace dtrain::shepherd
