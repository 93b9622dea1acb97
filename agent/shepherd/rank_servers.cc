// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/rank_servers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "common/base/exit_code.h"
#include "common/os/scratch_folder.h"

namespace dtrain::shepherd {

RankServers::RankServers(loop::Loop& loop, std::string program, const ShepherdCore& core,
                         LauncherLine& launcher, Aborts& aborts, OnJoined on_joined)
    : loop_(loop),
      program_(std::move(program)),
      core_(core),
      launcher_(launcher),
      aborts_(aborts),
      on_joined_(std::move(on_joined)) {}

std::optional<v1::NodeFailure> RankServers::Open(const v1::JobPart& part) {
  const absl::Status open = OpenAll(part);
  return open.ok() ? std::nullopt : std::optional(CannotStart(open));
}

absl::Status RankServers::OpenAll(const v1::JobPart& part) {
  if (absl::Status open = OpenPmix(part); !open.ok()) return open;
  if (!part.has_meeting()) return absl::OkStatus();
  const v1::NodeNetwork& network = part.network();
  const bool has_door = part.meeting().has_elastic();
  absl::Status open =
      OpenStore(part, has_door ? kElasticDoor : kHorovodStore, network.rendezvous_port());
  if (open.ok() && has_door) {
    door_ = stores_.back().get();
    for (v1::ElasticDown& down : std::exchange(early_downs_, {})) door_->Send(down);
  }
  if (!open.ok() || !part.agent_store()) return open;
  return OpenStore(part, kTorchStore, network.master_port());
}

absl::Status RankServers::OpenPmix(const v1::JobPart& part) {
  if (!part.pmix()) return absl::OkStatus();
  PmixGate::Hooks hooks;
  hooks.up = [this](v1::PmixUp up) { OnPmixUp(std::move(up)); };
  hooks.abort = [this](uint32_t rank, int code) { aborts_.Ask(rank, code); };
  hooks.failed = [this](std::string why, bool ended) { Fail(why, ended); };
  auto gate = PmixGate::Open(loop_, program_, part, std::move(hooks));
  // libpmix's server listens nowhere else, and most jobs never ask for it.
  if (absl::IsUnavailable(gate.status())) {
    launcher_.Warn(
        absl::StrCat("PMIx is not served, which Open MPI's programs need: cannot ",
                     gate.status().message(), "; give the loopback interface that address"),
        /*detail=*/true);
    return absl::OkStatus();
  }
  if (!gate.ok()) return gate.status();
  pmix_ = *std::move(gate);
  return absl::OkStatus();
}

void RankServers::OnPmixUp(v1::PmixUp up) {
  for (const uint32_t rank : up.joined().ranks()) on_joined_(rank);
  auto goes_up = pmix_talk_.OnUp(std::move(up));
  if (!goes_up) return;
  v1::JobEvent event;
  *event.mutable_pmix() = *std::move(goes_up);
  launcher_.Send(event);
}

void RankServers::SayAgain() {
  for (v1::PmixUp& up : pmix_talk_.OnAnother()) {
    v1::JobEvent event;
    *event.mutable_pmix() = std::move(up);
    launcher_.Send(event);
  }
}

void RankServers::ServePmix(PmixGate::Environment env, std::string scratch) {
  if (!pmix_) return;
  auto folders = os::TemporaryDirectories();
  if (!scratch.empty()) folders.insert(folders.begin(), std::move(scratch));
  pmix_->Serve(std::move(env), std::move(folders));
}

void RankServers::OnPmixDown(v1::PmixDown down) {
  if (pmix_) pmix_->OnDown(pmix_talk_.OnDown(std::move(down)));
}

void RankServers::OnElasticDown(v1::ElasticDown down) {
  if (door_ != nullptr) {
    door_->Send(down);
  } else {
    early_downs_.push_back(std::move(down));
  }
}

absl::Status RankServers::OpenStore(const v1::JobPart& part, const StoreKind& kind, uint32_t port) {
  os::UniqueFd held = std::move(held_[port]);
  // Nobody would accept what connects there: ranks would wait for ever.
  if (!held) {
    return absl::InternalError(absl::StrCat("listen for ", kind.name,
                                            ": the agent passed no socket for port ", port,
                                            " (is it out of descriptors?)"));
  }
  StoreGate::Hooks hooks;
  hooks.failed = [this](std::string why, bool ended) {
    if (core_.stop_asked()) return;  // nobody misses it
    Fail(why, ended);
  };
  hooks.warn = [this](std::string text) { launcher_.Warn(std::move(text), /*detail=*/true); };
  hooks.elastic = [this](v1::ElasticUp up) {
    v1::JobEvent event;
    *event.mutable_elastic() = std::move(up);
    launcher_.Send(event);
  };
  auto gate = StoreGate::Open(loop_, program_, kind, part, std::move(held), std::move(hooks));
  if (!gate.ok()) return gate.status();
  stores_.push_back(*std::move(gate));
  return absl::OkStatus();
}

void RankServers::Fail(const std::string& why, bool ended) {
  launcher_.SendFailure(
      MakeFailure(v1::NodeFailure::KIND_HELPER, ended ? kExitAgentLost : kExitRendezvous, why));
}

bool RankServers::stores_used() const {
  return std::any_of(stores_.begin(), stores_.end(),
                     [](const auto& store) { return store->used(); });
}

std::vector<Helper*> RankServers::Helpers() const {
  std::vector<Helper*> all;
  if (pmix_) all.push_back(&pmix_->helper());
  for (const auto& store : stores_) all.push_back(&store->helper());
  return all;
}

void RankServers::MoveLog() {
  for (Helper* helper : Helpers()) helper->MoveLog();
}

std::vector<pid_t> RankServers::pids() const {
  std::vector<pid_t> pids;
  for (const Helper* helper : Helpers()) pids.push_back(helper->pid());
  return pids;
}

bool RankServers::OnChild(pid_t pid) {
  const std::vector<Helper*> helpers = Helpers();
  return std::any_of(helpers.begin(), helpers.end(),
                     [pid](Helper* helper) { return helper->OnChild(pid); });
}

// A rank may have ended because a helper did, and children are not told in an order.
void RankServers::CatchUp() {
  for (Helper* helper : Helpers()) {
    helper->ReadFrames();
    if (helper->pid() != 0) (void)helper->OnChild(helper->pid());
  }
}

void RankServers::End(loop::Task done) {
  loop::Task next = std::move(done);
  for (const auto& store : stores_) {
    next = [&helper = store->helper(), next = std::move(next)]() mutable {
      helper.End(std::move(next));
    };
  }
  if (!pmix_) return next();
  pmix_->End(std::move(next));
}

}  // namespace dtrain::shepherd
