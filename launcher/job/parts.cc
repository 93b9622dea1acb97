// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/parts.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/job/plan_phase.h"
#include "launcher/plan/free.h"
#include "launcher/plan/tensorflow.h"

namespace dtrain::job {

PartMaker::PartMaker(const Cluster& cluster, MeetingPoints points)
    : cluster_(cluster), points_(std::move(points)) {}

v1::JobPart PartMaker::Common() const {
  const JobOptions& options = cluster_.options();
  const plan::Plan& plan = cluster_.plan();
  v1::JobPart part = options.part;
  part.set_job_id(options.job_id);
  part.set_attempt(options.attempt);
  part.set_node_count(static_cast<uint32_t>(plan.nodes.size()));
  part.set_world_size(plan.world_size);
  part.set_universe_size(plan.universe_size);
  part.set_pmix(HasContract(options, v1::CONTRACT_MPI));
  // The program is a torchrun on each node, and they are one job.
  if (FindLaunchers(options, plan).torchrun_agents) {
    part.add_contracts(v1::CONTRACT_TORCHRUN_AGENT);
  }
  part.set_process_mapping(plan.process_mapping);
  part.set_grace_ms(ToMs(options.grace));
  part.set_grace_limit_ms(ToMs(options.grace_limit));
  part.set_shares_cores(plan::MayShareCores(options.plan));
  part.mutable_network()->set_master_address(points_.addresses[cluster_.master()].ip);
  part.mutable_network()->set_master_port(points_.master_port);
  part.mutable_network()->set_coordinator_port(points_.coordinator_port);
  part.mutable_network()->set_rendezvous_port(points_.rendezvous_port);
  // Empty unless variables of the workers tell of it.
  if (v1::WholeJob whole = Whole(); whole.ByteSizeLong() > 0) {
    *part.mutable_whole() = std::move(whole);
  }
  return part;
}

v1::JobPart PartMaker::OwnOf(size_t plan_index) const {
  const JobOptions& options = cluster_.options();
  const plan::PlannedNode& node = cluster_.plan().nodes[plan_index];
  v1::JobPart part;
  part.set_node_rank(static_cast<uint32_t>(plan_index));
  part.set_host(node.entry.host);
  for (const v1::WorkerSpec& spec : node.workers) {
    v1::WorkerSpec& worker = *part.add_workers();
    worker = spec;
    const bool fed = options.stdin_rank == "all" || options.stdin_rank == absl::StrCat(spec.rank());
    worker.set_stdin_mode(!fed                        ? v1::STDIN_MODE_NULL
                          : options.stdin_is_terminal ? v1::STDIN_MODE_TERMINAL
                                                      : v1::STDIN_MODE_PIPE);
  }
  part.mutable_network()->set_address(points_.addresses[plan_index].ip);
  part.mutable_network()->set_interface_name(points_.addresses[plan_index].interface_name);
  if (plan_index == cluster_.master()) *part.mutable_meeting() = MeetingOfAll();
  return part;
}

// Ranks of other nodes may come from any address of theirs.
v1::Meeting PartMaker::MeetingOfAll() const {
  const plan::Plan& plan = cluster_.plan();
  v1::Meeting meeting;
  if (cluster_.options().part.has_elastic()) {
    const plan::PlannedNode& node = plan.nodes[cluster_.master()];
    meeting.mutable_elastic()->set_host(node.entry.host);
    meeting.mutable_elastic()->set_slots(static_cast<uint32_t>(node.workers.size()));
  }
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    v1::MeetingNode& node = *meeting.add_nodes();
    node.set_host(plan.nodes[i].entry.host);
    node.set_ranks(static_cast<uint32_t>(plan.nodes[i].workers.size()));
    if (i == cluster_.master()) continue;
    for (const v1::Interface& interface :
         cluster_.view(cluster_.planned(i)).inventory.interfaces()) {
      for (const v1::Address& address : interface.addresses()) node.add_addresses(address.ip());
    }
  }
  return meeting;
}

// It is as long as the job is wide.
v1::WholeJob PartMaker::Whole() const {
  const JobOptions& options = cluster_.options();
  const plan::Plan& plan = cluster_.plan();
  v1::WholeJob whole;
  if (HasContract(options, v1::CONTRACT_SLURM) || HasContract(options, v1::CONTRACT_SAGEMAKER)) {
    for (const plan::PlannedNode& node : plan.nodes) {
      whole.add_hosts(node.entry.host);
      whole.add_ranks(static_cast<uint32_t>(node.workers.size()));
    }
  }
  if (!HasContract(options, v1::CONTRACT_TENSORFLOW)) return whole;
  std::vector<std::string> tasks(plan.world_size);
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const std::string& ip = points_.addresses[i].ip;
    const bool v6 = ip.find(':') != std::string::npos;
    for (const v1::WorkerSpec& worker : plan.nodes[i].workers) {
      tasks[worker.rank()] =
          absl::StrCat(v6 ? "[" : "", ip, v6 ? "]:" : ":", points_.ports[i][worker.local_rank()]);
    }
  }
  whole.set_tensorflow_cluster(plan::TensorflowCluster(plan, tasks));
  return whole;
}

}  // namespace dtrain::job
