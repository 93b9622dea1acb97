// SPDX-License-Identifier: Apache-2.0
// From the first connection until all nodes are known to reach each other: nothing runs yet, so
// a failure is reported at once, and every node released.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {
namespace {

using std::chrono::milliseconds;

// After a node failed: how long the others may stay quiet before all failures are told, so that
// several bad hosts are listed in one message; and for how long in all.
constexpr Duration kQuiet = milliseconds(500);
constexpr Duration kLongestQuiet = std::chrono::seconds(3);

// A connect inside one cluster takes well under a millisecond; a lost SYN is sent again after 1 s.
constexpr uint32_t kProbeTimeoutMs = 2500;

}  // namespace

void JobImpl::OnPhase(const Event& event) {
  const auto& phase = std::get<NodePhase>(event);
  views[phase.node.value()].waiting_for = phase.waiting_for;
}

void JobImpl::OnConnected(const Event& event) {
  const NodeId id = std::get<NodeConnected>(event).node;
  Node& node = At(id);
  if (node.connected || node.failed) return;
  node.connected = true;
  node.last_heard = now;
  node.by_stream = std::get<NodeConnected>(event).same_machine;
  views[id.value()].waiting_for = "its inventory";
  // It says that it lives from the Hello on, also while it takes its inventory.
  lease_check_at = std::min(lease_check_at, now + SuspectAfter());
  v1::Hello& hello = *SendTo(id).mutable_hello();
  hello.set_protocol(options.protocol);
  hello.set_build(options.build);
  hello.set_job_id(options.job_id);
  hello.set_attempt(options.attempt);
  hello.set_incarnation(options.incarnation);
  hello.set_lease_ms(ToMs(options.lease));
  hello.set_grace_ms(ToMs(options.grace));
  hello.set_probe_token(options.probe_token);
  hello.set_same_machine(node.by_stream);
  // Without a number of slots the GPUs give it, whether they are used or not.
  const hosts::HostEntry& entry = hosts.entries[id.value()];
  hello.set_no_gpus(options.plan.gpu_bind == plan::GpuBind::kNone && (entry.slots || entry.gpus));
}

absl::Status JobImpl::Join(const NodeMessage& message) {
  const v1::Welcome& welcome = message.event.welcome();
  const v1::Inventory& inventory = welcome.inventory();
  return barrier.Join(message.node, {welcome.job_id(), welcome.attempt(), welcome.incarnation()},
                      {inventory.boot_id(), inventory.network_namespace()});
}

void JobImpl::OnWelcome(const Event& event) {
  const NodeMessage& message = Message(event);
  Node& node = At(message.node);
  NodeView& view = views[message.node.value()];
  if (!node.connected) return Violation(message.node, "Welcome without a Hello");
  if (node.failed) return;
  const v1::Inventory& inventory = message.event.welcome().inventory();
  const absl::Status joined = Join(message);
  if (absl::IsAlreadyExists(joined)) return Refuse(joined);
  if (!joined.ok()) {
    return EarlyFault(message.node, std::string(joined.message()), kExitRendezvous);
  }
  if (view.joined) return;
  view.joined = true;
  view.waiting_for.clear();
  view.inventory = inventory;
  // A resident agent is nobody's child; only a relay to it is.
  if (message.event.welcome().resumable()) node.by_stream = false;
  CompareClocks(message.node, inventory.clock_unix_nanos(), message.received_unix_nanos);
  CheckAllDecided();
}

// A reply that was thought lost. Only the same machine may repeat it.
void JobImpl::OnWelcomeAgain(const Event& event) {
  const NodeMessage& message = Message(event);
  const absl::Status again = Join(message);
  if (again.ok()) return;
  const std::string text = Printable(again.message());
  if (state < State::kStarting) {
    EarlyFault(message.node, text, kExitRendezvous);
  } else {
    LateFault(message.node, text, state == State::kStarting ? kExitRendezvous : kExitAgentLost);
  }
}

void JobImpl::CheckAllDecided() {
  if (barrier.joined() + failed_early < nodes.size()) return PlanLastCall();
  last_call_at = kNever;
  if (faults.empty()) {
    TellLeftOut();
    MakePlan();
  } else {
    ConcludeEarlyFaults();
  }
}

void JobImpl::EarlyFault(NodeId id, std::string text, int exit_code) {
  Node& node = At(id);
  if (node.failed) return;
  node.failed = true;
  if (!views[id.value()].joined) ++failed_early;
  if (MayLeaveOut(id)) return LeaveOut(id, std::move(text), exit_code);
  views[id.value()].waiting_for.clear();
  faults.push_back({Host(id), std::move(text), exit_code});
  if (settle_by == kNever) settle_by = now + kLongestQuiet;
  settle_at = std::min(now + kQuiet, settle_by);
  if (state == State::kConnecting) CheckAllDecided();
}

