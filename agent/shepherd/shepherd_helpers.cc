// SPDX-License-Identifier: Apache-2.0
// The processes that serve PMIx and keys to the workers, from before these start to the end.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "agent/shepherd/shepherd.h"
#include "common/base/exit_code.h"
#include "common/os/scratch_folder.h"

namespace dtrain::shepherd {

absl::Status Shepherd::OpenPmix() {
  if (!part_.pmix()) return absl::OkStatus();
  PmixGate::Hooks hooks;
  hooks.up = [this](v1::PmixUp up) {
    for (const uint32_t rank : up.joined().ranks()) {
      if (mpi_) mpi_->OnJoined(rank);
    }
    v1::JobEvent event;
    *event.mutable_pmix() = std::move(up);
    launcher_.Send(event);
  };
  hooks.abort = [this](uint32_t rank, int code) { aborts_.Ask(rank, code); };
  hooks.failed = [this](std::string why, bool ended) {
    launcher_.SendFailure(MakeFailure(v1::NodeFailure::KIND_HELPER,
                                      ended ? kExitAgentLost : kExitRendezvous, std::move(why)));
  };
  auto gate = PmixGate::Open(loop_, agent_, part_, std::move(hooks));
  if (!gate.ok()) return gate.status();
  pmix_ = *std::move(gate);
  return absl::OkStatus();
}

void Shepherd::ServePmix() {
  if (!pmix_) return;
  auto folders = os::TemporaryDirectories();
  if (std::string path = scratch_.path(); !path.empty()) {
    folders.insert(folders.begin(), std::move(path));
  }
  pmix_->Serve([this] { return WorkerEnv(part_, agent_env_).Of(part_.workers(0), {}); },
               std::move(folders));
}

// The PMIx server first: it removes what ranks that were killed have left in shared memory.
void Shepherd::Sweep() {
  loop::Task next = [this] { SweepContainers(); };
  for (const auto& store : stores_) {
    next = [&helper = store->helper(), next = std::move(next)]() mutable {
      helper.End(std::move(next));
    };
  }
  if (!pmix_) return next();
  pmix_->End(std::move(next));
}

absl::Status Shepherd::OpenStores() {
  if (!part_.has_meeting()) return absl::OkStatus();
  const v1::NodeNetwork& network = part_.network();
  absl::Status open = OpenStore(kHorovodStore, network.rendezvous_port());
  if (!open.ok() || !part_.agent_store()) return open;
  return OpenStore(kTorchStore, network.master_port());
}

absl::Status Shepherd::OpenStore(const StoreKind& kind, uint32_t port) {
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
    launcher_.SendFailure(MakeFailure(v1::NodeFailure::KIND_HELPER,
                                      ended ? kExitAgentLost : kExitRendezvous, std::move(why)));
  };
  hooks.warn = [this](std::string text) { launcher_.Warn(std::move(text), /*detail=*/true); };
  auto gate = StoreGate::Open(loop_, agent_, kind, part_, std::move(held), std::move(hooks));
  if (!gate.ok()) return gate.status();
  stores_.push_back(*std::move(gate));
  return absl::OkStatus();
}

bool Shepherd::StoresUsed() const {
  return std::any_of(stores_.begin(), stores_.end(),
                     [](const auto& store) { return store->used(); });
}

std::vector<Helper*> Shepherd::Helpers() {
  std::vector<Helper*> all;
  if (pmix_) all.push_back(&pmix_->helper());
  for (const auto& store : stores_) all.push_back(&store->helper());
  return all;
}

void Shepherd::SpareHelpers() {
  std::vector<pid_t> pids;
  for (const Helper* helper : Helpers()) pids.push_back(helper->pid());
  sweeper_.Spare(std::move(pids));
}

}  // namespace dtrain::shepherd
