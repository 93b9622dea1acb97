// SPDX-License-Identifier: Apache-2.0
// What several jobs on a node have of it: what ours needs is reserved on all nodes before anything
// starts there, and with --wait, what others have is waited for.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/job_core_impl.h"
#include "launcher/plan/free.h"

namespace dtrain::job {
namespace {

// Between two looks at what others have given back.
constexpr Duration kLookPause = std::chrono::seconds(1);

}  // namespace

// Answered while addresses are proven.
void JobImpl::ReserveAll() {
  for (const plan::PlannedNode& node : the_plan.nodes) {
    if (!views[node.node.value()].inventory.reserves()) continue;
    *SendTo(node.node).mutable_reserve() = plan::ReserveFor(node, options.plan);
    At(node.node).reserved = true;
    ++reserves_due;
  }
}

void JobImpl::OnReserved(const Event& event) {
  const NodeMessage& message = Message(event);
  if (reserves_due == 0) return Violation(message.node, "Reserved unasked");
  --reserves_due;
  const std::string& refused = message.event.reserved().refused();
  if (!refused.empty()) {
    refusals.push_back({Host(message.node), Printable(refused), kExitStartAgents});
  }
  StartIfReady();
}

// Other jobs have what we need. What we hold ourselves is given back, so that of two launches that
// want the same nodes one gets them.
void JobImpl::Busy(std::string why) {
  if (options.wait == Duration::zero() || options.dry_run) {
    return Stop({.kind = Verdict::Kind::kRefused,
                 .exit_code = kExitStartAgents,
                 .message = absl::StrCat(why, "\n  wait for it with --wait DURATION"),
                 .rank = {},
                 .signal = 0});
  }
  if (state != State::kConnecting) Enter(State::kConnecting);
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (!std::exchange(nodes[i].reserved, false) || views[i].gone) continue;
    SendTo(NodeId(i)).mutable_reserve();
    ++reserves_due;
  }
  if (wait_until == kNever) wait_until = After(now, options.wait);
  waiting_for_others = true;
  for (NodeView& view : views)
    view.waiting_for = view.gone ? "" : "GPUs or cores that other jobs hold";
  start_by = kNever;
  look_again_at = now + kLookPause;
  if (busy == why) return;
  busy = std::move(why);
  WarnUser(absl::StrCat("waiting, up to ", FormatSeconds(wait_until - now), " (--wait): ", busy));
}

void JobImpl::LookAgain() {
  look_again_at = kNever;
  if (!faults.empty()) return;  // to be told when they have settled
  refusals.clear();
  looks_due = 0;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (views[i].gone || !views[i].inventory.reserves()) continue;
    SendTo(NodeId(i)).mutable_look_again();
    ++looks_due;
  }
}

void JobImpl::OnInventory(const Event& event) {
  const NodeMessage& message = Message(event);
  if (looks_due == 0) return Violation(message.node, "Inventory unasked");
  v1::Inventory& inventory = views[message.node.value()].inventory;
  v1::Inventory seen = message.event.inventory();
  seen.set_probe_port(inventory.probe_port());
  seen.set_probe_reply(inventory.probe_reply());
  inventory = std::move(seen);
  if (--looks_due == 0 && faults.empty()) MakePlan();
}

void JobImpl::WaitTimedOut() {
  Stop({.kind = Verdict::Kind::kRefused,
        .exit_code = kExitStartAgents,
        .message =
            absl::StrCat("not free within ", FormatSeconds(options.wait), " (--wait): ", busy),
        .rank = {},
        .signal = 0});
}

}  // namespace dtrain::job
