// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/probe_phase.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/exit_code.h"

namespace dtrain::job {
namespace {

// A connect inside one cluster takes well under a millisecond; a lost SYN is sent again after 1 s.
constexpr uint32_t kProbeTimeoutMs = 2500;

}  // namespace

void ProbePhase::Begin() {
  nodes_.clear();
  for (const plan::PlannedNode& node : cluster_.plan().nodes) {
    nodes_.push_back(
        {node.entry.host, &cluster_.view(node.node).inventory, cluster_.node(node.node).reached});
  }
  absl::StatusOr<rendezvous::Candidates> found =
      rendezvous::FindCandidates(nodes_, cluster_.options().net);
  if (!found.ok()) return NoAddress(found.status());
  candidates_ = *std::move(found);
  cluster_.Enter(State::kProbing);
  // First what would be chosen if all worked: mostly it does, and nothing waits for time-outs.
  Send(rendezvous::Preferred(candidates_));
}

// Once in a job, unless the user has chosen.
void ProbePhase::TellChoice(const std::vector<rendezvous::Chosen>& chosen) {
  const bool is_detail = !cluster_.options().net.empty() || cluster_.options().attempt > 0;
  std::string why = rendezvous::WhyChosen(candidates_, chosen);
  if (!why.empty()) out_.Add(Warn{std::move(why), is_detail});
  for (std::string& offer : rendezvous::Offers(nodes_, candidates_)) {
    out_.Add(Warn{std::move(offer), /*detail=*/true});
  }
}

void ProbePhase::NoAddress(const absl::Status& why) {
  const bool by_user = absl::IsInvalidArgument(why);  // --net
  stop_.Stop({.kind = by_user ? Verdict::Kind::kRefused : Verdict::Kind::kNode,
              .exit_code = by_user ? kExitUsage : kExitRendezvous,
              .message = std::string(why.message()),
              .rank = {},
              .signal = 0});
}

void ProbePhase::Send(rendezvous::Candidates probed) {
  probed_ = std::move(probed);
  requests_ = rendezvous::MakeProbeRequests(nodes_, probed_, cluster_.master(),
                                            cluster_.options().probe_token, kProbeTimeoutMs);
  reports_.assign(requests_.size(), {});
  asked_.assign(requests_.size(), false);
  due_ = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].targets().empty()) continue;
    ++due_;
    asked_[i] = true;
    cluster_.SetWaitingFor(cluster_.planned(i), "connections to the other nodes");
    *out_.ToAgent(cluster_.planned(i)).mutable_probe() = requests_[i];
  }
  if (due_ == 0) Finish();
}

absl::Status ProbePhase::OnProbeReport(const Event& event) {
  const AgentMessage& message = OfAgent(event);
  const std::optional<uint32_t> index = cluster_.node(message.node).plan_index;
  if (!index || !asked_[*index]) return absl::InvalidArgumentError("ProbeReport unasked");
  asked_[*index] = false;
  cluster_.SetWaitingFor(message.node, "");
  reports_[*index] = message.event.probe_report();
  if (--due_ == 0) Finish();
  return absl::OkStatus();
}

void ProbePhase::Finish() {
  if (early_faults_.any()) return;  // to be told when they have settled
  absl::StatusOr<std::vector<rendezvous::Chosen>> chosen =
      rendezvous::ChooseAddresses(nodes_, probed_, requests_, reports_);
  if (chosen.ok()) {
    if (!cluster_.options().survey) {
      TellChoice(*chosen);
      return hold_.Begin(*std::move(chosen));
    }
    chosen_ = *std::move(chosen);
    return stop_.Succeed();
  }
  bool all_probed = true;
  for (size_t i = 0; i < probed_.size(); ++i) {
    all_probed = all_probed && probed_[i].size() == candidates_[i].size();
  }
  const bool more = std::any_of(candidates_.begin(), candidates_.end(),
                                [](const auto& mine) { return mine.size() > 1; });
  if (more && !all_probed) return Send(candidates_);
  NoAddress(chosen.status());
}

}  // namespace dtrain::job
