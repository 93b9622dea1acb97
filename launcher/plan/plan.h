// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/node.pb.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/rankfile.h"

// Where each rank goes and what it is pinned to. Pure.
namespace dtrain::plan {

enum class MapBy { kSlot, kNode, kPerNode };       // --map-by slot | node | ppr:N:node
enum class GpuBind { kNode, kRank, kNone };        // --gpu-bind
enum class CpuBind { kGpu, kNuma, kCore, kNone };  // --bind
// --ppn gpu | cpu | auto: GPUs, else cores; what other launchers default to: GPUs, else one
enum class PerNode { kGpus, kCores, kAuto, kGpusOrOne };

// One of several programs. Its ranks come after those of the programs before it.
struct ProgramRanks {
  uint32_t ranks = 0;
  uint32_t gpus_per_rank = 1;      // 0: its ranks see no GPU
  std::vector<std::string> hosts;  // the only ones it may run on; empty: all
};

// --tf-config: a run of ranks that are tasks of one type; no count: the ranks that are left.
struct TensorflowTasks {
  std::string type;
  std::optional<uint32_t> count;
};

struct PlanOptions {
  std::optional<uint32_t> ranks;           // -np; absent: all slots
  std::optional<uint32_t> ranks_per_node;  // --ppn, also ppr:N:node
  bool ppn_wraps = false;  // with more ranks, each node in turn gets as many again, as by Hydra
  std::optional<PerNode> per_node;  // the same, counted on each node
  std::optional<uint32_t> nodes;    // -N: the first N nodes of the list
  MapBy map_by = MapBy::kSlot;
  std::vector<hosts::RankPlace> rankfile;  // empty: none
  bool oversubscribe = false;              // more ranks than slots, or than GPUs
  bool mps = false;                        // the job's variables name an MPS server
  bool cores_are_no_limit = false;  // --ppn may be above the cores of a node without GPUs or slots=
  uint32_t gpus_per_rank = 1;       // of several programs: the fewest that one with GPUs has
  std::vector<ProgramRanks> programs;       // of a job with several; empty: one, as said above
  std::vector<TensorflowTasks> tensorflow;  // empty: no TF_CONFIG
  std::optional<uint32_t> cores_per_rank;   // --cores-per-rank
  GpuBind gpu_bind = GpuBind::kNode;
  CpuBind cpu_bind = CpuBind::kGpu;
};

struct PlannedNode {
  NodeId node;  // index in the host list
  hosts::HostEntry entry;
  uint32_t slots = 0;
  std::vector<v1::WorkerSpec> workers;  // in local rank order; pins empty before Pin()
};

struct Plan {
  std::vector<PlannedNode> nodes;  // hostfile order; only nodes that run a rank
  uint32_t world_size = 0;
  uint32_t universe_size = 0;   // all slots of those nodes
  std::string process_mapping;  // PMI_process_mapping; empty when it cannot be written
  std::vector<std::string> warnings;
  bool made_blind = false;  // no node was asked: GPUs and cores are not known
};

// Numbers that no answer of a node could make fit. For use before any host is connected to.
absl::Status CheckNumbers(const hosts::HostList& hosts, const PlanOptions& options);

// True when every slot count is known without asking the nodes.
bool NeedsNoInventory(const hosts::HostList& hosts, const PlanOptions& options);

// Nodes the launch must connect to before it can plan: all of them, or the first -N.
hosts::HostList NodesToAsk(const hosts::HostList& hosts, const PlanOptions& options);

// Slots, then ranks. `inventories` is parallel to `hosts`, or empty when NeedsNoInventory. Fails
// with what does not fit, by how much, and the flag that would allow it.
absl::StatusOr<Plan> Place(const hosts::HostList& hosts,
                           const std::vector<v1::Inventory>& inventories,
                           const PlanOptions& options);

// Fills in GPUs and cores of every worker; `inventories` is parallel to `plan.nodes`. Refuses more
// ranks than GPUs on a GPU node unless allowed; a busy GPU is a warning that names the process.
absl::Status Pin(Plan& plan, const std::vector<v1::Inventory>& inventories,
                 const PlanOptions& options);

// The rank table for --dry-run and -v, one row a rank, columns aligned.
std::string FormatRankTable(const Plan& plan);

}  // namespace dtrain::plan
