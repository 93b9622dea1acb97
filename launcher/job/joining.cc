// SPDX-License-Identifier: Apache-2.0
// From the first connection until all workers were told to start: nothing runs yet, so whatever
// fails here is told, and everything let go, at once.
#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/job_core_impl.h"
#include "launcher/plan/free.h"
#include "launcher/plan/tensorflow.h"

namespace dtrain::job {
namespace {

using std::chrono::milliseconds;

// After a node failed: how long the others may stay quiet before all failures are told, so that
// several bad hosts are listed in one message; and for how long in all.
constexpr Duration kQuiet = milliseconds(500);
constexpr Duration kLongestQuiet = std::chrono::seconds(3);

// A connect inside one cluster takes well under a millisecond; a lost SYN is sent again after 1 s.
constexpr uint32_t kProbeTimeoutMs = 2500;

// Master port, JAX coordinator port, and that of the ranks' key-value server.
constexpr uint32_t kPorts = 3;

uint32_t ToMs(Duration duration) {
  const auto ms = std::chrono::duration_cast<milliseconds>(duration).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, UINT32_MAX));
}

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

// Those of rank 0's node that are the job's: for the store, JAX, Horovod. Then one for each rank,
// where ranks need their own.
uint32_t JobImpl::PortsOf(size_t plan_index) const {
  const size_t of_ranks =
      options.plan.tensorflow.empty() ? 0 : the_plan.nodes[plan_index].workers.size();
  return static_cast<uint32_t>(of_ranks + (plan_index == master ? kPorts : 0));
}

void JobImpl::HoldPorts() {
  Enter(State::kHolding);
  ports.assign(the_plan.nodes.size(), {});
  ports_due = 0;
  for (size_t i = 0; i < the_plan.nodes.size(); ++i) {
    const uint32_t count = PortsOf(i);
    if (count == 0) continue;
    const NodeId node = NodeOfPlan(i);
    ++ports_due;
    At(node).asked = true;
    views[node.value()].waiting_for = i == master ? "ports for rank 0" : "ports for its ranks";
    v1::HoldPorts& hold = *SendTo(node).mutable_hold_ports();
    hold.set_count(count);
    // Those that we serve: ranks of other nodes may start first.
    if (i == master) hold.set_listening(options.part.agent_store() ? 2 : 1);
  }
}

void JobImpl::OnPortsHeld(const Event& event) {
  const NodeMessage& message = Message(event);
  Node& node = At(message.node);
  if (!node.asked) return Violation(message.node, "PortsHeld unasked");
  node.asked = false;
  const size_t index = *node.plan_index;
  const auto& held = message.event.ports_held().ports();
  const auto usable = [](uint32_t port) { return port > 0 && port < 65536; };
  const auto count = static_cast<int>(PortsOf(index));
  const bool differ = std::set<uint32_t>(held.begin(), held.end()).size() == PortsOf(index);
  if (held.size() != count || !differ || !std::all_of(held.begin(), held.end(), usable)) {
    return Violation(message.node, "PortsHeld with wrong ports");
  }
  views[message.node.value()].waiting_for.clear();
  std::vector<uint32_t>& mine = ports[index];
  mine.assign(held.begin(), held.end());
  if (index == master) {
    // The last listen.
    const auto front = [&mine] {
      const uint32_t port = mine.front();
      mine.erase(mine.begin());
      return port;
    };
    const auto back = [&mine] {
      const uint32_t port = mine.back();
      mine.pop_back();
      return port;
    };
    rendezvous_port = back();
    master_port = options.part.agent_store() ? back() : front();
    coordinator_port = front();
  }
  --ports_due;
  StartIfReady();
}

void JobImpl::StartIfReady() {
  if (state != State::kHolding || ports_due > 0 || reserves_due > 0 || !faults.empty()) return;
  if (refusals.empty()) return StartAll();
  Busy(FaultsText("another job took these GPUs or cores first:", std::exchange(refusals, {})));
}

v1::JobPart JobImpl::PartOf(size_t plan_index) const {
  const plan::PlannedNode& node = the_plan.nodes[plan_index];
  v1::JobPart part = options.part;
  part.set_job_id(options.job_id);
  part.set_attempt(options.attempt);
  part.set_node_rank(static_cast<uint32_t>(plan_index));
  part.set_node_count(static_cast<uint32_t>(the_plan.nodes.size()));
  part.set_world_size(the_plan.world_size);
  part.set_universe_size(the_plan.universe_size);
  part.set_pmix(HasContract(v1::CONTRACT_MPI));
  if (torchrun_agents) part.add_contracts(v1::CONTRACT_TORCHRUN_AGENT);
  part.set_host(node.entry.host);
  part.set_process_mapping(the_plan.process_mapping);
  part.set_grace_ms(ToMs(options.grace));
  part.set_shares_cores(plan::MayShareCores(options.plan));
  for (const v1::WorkerSpec& spec : node.workers) {
    v1::WorkerSpec& worker = *part.add_workers();
    worker = spec;
    const bool fed = options.stdin_rank == "all" || options.stdin_rank == absl::StrCat(spec.rank());
    worker.set_stdin_mode(fed ? v1::STDIN_MODE_PIPE : v1::STDIN_MODE_NULL);
  }
  part.mutable_network()->set_address(addresses[plan_index].ip);
  part.mutable_network()->set_interface_name(addresses[plan_index].interface_name);
  return part;
}

