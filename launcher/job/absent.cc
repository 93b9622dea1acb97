// SPDX-License-Identifier: Apache-2.0
// --min-nodes: a job on those of its hosts that can be reached. Which ones is settled before
// anything starts; from then on it is all of them or nothing.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {
namespace {

// What torchrun's rendezvous grants to those that come after the least number.
constexpr Duration kLastCall = std::chrono::seconds(30);

}  // namespace

bool JobImpl::MayLeaveOut(NodeId id) const {
  return IsElastic() && !views[id.value()].joined &&
         nodes.size() - failed_early >= options.min_nodes;
}

void JobImpl::LeaveOut(NodeId id, std::string why, int exit_code) {
  At(id).absent = true;
  left_out.push_back({Host(id), std::move(why), exit_code});
  Release(id);
  CheckAllDecided();
}

void JobImpl::TellLeftOut() {
  for (const Fault& fault : left_out) {
    WarnUser(absl::StrCat(fault.host, " is left out (--min-nodes ", options.min_nodes,
                          "): ", fault.text));
  }
  left_out.clear();
}

void JobImpl::PlanLastCall() {
  const bool enough = IsElastic() && barrier.joined() >= options.min_nodes;
  if (enough && last_call_at == kNever) last_call_at = now + kLastCall;
}

// There are enough, and the rest has had its time.
void JobImpl::LastCall() {
  last_call_at = kNever;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (views[i].joined || nodes[i].failed) continue;
    EarlyFault(
        NodeId(i),
        absl::StrCat("it had not joined ", FormatSeconds(kLastCall),
                     " after enough other hosts had; it was waiting for ", views[i].waiting_for),
        kExitRendezvous);
  }
}

absl::StatusOr<plan::Plan> JobImpl::PlaceOnPresent(
    const std::vector<v1::Inventory>& inventories) const {
  hosts::HostList there = hosts;
  there.entries.clear();
  std::vector<v1::Inventory> theirs;
  std::vector<NodeId> ids;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].absent) continue;
    there.entries.push_back(hosts.entries[i]);
    theirs.push_back(inventories[i]);
    ids.emplace_back(i);
  }
  plan::PlanOptions wanted = options.plan;
  if (wanted.nodes) wanted.nodes = std::min<uint32_t>(*wanted.nodes, ids.size());
  absl::StatusOr<plan::Plan> planned = plan::Place(there, theirs, wanted);
  if (!planned.ok()) return planned;
  for (plan::PlannedNode& node : planned->nodes) node.node = ids[node.node.value()];
  return planned;
}

}  // namespace dtrain::job
