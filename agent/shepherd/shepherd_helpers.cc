// SPDX-License-Identifier: Apache-2.0
// The processes that serve PMIx and keys to the workers, from before these start to the end.
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
    v1::ShepherdEvent event;
    *event.mutable_pmix() = std::move(up);
    Send(std::move(event));
  };
  hooks.abort = [this](uint32_t rank, int code) { OnAbortAsked(rank, code); };
  hooks.failed = [this](std::string why, bool ended) {
    SendFailure(MakeFailure(v1::NodeFailure::KIND_HELPER, ended ? kExitAgentLost : kExitRendezvous,
                            std::move(why)));
  };
  auto gate = PmixGate::Open(loop_, agent_, part_, std::move(hooks));
  if (!gate.ok()) return gate.status();
  pmix_ = *std::move(gate);
  return absl::OkStatus();
}

void Shepherd::ServePmix() {
  if (!pmix_) return;
  auto folders = os::TemporaryDirectories();
  if (scratch_) folders.insert(folders.begin(), scratch_->path());
  pmix_->Serve([this] { return WorkerEnv(part_, agent_env_).Of(part_.workers(0), {}); },
               std::move(folders));
}

// The PMIx server first: it removes what ranks that were killed have left in shared memory.
void Shepherd::Sweep() {
  const auto sweep = [this] { sweeper_.Sweep([this] { Feed(Swept{}); }); };
  const auto end_store = [this, sweep] {
    if (!store_) return sweep();
    store_->helper().End(sweep);
  };
  if (!pmix_) return end_store();
  pmix_->End(end_store);
}

absl::Status Shepherd::OpenStore() {
  if (!part_.has_meeting()) return absl::OkStatus();
  // Nobody would accept what connects there: ranks would wait for ever.
  if (!held_) {
    return absl::InternalError(
        absl::StrCat("serve keys and values to the ranks: the agent passed no socket for port ",
                     part_.network().rendezvous_port(), " on (is it out of descriptors?)"));
  }
  StoreGate::Hooks hooks;
  hooks.failed = [this](std::string why, bool ended) {
    SendFailure(MakeFailure(v1::NodeFailure::KIND_HELPER, ended ? kExitAgentLost : kExitRendezvous,
                            std::move(why)));
  };
  hooks.warn = [this](std::string text) { Warn(std::move(text), /*detail=*/true); };
  auto gate = StoreGate::Open(loop_, agent_, part_, std::move(held_), std::move(hooks));
  if (!gate.ok()) return gate.status();
  store_ = *std::move(gate);
  return absl::OkStatus();
}

std::vector<Helper*> Shepherd::Helpers() {
  std::vector<Helper*> all;
  if (pmix_) all.push_back(&pmix_->helper());
  if (store_) all.push_back(&store_->helper());
  return all;
}

void Shepherd::SpareHelpers() {
  std::vector<pid_t> pids;
  for (const Helper* helper : Helpers()) pids.push_back(helper->pid());
  sweeper_.Spare(std::move(pids));
}

}  // namespace dtrain::shepherd
