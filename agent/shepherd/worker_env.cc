// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/worker_env.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "agent/shepherd/contracts.h"
#include "agent/shepherd/env_builder.h"
#include "agent/shepherd/node_caches.h"
#include "agent/shepherd/pmix_gate.h"
#include "common/base/env_names.h"
#include "common/base/programs.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {
namespace {

void SetTorchrun(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder* env) {
  int local_size = part.workers_size();
  env->Set("RANK", worker.rank());
  env->Set("WORLD_SIZE", part.world_size());
  env->Set("LOCAL_RANK", worker.local_rank());
  env->Set("LOCAL_WORLD_SIZE", local_size);
  env->Set("GROUP_RANK", part.node_rank());
  env->Set("GROUP_WORLD_SIZE", part.node_count());
  env->Set("NODE_RANK", part.node_rank());
  env->Set("ROLE_NAME", "default");
  env->Set("ROLE_RANK", worker.rank());
  env->Set("ROLE_WORLD_SIZE", part.world_size());
  if (!part.network().master_address().empty()) {
    env->Set("MASTER_ADDR", part.network().master_address());
    env->Set("MASTER_PORT", part.network().master_port());
  }
  env->Set("TORCHELASTIC_RESTART_COUNT", part.attempt());
  env->Set("TORCHELASTIC_MAX_RESTARTS", part.max_restarts());
  env->Set("TORCHELASTIC_RUN_ID", part.job_id());
  // Else rank 0 serves the store itself.
  env->Set("TORCHELASTIC_USE_AGENT_STORE", part.agent_store() ? "True" : "False");
  // One name for torch up to 2.1, one for later; who set either has decided.
  if (!env->Has("NCCL_ASYNC_ERROR_HANDLING") && !env->Has("TORCH_NCCL_ASYNC_ERROR_HANDLING")) {
    env->Set("NCCL_ASYNC_ERROR_HANDLING", 1);
    env->Set("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1);
  }
  if (local_size > 1) env->SetIfUnset("OMP_NUM_THREADS", 1);
}

// DeepSpeed's and Horovod's, by the names without a prefix.
void SetCross(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder* env) {
  env->Set("LOCAL_SIZE", part.workers_size());
  env->Set("CROSS_RANK", worker.cross_rank());
  env->Set("CROSS_SIZE", worker.cross_size());
}

void SetHorovod(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder* env) {
  int local_size = part.workers_size();
  env->Set("HOROVOD_RANK", worker.rank());
  env->Set("HOROVOD_SIZE", part.world_size());
  env->Set("HOROVOD_LOCAL_RANK", worker.local_rank());
  env->Set("HOROVOD_LOCAL_SIZE", local_size);
  env->Set("HOROVOD_CROSS_RANK", worker.cross_rank());
  env->Set("HOROVOD_CROSS_SIZE", worker.cross_size());
  env->Set("HOROVOD_HOSTNAME", part.host());
}

// Open MPI's public names, by which other programs know their rank, too.
void SetOpenMpi(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder* env) {
  int local_size = part.workers_size();
  env->Set("OMPI_COMM_WORLD_SIZE", part.world_size());
  env->Set("OMPI_COMM_WORLD_RANK", worker.rank());
  env->Set("OMPI_COMM_WORLD_LOCAL_SIZE", local_size);
  env->Set("OMPI_COMM_WORLD_LOCAL_RANK", worker.local_rank());
  env->Set("OMPI_COMM_WORLD_NODE_RANK", worker.local_rank());
  // Not OMPI_UNIVERSE_SIZE: an mpirun within the job would take it for a call of its own ranks.
}

void SetPmi(const v1::JobPart& part, const v1::WorkerSpec& worker, const WorkerTies& ties,
            EnvBuilder* env) {
  if (ties.pmi < 0) return;
  env->Set("PMI_FD", ties.pmi);
  env->Set("PMI_RANK", worker.rank());
  env->Set("PMI_SIZE", part.world_size());
  env->Set("PMI_SPAWNED", 0);
  env->Set("MPI_LOCALRANKID", worker.local_rank());
  env->Set("MPI_LOCALNRANKS", part.workers_size());
  // An MPICH built with both PMI-1 and PMI-2 (4.2 and later) chooses by it.
  env->SetIfUnset("MPIR_CVAR_PMI_VERSION", 1);
}

// What libpmix's clients, versions 3 to 6, read in place of what its server would have set for
// them: that is not there yet. The plainest of its stores, as the others need the server's files.
void SetPmix(const v1::JobPart& part, const v1::WorkerSpec& worker, const WorkerTies& ties,
             EnvBuilder* env) {
  const std::string name = PmixName(part);
  env->Set("PMIX_NAMESPACE", name);
  env->Set("PMIX_RANK", worker.rank());
  const std::string uri =
      absl::StrCat(name, "-server.", part.node_rank(), ";tcp4://127.0.0.1:", ties.pmix);
  for (const char* version : {"", "2", "21", "3", "4", "41"}) {
    env->Set(absl::StrCat("PMIX_SERVER_URI", version), uri);
  }
  env->Set("PMIX_SECURITY_MODE", "native");
  env->Set("PMIX_GDS_MODULE", "hash");
  env->Set("PMIX_BFROP_BUFFER_TYPE", "PMIX_BFROP_BUFFER_NON_DESC");
  env->Set("PMIX_HOSTNAME", part.host());
  // Open MPI 4 asks for a server only where a launcher is in sight, and not where a scheduler's
  // variables are.
  env->SetIfUnset("OMPI_MCA_schizo", "^orte,slurm,alps,flux,jsm,moab");
  // Its ranks would keep processors busy, for which others wait, while they wait for those.
  if (ties.traits.crowded) env->SetIfUnset("OMPI_MCA_mpi_oversubscribe", 1);
}

// Horovod's C++ client takes an IPv4 address only.
void SetHorovodGloo(const v1::JobPart& part, EnvBuilder* env) {
  const v1::NodeNetwork& network = part.network();
  if (network.rendezvous_port() == 0 || absl::StrContains(network.master_address(), ":")) return;
  env->Set("HOROVOD_GLOO_RENDEZVOUS_ADDR", network.master_address());
  env->Set("HOROVOD_GLOO_RENDEZVOUS_PORT", network.rendezvous_port());
  env->SetIfUnset("HOROVOD_CONTROLLER", "gloo");
  env->SetIfUnset("HOROVOD_CPU_OPERATIONS", "gloo");
  const std::string& name = network.interface_name();
  env->SetIfUnset("HOROVOD_GLOO_IFACE", name.empty() ? "lo" : name);
}

bool HasProxy(const EnvBuilder& env) {
  return std::any_of(env.vars().begin(), env.vars().end(), [](const auto& var) {
    const std::string name = absl::AsciiStrToLower(var.first);
    return absl::EndsWith(name, "_proxy") && name != "no_proxy" && !var.second.empty();
  });
}

// The numbers are of the round for which the host begins; Horovod itself replaces them in each
// later one. What its ranks say in Python to their host's own server must not go through a proxy.
void SetElastic(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder* env) {
  env->Set("HOROVOD_ELASTIC", 1);
  if (worker.local_rank() < static_cast<size_t>(part.elastic().seats_size())) {
    const v1::Seat& seat = part.elastic().seats(static_cast<int>(worker.local_rank()));
    env->Set("HOROVOD_RANK", seat.rank());
    env->Set("HOROVOD_SIZE", seat.size());
    env->Set("HOROVOD_LOCAL_RANK", seat.local_rank());
    env->Set("HOROVOD_LOCAL_SIZE", seat.local_size());
    env->Set("HOROVOD_CROSS_RANK", seat.cross_rank());
    env->Set("HOROVOD_CROSS_SIZE", seat.cross_size());
  }
  const std::string& door = part.network().master_address();
  if (door.empty() || !HasProxy(*env)) return;
  // A program looks at either, and at the small one first: it must not appear and hide the other.
  const bool small = env->Has("no_proxy"), large = env->Has("NO_PROXY");
  if (small || !large) env->Extend("no_proxy", door);
  if (large || !small) env->Extend("NO_PROXY", door);
}

// JAX asks Open MPI's variables for its rank, and recognises Open MPI by this URI. It computes the
// coordinator's port from the job number as (number / 4096) mod 4096 + 61440; where that can give
// our port, it does, for programs that take the address from there.
std::string HeadNodeUri(const v1::NodeNetwork& network) {
  constexpr uint32_t kFirst = 61440, kStep = 4096;
  uint32_t port = network.coordinator_port();
  // 4096 * 4096 comes out as the first port, and is no 0, which no job has as its number.
  uint32_t number = port > kFirst    ? (port - kFirst) * kStep
                    : port == kFirst ? kStep * kStep
                                     : kStep;
  bool v6 = absl::StrContains(network.master_address(), ":");
  return v6 ? absl::StrCat(number, ".0;tcp6://[", network.master_address(), "]:", port)
            : absl::StrCat(number, ".0;tcp://", network.master_address(), ":", port);
}

void SetJax(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder* env) {
  const v1::NodeNetwork& network = part.network();
  if (!network.master_address().empty() && network.coordinator_port() != 0) {
    bool v6 = absl::StrContains(network.master_address(), ":");
    env->Set("JAX_COORDINATOR_ADDRESS",
             v6 ? absl::StrCat("[", network.master_address(), "]:", network.coordinator_port())
                : absl::StrCat(network.master_address(), ":", network.coordinator_port()));
    env->Set("OMPI_MCA_orte_hnp_uri", HeadNodeUri(network));
  }
  // JAX would take the device numbered local rank: wrong when a worker sees only its own or has
  // several, and too few when it is the only one on its node.
  bool alone = part.workers_size() == 1 && worker.gpu_uuids_size() > 1;
  if (alone) {
    std::vector<int> ids(static_cast<size_t>(worker.gpu_uuids_size()));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i);
    env->SetIfUnset("JAX_LOCAL_DEVICE_IDS", absl::StrJoin(ids, ","));
  } else if (worker.own_gpus_size() > 1 || (worker.narrowed_gpus() && worker.own_gpus_size() > 0)) {
    env->SetIfUnset("JAX_LOCAL_DEVICE_IDS", absl::StrJoin(worker.own_gpus(), ","));
  }
}

void SetGpus(const v1::WorkerSpec& worker, EnvBuilder* env) {
  if (!worker.set_visible_gpus()) return;
  env->Set("CUDA_VISIBLE_DEVICES", absl::StrJoin(worker.gpu_uuids(), ","));
  if (worker.own_gpus_size() > 0) env->Set("DTRAIN_DEVICE", worker.own_gpus(0));
}

void SetNetwork(const v1::JobPart& part, EnvBuilder* env) {
  const std::string& name = part.network().interface_name();
  if (name.empty()) return;
  env->SetIfUnset("NCCL_SOCKET_IFNAME", absl::StrCat("=", name));  // "=": not a prefix
  env->SetIfUnset("GLOO_SOCKET_IFNAME", name);
  env->SetIfUnset("TP_SOCKET_IFNAME", name);
}

// The user does, by any of the names that MPICH reads.
bool NamesMpichInterface(const v1::WorkerSpec& worker, const EnvBuilder& env) {
  for (const char* prefix : {"MPICH_", "MPIR_PARAM_", "MPIR_CVAR_"}) {
    for (const char* name : {"INTERFACE_HOSTNAME", "CH3_INTERFACE_HOSTNAME", "NETWORK_IFACE",
                             "NEMESIS_TCP_NETWORK_IFACE"}) {
      if (env.Has(absl::StrCat(prefix, name))) return true;
    }
  }
  return env.Has(absl::StrCat("MPICH_INTERFACE_HOSTNAME_R", worker.rank()));
}

// For MPICH's ch3:tcp, which looks the text up with gethostbyname: an IPv6 address would end
// MPI_Init, as would one beside the name of an interface.
void SetMpichAddress(const std::string& address, const v1::WorkerSpec& worker, EnvBuilder* env) {
  if (absl::StrContains(address, ':') || NamesMpichInterface(worker, *env)) return;
  env->SetIfUnset("MPIR_CVAR_INTERFACE_HOSTNAME", address);
}

// By itself MPI uses any interface, docker0 too, behind whose address each host meets itself.
void SetMpiNetwork(const v1::JobPart& part, const v1::WorkerSpec& worker, const NodeTraits& node,
                   EnvBuilder* env) {
  const std::string& name = part.network().interface_name();
  const std::string& address = part.network().address();
  if (name.empty() || absl::StartsWith(address, "127.") || address == "::1") return;
  for (const char* who : {"OMPI_MCA_btl_tcp", "OMPI_MCA_oob_tcp", "PRTE_MCA_prte"}) {
    // One of the two only: with both there is no TCP at all.
    if (node.names_networks || env->Has(absl::StrCat(who, "_if_exclude"))) continue;
    env->SetIfUnset(absl::StrCat(who, "_if_include"), name);
  }
  // One whole name, of libfabric's providers over TCP alone.
  for (const char* provider : {"TCP", "SOCKETS"}) {
    env->SetIfUnset(absl::StrCat("FI_", provider, "_IFACE"), name);
  }
  SetMpichAddress(address, worker, env);
  // It would take a faster network away as well.
  if (!node.rdma) env->SetIfUnset("UCX_NET_DEVICES", name);
}

void SetCaches(const std::string& folder, EnvBuilder* env) {
  for (const CacheName& each : kCacheNames) {
    if (env->Has(each.unless)) continue;
    env->SetIfUnset(each.variable, absl::StrCat(folder, "/", each.name));
  }
}

void SetDtrain(const v1::JobPart& part, const v1::WorkerSpec& worker, const WorkerTies& ties,
               EnvBuilder* env) {
  env->Set("DTRAIN_JOB_ID", part.job_id());
  env->Set("DTRAIN_ATTEMPT", part.has_elastic() ? part.elastic().attempt() : part.attempt());
  env->Set(os::kShepherdVariable, ties.shepherd);
  env->Set("DTRAIN_PID_NAMESPACE", ties.pid_namespace);
  // Of an elastic job each worker has a number of its own, as ranks change.
  env->Set("DTRAIN_RANK", part.elastic().first_number() + worker.rank());
  const bool is_seated = part.elastic().seats_size() > 0;
  env->Set("DTRAIN_WORLD_SIZE", is_seated ? part.elastic().seats(0).size() : part.world_size());
  env->Set("DTRAIN_LOCAL_RANK", worker.local_rank());
  env->Set("DTRAIN_LOCAL_SIZE", part.workers_size());
  env->Set("DTRAIN_NODE_RANK", part.node_rank());
  env->Set("DTRAIN_NODE_COUNT", part.node_count());
  env->Set("DTRAIN_HOST", part.host());
  if (!ties.state.empty()) env->Set("DTRAIN_STATE_FOLDER", ties.state);
  if (!part.network().address().empty()) env->Set("DTRAIN_ADDRESS", part.network().address());
}

}  // namespace

