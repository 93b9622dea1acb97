// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "launcher/campaign_run.h"
#include "launcher/handover.h"
#include "launcher/prepared_launch.h"
#include "launcher/status/log_tails.h"

namespace dtrain {

// `dtrain detach`: a launch whose workers run becomes a detached job, which a launcher of its own
// takes over from us. Loop thread.
class Detaching {
 public:
  // `spec`: of the job that it becomes, without what is known only then; null: it cannot be
  // detached. `launch` and `campaign` outlive it.
  Detaching(PreparedLaunch& launch, CampaignRun& campaign, std::unique_ptr<v1::Spec> spec);

  // Calls back, perhaps later, with why it cannot.
  void Ask(absl::AnyInvocable<void(absl::Status)> may);
  // Right after that. OK: nothing is shown or decided any more. `shown`: the end of the workers'
  // output.
  absl::Status Detach(const status::LogTails& shown);
  bool is_done() const { return handover_ != nullptr; }
  // Stops the loop once all that was shown is written, or nobody takes it.
  void LeaveLoop();
  // After that: waits until another launcher has the job. Returns the exit code.
  int Finish() { return std::move(*handover_).Finish(launch_.router().LostInFiles()); }

 private:
  absl::Status May() const;
  void KeepOnNodes();
  void OnKept(NodeId node, const std::string& refused);
  void OnNodesLate();
  void Answer(const absl::Status& may);
  uint32_t Attempt() const { return campaign_.attempt().fixed()->options().attempt; }
  const std::string& HostOf(NodeId node) const;

  PreparedLaunch& launch_;
  CampaignRun& campaign_;
  const std::unique_ptr<v1::Spec> spec_;
  // Callers of Ask that wait for the answer.
  std::vector<absl::AnyInvocable<void(absl::Status)>> askers_;
  loop::PatientCall check_;  // of the folder
  std::set<NodeId> unkept_;  // nodes that have yet to say that they keep the job
  uint32_t attempt_ = 0;     // of which they are
  loop::Timer nodes_timer_;
  loop::Timer patience_;  // with our output
  std::unique_ptr<Handover> handover_;
};

}  // namespace dtrain