void JobImpl::ConcludeEarlyFaults() {
  // If the job never starts, nobody was left out of it.
  faults.insert(faults.end(), left_out.begin(), left_out.end());
  left_out.clear();
  const std::string of = absl::StrCat(faults.size(), " of ", Count(nodes.size(), "node"));
  const std::string heading = failed_early > 0
                                  ? absl::StrCat("could not start the agents on ", of, ":")
                                  : absl::StrCat(of, " failed before the start:");
  Stop({.kind = Verdict::Kind::kNode,
        .exit_code = EarlyExitCode(faults),
        .message = FaultsText(heading, faults),
        .rank = {},
        .signal = 0});
}

void JobImpl::OnClosedEarly(const Event& event) {
  const auto& closed = std::get<NodeClosed>(event);
  At(closed.node).connected = false;
  const bool joined = views[closed.node.value()].joined;
  if (joined && HasGivenUsUp(closed) && BlameOwnPause()) return;
  std::string text(closed.why.message());
  if (text.empty()) text = "its agent ended the session before the job started";
  if (joined) text = WithOwnPause(std::move(text));
  int exit_code = closed.unknown_host ? kExitUsage : kExitStartAgents;
  if (closed.not_authorised) exit_code = kExitNotAuthorised;
  EarlyFault(closed.node, Printable(text), exit_code);
}

void JobImpl::OnFailureEarly(const Event& event) {
  const v1::NodeFailure& failure = Message(event).event.failure();
  EarlyFault(Message(event).node, Printable(failure.message()), FailureExitCode(failure));
}

void JobImpl::StartProbing() {
  address_nodes.clear();
  for (const plan::PlannedNode& node : the_plan.nodes) {
    address_nodes.push_back({node.entry.host, &views[node.node.value()].inventory});
  }
  absl::StatusOr<rendezvous::Candidates> found =
      rendezvous::FindCandidates(address_nodes, options.net);
  if (!found.ok()) {
    if (absl::IsInvalidArgument(found.status())) return Refuse(found.status());
    return Stop({.kind = Verdict::Kind::kNode,
                 .exit_code = kExitRendezvous,
                 .message = std::string(found.status().message()),
                 .rank = {},
                 .signal = 0});
  }
  candidates = *std::move(found);
  Enter(State::kProbing);
  // First what would be chosen if all worked: mostly it does, and nothing waits for time-outs.
  SendProbes(rendezvous::Preferred(candidates));
}

void JobImpl::SendProbes(rendezvous::Candidates probe_these) {
  probed = std::move(probe_these);
  probe_requests = rendezvous::MakeProbeRequests(address_nodes, probed, master, options.probe_token,
                                                 kProbeTimeoutMs);
  probe_reports.assign(probe_requests.size(), {});
  answers_due = 0;
  for (size_t i = 0; i < probe_requests.size(); ++i) {
    if (probe_requests[i].targets().empty()) continue;
    ++answers_due;
    At(NodeOfPlan(i)).asked = true;
    views[NodeOfPlan(i).value()].waiting_for = "connections to the other nodes";
    *SendTo(NodeOfPlan(i)).mutable_probe() = probe_requests[i];
  }
  if (answers_due == 0) FinishProbing();
}

void JobImpl::OnProbeReport(const Event& event) {
  const NodeMessage& message = Message(event);
  Node& node = At(message.node);
  if (!node.asked) return Violation(message.node, "ProbeReport unasked");
  node.asked = false;
  views[message.node.value()].waiting_for.clear();
  probe_reports[*node.plan_index] = message.event.probe_report();
  if (--answers_due == 0) FinishProbing();
}

void JobImpl::FinishProbing() {
  if (!faults.empty()) return;  // to be told when they have settled
  absl::StatusOr<std::vector<rendezvous::Chosen>> chosen =
      rendezvous::ChooseAddresses(address_nodes, probed, probe_requests, probe_reports);
  if (chosen.ok()) {
    addresses = *std::move(chosen);
    return HoldPorts();
  }
  const bool more = std::any_of(candidates.begin(), candidates.end(),
                                [](const auto& mine) { return mine.size() > 1; });
  const bool all_probed = std::all_of(probed.begin(), probed.end(), [this](const auto& mine) {
    return mine.size() == candidates[static_cast<size_t>(&mine - probed.data())].size();
  });
  if (more && !all_probed) return SendProbes(candidates);
  Stop({.kind = Verdict::Kind::kNode,
        .exit_code = kExitRendezvous,
        .message = std::string(chosen.status().message()),
        .rank = {},
        .signal = 0});
}

}  // namespace dtrain::job