WorkerEnv::WorkerEnv(const v1::JobPart& part, const std::vector<std::string>& agent_env)
    : part_(part) {
  std::map<std::string, std::string> vars;
  for (const std::string& entry : agent_env) {
    size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos) continue;
    std::string name = entry.substr(0, equals);
    if (part.inherit_agent_env() || IsHostBound(name)) vars[name] = entry.substr(equals + 1);
  }
  const std::set<std::string> given(part.explicit_env().begin(), part.explicit_env().end());
  for (const v1::EnvVar& var : part.env()) {
    if (given.contains(var.name()) || !IsHostBound(var.name())) vars[var.name()] = var.value();
  }
  std::erase_if(vars, [&](const auto& var) {
    // A script that finds it waits for the peers that it names.
    const bool tensorflow = var.first == "TF_CONFIG" && part.world_size() > 1;
    return (IsScrubbed(var.first) || tensorflow) && !given.contains(var.first);
  });
  for (const v1::Program& program : part.programs()) {
    Common& common = common_.emplace_back(Common{given, vars});
    common.given.insert(program.explicit_env().begin(), program.explicit_env().end());
    for (const v1::EnvVar& var : program.env()) common.vars[var.name()] = var.value();
  }
}

std::vector<std::string> WorkerEnv::Of(const v1::WorkerSpec& worker, const WorkerTies& ties) const {
  const Common& common = common_[worker.program()];
  EnvBuilder env(common.given, common.vars);
  const auto has = [this](auto... contracts) { return (HasContract(part_, contracts) || ...); };
  if (has(v1::CONTRACT_TORCH)) SetTorchrun(part_, worker, &env);
  if (has(v1::CONTRACT_TORCH, v1::CONTRACT_TORCHRUN_AGENT) && !ties.error_file.empty()) {
    env.Set("TORCHELASTIC_ERROR_FILE", ties.error_file);
  }
  // They would be wrong from an elastic job's second round on.
  const bool stays = !part_.has_elastic();
  if (has(v1::CONTRACT_TORCH) || (stays && has(v1::CONTRACT_HOROVOD)))
    SetCross(part_, worker, &env);
  if (has(v1::CONTRACT_HOROVOD)) SetHorovod(part_, worker, &env);
  if (has(v1::CONTRACT_HOROVOD)) SetHorovodGloo(part_, &env);
  if (has(v1::CONTRACT_HOROVOD) && !stays) SetElastic(part_, worker, &env);
  if (has(v1::CONTRACT_MPI, v1::CONTRACT_JAX)) SetOpenMpi(part_, worker, &env);
  if (has(v1::CONTRACT_MPI, v1::CONTRACT_DTRAIN)) SetPmi(part_, worker, ties, &env);
  if (has(v1::CONTRACT_MPI) && ties.pmix != 0) SetPmix(part_, worker, ties, &env);
  if (has(v1::CONTRACT_DTRAIN) && ties.page >= 0) env.Set("DTRAIN_PAGE_FD", ties.page);
  if (has(v1::CONTRACT_JAX)) SetJax(part_, worker, &env);
  if (has(v1::CONTRACT_TENSORFLOW)) SetTensorflow(part_, worker, env);
  if (has(v1::CONTRACT_SLURM)) SetSlurm(part_, worker, env);
  if (has(v1::CONTRACT_SAGEMAKER)) SetSagemaker(part_, worker, env);
  if (has(v1::CONTRACT_TORCHRUN_AGENT)) SetTorchrunAgent(part_, env);
  if (part_.contracts_size() > 0) SetNetwork(part_, &env);
  if (has(v1::CONTRACT_MPI)) SetMpiNetwork(part_, worker, ties.traits, &env);
  SetDtrain(part_, worker, ties, &env);
  SetGpus(worker, &env);
  // A container has a home of its own.
  if (!ties.traits.caches.empty() && !ProgramOf(part_, worker).has_container()) {
    SetCaches(ties.traits.caches, &env);
  }
  env.SetIfUnset("PYTHONUNBUFFERED", 1);
  const std::string& directory = ProgramOf(part_, worker).working_directory();
  if (absl::StartsWith(directory, "/")) env.Set("PWD", directory);
  return env.Take();
}

}  // namespace dtrain::shepherd