// Ranks of other nodes may come from any address of theirs.
v1::Meeting JobImpl::MeetingOfAll() const {
  v1::Meeting meeting;
  for (size_t i = 0; i < the_plan.nodes.size(); ++i) {
    v1::MeetingNode& node = *meeting.add_nodes();
    node.set_host(the_plan.nodes[i].entry.host);
    node.set_ranks(static_cast<uint32_t>(the_plan.nodes[i].workers.size()));
    if (i == master) continue;
    for (const v1::Interface& interface : address_nodes[i].inventory->interfaces()) {
      for (const v1::Address& address : interface.addresses()) node.add_addresses(address.ip());
    }
  }
  return meeting;
}

// Empty unless variables of the workers tell of it: it is as long as the job is wide.
v1::WholeJob JobImpl::Whole() const {
  v1::WholeJob whole;
  if (HasContract(v1::CONTRACT_SLURM) || HasContract(v1::CONTRACT_SAGEMAKER)) {
    for (const plan::PlannedNode& node : the_plan.nodes) {
      whole.add_hosts(node.entry.host);
      whole.add_ranks(static_cast<uint32_t>(node.workers.size()));
    }
  }
  if (!HasContract(v1::CONTRACT_TENSORFLOW)) return whole;
  std::vector<std::string> tasks(the_plan.world_size);
  for (size_t i = 0; i < the_plan.nodes.size(); ++i) {
    const std::string& ip = addresses[i].ip;
    const bool v6 = ip.find(':') != std::string::npos;
    for (const v1::WorkerSpec& worker : the_plan.nodes[i].workers) {
      tasks[worker.rank()] =
          absl::StrCat(v6 ? "[" : "", ip, v6 ? "]:" : ":", ports[i][worker.local_rank()]);
    }
  }
  whole.set_tensorflow_cluster(plan::TensorflowCluster(the_plan, tasks));
  return whole;
}

void JobImpl::StartAll() {
  Enter(State::kStarting);
  const v1::WholeJob whole = Whole();
  ReleaseIdle();
  actions.push_back(PlanReady{});
  std::vector<std::string> names;
  for (size_t i = 0; i < the_plan.nodes.size(); ++i) {
    const NodeId id = NodeOfPlan(i);
    names.push_back(Host(id));
    At(id).start_sent = true;
    views[id.value()].waiting_for = "its workers to start";
    v1::JobPart part = PartOf(i);
    part.mutable_network()->set_master_address(addresses[master].ip);
    part.mutable_network()->set_master_port(master_port);
    part.mutable_network()->set_coordinator_port(coordinator_port);
    part.mutable_network()->set_rendezvous_port(rendezvous_port);
    if (i == master) *part.mutable_meeting() = MeetingOfAll();
    if (whole.ByteSizeLong() > 0) *part.mutable_whole() = whole;
    *SendTo(id).mutable_start() = std::move(part);
    actions.push_back(OpenLogs{id});
  }
  fence.emplace(std::move(names));
}

std::string JobImpl::Waiting() const {
  std::vector<rendezvous::MissingNode> missing;
  for (uint32_t i = 0; i < views.size(); ++i) {
    if (views[i].gone || views[i].waiting_for.empty()) continue;
    missing.push_back({NodeId(i), views[i].host, views[i].waiting_for});
  }
  return rendezvous::FormatMissing(missing);
}

void JobImpl::StartTimedOut() {
  const std::string after =
      absl::StrCat("not started within ", FormatSeconds(options.start_timeout),
                   " (--start-timeout), ", StateName(state), ": ");
  std::string message = absl::StrCat(after, "waiting for ", Waiting());
  if (!faults.empty()) absl::StrAppend(&message, "\n", FaultsText("and these failed:", faults));
  Stop({.kind = Verdict::Kind::kStartTimeout,
        .exit_code = kExitRendezvous,
        .message = std::move(message),
        .rank = {},
        .signal = 0});
}

}  // namespace dtrain::job
