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
#include "agent/shepherd/worker_env.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/process_tree.h"
#include "common/os/scratch_folder.h"

namespace dtrain::shepherd {
namespace {

constexpr Duration kDrainRetry = std::chrono::milliseconds(20);

}  // namespace

absl::Status Shepherd::StartWorkers(os::SpawnError* error) {
  if (absl::Status open = servers_.Open(part_); !open.ok()) return open;
  scratch_.Make();
  return workers_.Start(
      part_, {agent_env_, cgroup_, scratch_.path(), servers_.pmix_port(), containers_.all()},
      error);
}

void Shepherd::ServePmix() {
  auto folders = os::TemporaryDirectories();
  if (std::string path = scratch_.path(); !path.empty()) {
    folders.insert(folders.begin(), std::move(path));
  }
  servers_.ServePmix([this] { return WorkerEnv(part_, agent_env_).Of(part_.workers(0), {}); },
                     std::move(folders));
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

void Shepherd::Drain() {
  if (core_.state() != State::kDraining) return;
  if (logs_.DrainAll()) {
    loop_.Post([this] { Feed(Drained{}); });
  } else {
    drain_.After(kDrainRetry, [this] { Drain(); });
  }
}

void Shepherd::Finish() {
  drain_.Cancel();
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
