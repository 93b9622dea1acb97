// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/reserve_phase.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/node_rank.h"
#include "launcher/job/outcome.h"
#include "launcher/plan/free.h"

namespace dtrain::job {
namespace {

// Between two looks at what others have given back.
constexpr Duration kLookPause = std::chrono::seconds(1);

Verdict NotFree(std::string message) {
  return {.kind = Verdict::Kind::kRefused,
          .exit_code = kExitStartAgents,
          .message = std::move(message),
          .rank = {},
          .signal = 0};
}

}  // namespace

void ReservePhase::Begin() {
  for (const plan::PlannedNode& node : cluster_.plan().nodes) {
    if (!cluster_.view(node.node).inventory.reserves()) continue;
    v1::Reserve& reserve = *out_.ToAgent(node.node).mutable_reserve();
    reserve = plan::ReserveFor(node, cluster_.options().plan);
    reserve.set_node_rank(static_cast<uint32_t>(&node - cluster_.plan().nodes.data()));
    reserved_[node.node.value()] = true;
    ++due_;
  }
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    if (cluster_.is_spare(NodeId(i))) ReserveSpare(NodeId(i));
  }
}

// What ranks could have there. Nothing waits for the answer.
void ReservePhase::ReserveSpare(NodeId node) {
  const v1::Inventory& inventory = cluster_.view(node).inventory;
  if (!inventory.reserves()) return;
  auto reserve =
      plan::ReserveAll(cluster_.hosts().entries[node.value()], inventory, cluster_.options().plan);
  if (!reserve.ok()) return TellUnreserved(node, reserve.status().message());
  spare_owes_[node.value()] = true;
  reserve->set_node_rank(kNoNodeRank);
  *out_.ToAgent(node).mutable_reserve() = *std::move(reserve);
}

void ReservePhase::TellUnreserved(NodeId node, absl::string_view why) {
  out_.Warn(
      absl::StrCat("nothing is reserved on ", cluster_.host(node), ", which is a spare: ", why));
}

absl::Status ReservePhase::OnReserved(const AgentMessage& message) {
  const std::string& refused = message.event.reserved().refused();
  if (cluster_.is_spare(message.node)) {
    if (!spare_owes_[message.node.value()]) {
      return absl::InvalidArgumentError("Reserved unasked");
    }
    spare_owes_[message.node.value()] = false;
    if (!refused.empty()) TellUnreserved(message.node, Printable(refused));
    return absl::OkStatus();
  }
  if (due_ == 0) return absl::InvalidArgumentError("Reserved unasked");
  --due_;
  if (!refused.empty()) {
    refusals_.Add(message.node, Printable(refused), kExitStartAgents);
  }
  return absl::OkStatus();
}

bool ReservePhase::IsRefused() {
  if (refusals_.empty()) return false;
  std::string why = refusals_.Text("another job took these GPUs or cores first:", cluster_);
  refusals_.Clear();
  Busy(std::move(why));
  return true;
}

// What we hold ourselves is given back, so that of two launches that want the same nodes one gets
// them.
void ReservePhase::Busy(std::string why) {
  const JobOptions& options = cluster_.options();
  if (options.wait == Duration::zero() || options.dry_run) {
    return stop_.Stop(NotFree(absl::StrCat(why, "\n  wait for it with --wait DURATION")));
  }
  if (cluster_.state() != State::kConnecting) cluster_.Enter(State::kConnecting);
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    const NodeId node(i);
    const bool gone = cluster_.view(node).gone;
    cluster_.SetWaitingFor(node, gone ? "" : "GPUs or cores that other jobs hold");
    if (!reserved_[i]) continue;
    reserved_[i] = false;
    if (gone) continue;
    out_.ToAgent(node).mutable_reserve();
    ++due_;
  }
  const TimePoint now = cluster_.now();
  if (wait_until_ == kNever) wait_until_ = After(now, options.wait);
  is_waiting_ = true;
  start_limit_.Suspend();
  look_again_at_ = now + kLookPause;
  if (busy_ == why) return;
  busy_ = std::move(why);
  out_.Warn(
      absl::StrCat("waiting, up to ", FormatSeconds(wait_until_ - now), " (--wait): ", busy_));
}

void ReservePhase::LookAgain() {
  look_again_at_ = kNever;
  if (early_faults_.any()) return;  // to be told when they have settled
  refusals_.Clear();
  looks_due_ = 0;
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    const NodeView& view = cluster_.view(NodeId(i));
    if (view.gone || !view.inventory.reserves()) continue;
    out_.ToAgent(NodeId(i)).mutable_look_again();
    ++looks_due_;
  }
}

absl::Status ReservePhase::OnInventory(const AgentMessage& message) {
  if (looks_due_ == 0) return absl::InvalidArgumentError("Inventory unasked");
  --looks_due_;
  const v1::Inventory& before = cluster_.view(message.node).inventory;
  v1::Inventory seen = message.event.inventory();
  seen.set_probe_port(before.probe_port());
  seen.set_probe_reply(before.probe_reply());
  cluster_.SetInventory(message.node, std::move(seen));
  return absl::OkStatus();
}

void ReservePhase::StopWaiting() {
  if (!std::exchange(is_waiting_, false)) return;
  start_limit_.Restart();
  look_again_at_ = kNever;
  for (uint32_t i = 0; i < cluster_.size(); ++i) cluster_.SetWaitingFor(NodeId(i), "");
}

TimePoint ReservePhase::LookAt() const {
  return cluster_.state() == State::kConnecting ? look_again_at_ : kNever;
}

TimePoint ReservePhase::NextDeadline() const {
  return is_waiting_ ? std::min(LookAt(), wait_until_) : LookAt();
}

void ReservePhase::OnDeadline() {
  if (is_waiting_ && cluster_.now() >= wait_until_) WaitTimedOut();
  if (cluster_.now() >= LookAt()) LookAgain();
}

void ReservePhase::WaitTimedOut() {
  stop_.Stop(NotFree(absl::StrCat("not free within ", FormatSeconds(cluster_.options().wait),
                                  " (--wait): ", busy_)));
}

}  // namespace dtrain::job
