// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/contracts.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtrain::shepherd {
namespace {

std::string JsonText(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// "2(x3),1": how Slurm writes the tasks of nodes.
std::string TasksPerNode(const v1::WholeJob& whole) {
  std::vector<std::string> runs;
  for (int i = 0; i < whole.ranks_size();) {
    int end = i;
    while (end < whole.ranks_size() && whole.ranks(end) == whole.ranks(i)) ++end;
    runs.push_back(end - i > 1 ? absl::StrCat(whole.ranks(i), "(x", end - i, ")")
                               : absl::StrCat(whole.ranks(i)));
    i = end;
  }
  return absl::StrJoin(runs, ",");
}

// Slurm's job ids are numbers. From 1 up to what 31 bits hold.
uint32_t NumberOf(absl::string_view job_id) {
  uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  return hash % 0x7fffffff + 1;
}

}  // namespace

bool HasContract(const v1::JobPart& part, v1::Contract contract) {
  return std::find(part.contracts().begin(), part.contracts().end(), contract) !=
         part.contracts().end();
}

void SetTensorflow(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder& env) {
  env.Set("TF_CONFIG", absl::StrCat("{\"cluster\": ", part.whole().tensorflow_cluster(),
                                    ", \"task\": {\"type\": ", JsonText(worker.tensorflow_type()),
                                    ", \"index\": ", worker.tensorflow_index(), "}}"));
}

void SetSlurm(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder& env) {
  const v1::WholeJob& whole = part.whole();
  const std::string hosts = absl::StrJoin(whole.hosts(), ",");
  const std::string tasks = TasksPerNode(whole);
  env.Set("SLURM_PROCID", worker.rank());
  env.Set("SLURM_LOCALID", worker.local_rank());
  env.Set("SLURM_NODEID", part.node_rank());
  env.Set("SLURMD_NODENAME", part.host());
  for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"}) {
    env.Set(name, part.world_size());
  }
  for (const char* name : {"SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NUM_NODES"}) {
    env.Set(name, part.node_count());
  }
  for (const char* name : {"SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"}) {
    env.Set(name, hosts);
  }
  for (const char* name : {"SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"}) {
    env.Set(name, tasks);
  }
  // As with --ntasks-per-node, which Lightning insists on.
  if (const auto& ranks = whole.ranks();
      !ranks.empty() && std::count(ranks.begin(), ranks.end(), ranks[0]) == ranks.size()) {
    env.Set("SLURM_NTASKS_PER_NODE", ranks[0]);
  }
  // Inside an allocation these are its own.
  env.SetIfUnset("SLURM_JOB_ID", NumberOf(part.job_id()));
  env.SetIfUnset("SLURM_JOBID", NumberOf(part.job_id()));
  env.Set("SLURM_STEP_ID", 0);
  env.Set("SLURM_STEPID", 0);
}

void SetSagemaker(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder& env) {
  std::vector<std::string> quoted;
  for (const std::string& host : part.whole().hosts()) quoted.push_back(JsonText(host));
  const std::string hosts = absl::StrCat("[", absl::StrJoin(quoted, ", "), "]");
  const std::string& interface = part.network().interface_name();
  const int gpus = worker.gpu_uuids_size();
  env.Set("SM_HOSTS", hosts);
  env.Set("SM_CURRENT_HOST", part.host());
  env.Set("SM_NUM_GPUS", gpus);
  env.Set("SM_NETWORK_INTERFACE_NAME", interface.empty() ? "lo" : interface);
  env.Set(
      "SM_TRAINING_ENV",
      absl::StrCat("{\"hosts\": ", hosts, ", \"current_host\": ", JsonText(part.host()),
                   ", \"network_interface_name\": ", JsonText(interface.empty() ? "lo" : interface),
                   ", \"num_gpus\": ", gpus, ", \"job_name\": ", JsonText(part.job_id()), "}"));
}

void SetTorchrunAgent(const v1::JobPart& part, EnvBuilder& env) {
  env.SetIfUnset("PET_NNODES", part.node_count());
  env.SetIfUnset("PET_NODE_RANK", part.node_rank());
  env.SetIfUnset("PET_MASTER_ADDR", part.network().master_address());
  env.SetIfUnset("PET_MASTER_PORT", part.network().master_port());
}

}  // namespace dtrain::shepherd
