// SPDX-License-Identifier: Apache-2.0
// From the proven addresses until all workers were told to start: held ports, and what each node is
// told.
#include <algorithm>
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

// Master port, JAX coordinator port, and that of the ranks' key-value server.
constexpr uint32_t kPorts = 3;

}  // namespace

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
