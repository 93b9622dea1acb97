// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/cpulist.h"
#include "common/base/text.h"
#include "launcher/plan/cpu_split.h"
#include "launcher/plan/plan.h"
#include "launcher/plan/slots.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::plan {
namespace {

using Gpus = std::vector<const v1::Gpu*>;

// Memory in use without an owner that is worth a word: above what a driver keeps for itself, which
// old ones count as used.
constexpr uint64_t kOwnerless = uint64_t{1} << 30;
// A process with so much of a GPU computes there; what only watches, or waits, has less.
constexpr uint64_t kBusy = uint64_t{1} << 30;
constexpr size_t kMostNamed = 4;

std::string FormatGpu(const v1::Gpu& gpu) {
  return absl::StrCat("GPU ", gpu.index(), " (", Escape(gpu.name(), 64), ", ",
                      Escape(gpu.pci_address(), 32), ")");
}

uint32_t GpusPerRank(const v1::WorkerSpec& worker, const PlanOptions& options) {
  return options.programs.empty() ? options.gpus_per_rank
                                  : options.programs[worker.program()].gpus_per_rank;
}

uint64_t GpusNeeded(const PlannedNode& node, const PlanOptions& options) {
  uint64_t needed = 0;
  for (const v1::WorkerSpec& worker : node.workers) needed += GpusPerRank(worker, options);
  return needed;
}

// "2 ranks with 1 GPU each need 2"; of several programs "3 ranks need 5 GPUs".
std::string FormatNeed(const PlannedNode& node, const PlanOptions& options) {
  const uint64_t needed = GpusNeeded(node, options);
  const std::string ranks = Count(node.workers.size(), "rank");
  if (!options.programs.empty()) return absl::StrCat(ranks, " need ", Count(needed, "GPU"));
  return absl::StrCat(ranks, " with ", Count(options.gpus_per_rank, "GPU"), " each need ", needed);
}

// For "host:22", whose author may have meant a port.
std::string PortHint(const hosts::HostEntry& entry) {
  if (!entry.slots_like_port || !entry.slots) return "";
  return absl::StrCat("; :", *entry.slots, " is a number of slots; for a port use --ssh-port ",
                      *entry.slots);
}

// Refuses what the node's GPUs cannot carry.
absl::Status CheckGpus(const PlannedNode& node, const v1::Inventory& inventory, size_t usable,
                       const PlanOptions& options) {
  if (options.gpu_bind == GpuBind::kNone) return absl::OkStatus();
  const std::string faults = FormatFaults(inventory, /*withheld=*/true);
  const std::string why = faults.empty() ? FormatAmdGpus(inventory) : faults;
  const std::string cause = why.empty() ? "" : absl::StrCat(" (", why, ")");
  const std::optional<uint32_t> promised = PromisedGpus(node.entry);
  if (promised && *promised > usable) {
    const bool included = !node.entry.only_gpus.empty();
    return absl::FailedPreconditionError(
        absl::StrCat(node.entry.host, ": ",
                     included ? absl::StrCat("--include names ", Count(*promised, "GPU"))
                              : absl::StrCat("the host list says gpus=", *node.entry.gpus),
                     ", but ", Count(usable, "GPU"), " can be used", cause,
                     included ? ": choose others" : ": correct gpus=, or use --gpu-bind none"));
  }
  if (node.entry.gpus && *node.entry.gpus == 0) return absl::OkStatus();
  const uint64_t needed = GpusNeeded(node, options);
  if (needed == 0) return absl::OkStatus();
  if (inventory.gpus().empty()) {
    uint32_t most = 0;
    for (const v1::WorkerSpec& worker : node.workers) {
      most = std::max(most, GpusPerRank(worker, options));
    }
    if (most <= 1) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(node.entry.host, " has no GPU", cause, ", and a rank needs ", most,
                     " (--gpus-per-rank): leave the node out, or use --gpu-bind none"));
  }
  if (usable == 0) {
    return absl::FailedPreconditionError(absl::StrCat(node.entry.host,
                                                      ": none of its GPUs can be used", cause,
                                                      ": leave it out, or use --gpu-bind none"));
  }
  if (needed <= usable || options.oversubscribe) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      node.entry.host, ": ", FormatNeed(node, options), ", but ", usable, " can be used", cause,
      ": run fewer ranks there, use --oversubscribe to share GPUs, or --gpu-bind none",
      PortHint(node.entry)));
}

// The positions in the node's list of the GPUs of one worker: those of the workers before it come
// first.
std::vector<size_t> GpusOfWorker(const PlannedNode& node, const v1::WorkerSpec& worker,
                                 size_t count, const PlanOptions& options) {
  const uint32_t per_rank = GpusPerRank(worker, options);
  uint64_t begin = uint64_t{worker.local_rank()} * per_rank;
  if (!options.programs.empty()) {
    begin = 0;
    for (uint32_t i = 0; i < worker.local_rank(); ++i) {
      begin += GpusPerRank(node.workers[i], options);
    }
  }
  std::vector<size_t> own;
  for (uint64_t i = 0; i < std::min<uint64_t>(per_rank, count); ++i) {
    own.push_back((begin + i) % count);
  }
  return own;
}

void BindGpus(PlannedNode& node, const Gpus& gpus, bool has_any, const PlanOptions& options) {
  for (v1::WorkerSpec& worker : node.workers) {
    worker.clear_gpu_uuids();
    worker.clear_own_gpus();
    worker.set_narrowed_gpus(options.gpu_bind == GpuBind::kRank && !gpus.empty());
    worker.set_set_visible_gpus(options.gpu_bind != GpuBind::kNone && has_any);
    if (!worker.set_visible_gpus() || gpus.empty() || GpusPerRank(worker, options) == 0) continue;
    for (size_t own : GpusOfWorker(node, worker, gpus.size(), options)) {
      if (options.gpu_bind == GpuBind::kRank) {
        worker.add_own_gpus(static_cast<uint32_t>(worker.gpu_uuids_size()));
        worker.add_gpu_uuids(gpus[own]->uuid());
      } else {
        worker.add_own_gpus(static_cast<uint32_t>(own));
      }
    }
    if (options.gpu_bind == GpuBind::kRank) continue;
    for (const v1::Gpu* gpu : gpus) worker.add_gpu_uuids(gpu->uuid());
  }
}

// What is to be said of memory that is in use while nobody is seen to use it; empty: nothing.
std::string FormatOwnerless(const v1::Gpu& gpu) {
  uint64_t owned = 0;
  for (const v1::GpuProcess& process : gpu.processes()) {
    if (process.memory_bytes() == 0) return "";  // of unknown size: it may be all
    owned += process.memory_bytes();
  }
  if (gpu.memory_used_bytes() < owned + kOwnerless) return "";
  return absl::StrFormat(
      "%s has %.1f GiB in use by no visible process: by one in another container, or by one that "
      "died and whose memory the driver still holds. Ranks there have that much less; if no one "
      "uses that GPU, reset it (nvidia-smi --gpu-reset -i %u) or leave it out with "
      "CUDA_VISIBLE_DEVICES",
      FormatGpu(gpu), static_cast<double>(gpu.memory_used_bytes() - owned) / (1 << 30),
      gpu.index());
}

// Positions in the node's list: the GPUs that its ranks have for their own.
std::set<size_t> UsedGpus(const PlannedNode& node, const Gpus& gpus, const PlanOptions& options) {
  std::set<size_t> used;
  if (gpus.empty()) return used;
  for (const v1::WorkerSpec& worker : node.workers) {
    for (size_t own : GpusOfWorker(node, worker, gpus.size(), options)) used.insert(own);
  }
  return used;
}

std::string FormatUser(const v1::Gpu& gpu, const v1::GpuProcess& process) {
  const std::string name = process.name().empty() ? "a process" : Escape(process.name(), 64);
  return absl::StrCat(
      FormatGpu(gpu), " is in use by ", name, " (pid ", process.pid(), ", ",
      absl::StrFormat("%.1f GiB", static_cast<double>(process.memory_bytes()) / (1 << 30)), ")");
}

bool IsBusy(const v1::GpuProcess& process) {
  return !process.graphics() && process.memory_bytes() >= kBusy;
}

// Refuses GPUs that somebody computes on: the ranks would fail later, for want of memory, or share
// it without a word.
absl::Status CheckBusy(const PlannedNode& node, const Gpus& gpus, const PlanOptions& options) {
  if (options.gpu_bind == GpuBind::kNone || options.oversubscribe) return absl::OkStatus();
  std::vector<std::string> busy;
  size_t count = 0;
  for (size_t own : UsedGpus(node, gpus, options)) {
    for (const v1::GpuProcess& process : gpus[own]->processes()) {
      if (!IsBusy(process) || ++count > kMostNamed) continue;
      busy.push_back(FormatUser(*gpus[own], process));
    }
  }
  if (busy.empty()) return absl::OkStatus();
  if (count > kMostNamed) busy.push_back(absl::StrCat("and ", count - kMostNamed, " more"));
  return absl::FailedPreconditionError(absl::StrCat(
      node.entry.host, ": ", absl::StrJoin(busy, ", "),
      ": wait until it is free, leave it out with CUDA_VISIBLE_DEVICES, or use --oversubscribe to "
      "share it"));
}

void WarnOfGpus(const PlannedNode& node, const v1::Inventory& inventory, const Gpus& gpus,
                const PlanOptions& options, std::vector<std::string>& warnings) {
  if (options.gpu_bind == GpuBind::kNone) return;
  const std::string& host = node.entry.host;
  if (!inventory.gpu_error().empty()) {
    warnings.push_back(absl::StrCat(host, ": GPUs: ", Escape(inventory.gpu_error())));
  }
  const std::string faults = FormatFaults(inventory, /*withheld=*/false);
  if (!faults.empty()) warnings.push_back(absl::StrCat(host, ": not used: ", faults));
  for (size_t own : UsedGpus(node, gpus, options)) {
    if (const std::string held = FormatOwnerless(*gpus[own]); !held.empty()) {
      warnings.push_back(absl::StrCat(host, ": ", held));
    }
    for (const v1::GpuProcess& process : gpus[own]->processes()) {
      if (process.graphics()) continue;  // a desktop is no news
      warnings.push_back(absl::StrCat(host, ": ", FormatUser(*gpus[own], process)));
    }
  }
}

// CUDA fails in the second process that uses such a GPU, unless the MPS server is the only one.
void WarnOfExclusive(const PlannedNode& node, const Gpus& gpus, const PlanOptions& options,
                     std::vector<std::string>& warnings) {
  if (options.gpu_bind == GpuBind::kNone || options.mps || gpus.empty()) return;
  std::map<size_t, size_t> ranks;  // of each GPU
  for (const v1::WorkerSpec& worker : node.workers) {
    for (size_t own : GpusOfWorker(node, worker, gpus.size(), options)) ++ranks[own];
  }
  for (const auto& [own, count] : ranks) {
    if (count < 2 || !gpus[own]->exclusive_process()) continue;
    warnings.push_back(absl::StrCat(
        node.entry.host, ": ", count, " ranks share ", FormatGpu(*gpus[own]),
        ", whose compute mode EXCLUSIVE_PROCESS admits one process: all but one will fail, unless "
        "MPS runs; nvidia-smi -c DEFAULT admits more"));
  }
}

// All cores of the node, those of other jobs too, in their order.
std::vector<int> AllCores(const v1::Inventory& inventory, const Cores& cores) {
  std::set<int> all(cores.allowed.begin(), cores.allowed.end());
  for (const v1::HeldCores& held : inventory.held_cores()) {
    const auto list = ParseCpuList(held.cpulist());
    if (list.ok()) all.insert(list->begin(), list->end());
  }
  return {all.begin(), all.end()};
}

// The cores near a GPU. Where several jobs may be on the node, its share of them, as other GPUs
// that are near the same will want theirs; none when there are more of those than cores.
absl::StatusOr<std::vector<int>> NearCores(const v1::Gpu& gpu, const v1::Inventory& inventory,
                                           const Cores& cores) {
  auto list = ParseCpuList(gpu.local_cpulist());
  if (!list.ok() || !inventory.reserves()) return list;
  if (list->empty()) list = AllCores(inventory, cores);
  size_t place = 0, count = 0;
  for (const v1::Gpu& other : inventory.gpus()) {
    if (other.local_cpulist() != gpu.local_cpulist()) continue;
    ++count;
    if (other.pci_address() < gpu.pci_address()) ++place;
  }
  const std::vector<int> ordered = CoreByCore(*std::move(list), inventory);
  const size_t size = ordered.size();
  return std::vector<int>(ordered.begin() + size * place / count,
                          ordered.begin() + size * (place + 1) / count);
}

// Shares the cores near each worker's GPUs among the workers that are near the same. False when
// the place of a GPU is not known.
bool BindNearGpus(PlannedNode& node, const v1::Inventory& inventory, const Gpus& gpus,
                  const Cores& cores, const PlanOptions& options) {
  std::map<std::vector<int>, std::vector<v1::WorkerSpec*>> groups;
  for (v1::WorkerSpec& worker : node.workers) {
    std::set<int> near;
    for (size_t own : GpusOfWorker(node, worker, gpus.size(), options)) {
      const auto list = NearCores(*gpus[own], inventory, cores);
      if (!list.ok()) return false;
      near.insert(list->begin(), list->end());
    }
    std::vector<int> mine = Intersect(std::vector<int>(near.begin(), near.end()), cores.allowed);
    if (mine.empty()) return false;
    groups[std::move(mine)].push_back(&worker);
  }
  for (auto& [cpus, workers] : groups) {
    std::vector<std::string> lists = SplitEvenly(CoreByCore(cpus, inventory), workers.size());
    for (size_t i = 0; i < workers.size(); ++i) workers[i]->set_cpulist(std::move(lists[i]));
  }
  return true;
}

// Slots that a host file or an allocation gives stand for shares of the machine. Those that were
// asked for, and those that are only its cores, say nothing of how many cores a rank needs.
bool SlotsAreShares(const PlannedNode& node, const PlanOptions& options) {
  return node.entry.slots && !node.entry.slots_asked && !options.ranks_per_node;
}

bool HaveGpus(const PlannedNode& node) {
  return std::any_of(node.workers.begin(), node.workers.end(),
                     [](const v1::WorkerSpec& worker) { return worker.gpu_uuids_size() > 0; });
}

// The cores for a node's workers to split: all, or, where several jobs may be on the node, those
// of the slots that they take.
std::vector<int> CoresOfSlots(const PlannedNode& node, const v1::Inventory& inventory,
                              const Cores& cores, const PlanOptions& options) {
  std::vector<int> mine = cores.numa_order;
  if (!inventory.reserves() || options.oversubscribe || options.cores_per_rank) return mine;
  if (!SlotsAreShares(node, options) && !HaveGpus(node)) return mine;
  const size_t all = AllCores(inventory, cores).size(), workers = node.workers.size();
  size_t slots = node.entry.slots ? *node.entry.slots : all;
  if (options.ranks_per_node) slots = *options.ranks_per_node;
  const size_t share = slots <= workers ? all : all * workers / slots;
  if (mine.size() > std::max(share, workers)) mine.resize(std::max(share, workers));
  return mine;
}

// --cores-per-rank: of what a worker could have, what none before it has got.
absl::Status TrimCores(PlannedNode& node, const PlanOptions& options) {
  if (!options.cores_per_rank) return absl::OkStatus();
  std::set<int> taken;
  for (v1::WorkerSpec& worker : node.workers) {
    auto cores = ParseCpuList(worker.cpulist());
    if (!cores.ok()) return cores.status();
    std::erase_if(*cores, [&](int core) { return taken.count(core) > 0; });
    if (cores->size() < *options.cores_per_rank) {
      if (options.oversubscribe) continue;
      return absl::ResourceExhaustedError(
          absl::StrCat(node.entry.host, ": a rank needs ", Count(*options.cores_per_rank, "core"),
                       " (--cores-per-rank), and ", Count(cores->size(), "core"),
                       cores->size() == 1 ? " is" : " are", " left for rank ", worker.rank(),
                       ": run fewer ranks there, or ask for fewer cores"));
    }
    cores->resize(*options.cores_per_rank);
    taken.insert(cores->begin(), cores->end());
    worker.set_cpulist(FormatCpuList(*cores));
  }
  return absl::OkStatus();
}

// Ranks that may use what is there count as one core each, so that other jobs fit beside them.
void HoldOneCoreEach(PlannedNode& node, const v1::Inventory& inventory,
                     const PlanOptions& options) {
  if (!inventory.reserves() || options.cores_per_rank || SlotsAreShares(node, options)) return;
  std::set<int> held;
  for (v1::WorkerSpec& worker : node.workers) {
    // Cores near a GPU go with it.
    if (worker.gpu_uuids_size() > 0) continue;
    const auto cores = ParseCpuList(worker.cpulist());
    if (!cores.ok() || cores->size() <= 1) continue;
    // With --bind numa several ranks may use the same.
    const auto own =
        std::find_if(cores->begin(), cores->end(), [&](int core) { return !held.contains(core); });
    const int core = own == cores->end() ? cores->front() : *own;
    held.insert(core);
    worker.set_held_cpulist(absl::StrCat(core));
  }
}

void BindCores(PlannedNode& node, const v1::Inventory& inventory, const Gpus& gpus,
               const Cores& cores, const PlanOptions& options) {
  for (v1::WorkerSpec& worker : node.workers) {
    worker.clear_cpulist();
    worker.clear_held_cpulist();
  }
  if (options.cpu_bind == CpuBind::kNone) return;
  if (options.cpu_bind == CpuBind::kNuma) {
    for (v1::WorkerSpec& worker : node.workers) {
      if (cores.by_numa.empty()) return;
      worker.set_cpulist(FormatCpuList(cores.by_numa[worker.local_rank() % cores.by_numa.size()]));
    }
    return;
  }
  const bool near_gpus = options.cpu_bind == CpuBind::kGpu && options.gpu_bind != GpuBind::kNone;
  if (near_gpus && !gpus.empty()) {
    if (BindNearGpus(node, inventory, gpus, cores, options)) return;
    // Where GPUs are what is shared out, cores keep nobody from them.
    if (inventory.reserves() && !options.cores_per_rank) return;
  }
  std::vector<std::string> lists =
      SplitEvenly(CoresOfSlots(node, inventory, cores, options), node.workers.size());
  for (size_t i = 0; i < lists.size(); ++i) node.workers[i].set_cpulist(std::move(lists[i]));
}

// The rankfile's cores win over any rule.
absl::Status ApplyRankfile(PlannedNode& node, const Cores& cores, const PlanOptions& options) {
  if (options.rankfile.empty()) return absl::OkStatus();
  for (v1::WorkerSpec& worker : node.workers) {
    const hosts::RankPlace& line = options.rankfile[worker.rank()];
    if (!line.cpus) continue;
    const absl::StatusOr<std::vector<int>> wanted = ParseCpuList(*line.cpus);
    if (!wanted.ok()) return wanted.status();
    if (Intersect(*wanted, cores.allowed).size() != wanted->size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rankfile line ", line.line, ": rank ", line.rank, " is to run on cores ", *line.cpus,
          " of ", node.entry.host, ", where cores ", FormatCpuList(cores.allowed), " can be used"));
    }
    worker.set_cpulist(FormatCpuList(*wanted));
    worker.clear_held_cpulist();
  }
  return absl::OkStatus();
}

absl::Status PinNode(PlannedNode& node, const v1::Inventory& inventory, const PlanOptions& options,
                     std::vector<std::string>& warnings) {
  Gpus gpus = UsableGpus(node.entry, inventory);
  if (absl::Status status = CheckGpus(node, inventory, gpus.size(), options); !status.ok()) {
    return status;
  }
  // Where several jobs may be on the node, the workers see no GPU that none of them uses.
  const uint64_t needed = GpusNeeded(node, options);
  if (inventory.reserves() && gpus.size() > needed) gpus.resize(needed);
  const absl::StatusOr<Cores> cores = ReadCores(inventory);
  if (!cores.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        node.entry.host, " reports cores that cannot be read: ", cores.status().message()));
  }
  BindGpus(node, gpus, !inventory.gpus().empty(), options);
  if (absl::Status busy = CheckBusy(node, gpus, options); !busy.ok()) return busy;
  WarnOfGpus(node, inventory, gpus, options, warnings);
  WarnOfExclusive(node, gpus, options, warnings);
  if (node.workers.size() > cores->allowed.size() && !PortHint(node.entry).empty()) {
    warnings.push_back(absl::StrCat(node.entry.host, ": ", node.workers.size(), " ranks on ",
                                    Count(cores->allowed.size(), "core"), PortHint(node.entry)));
  }
  BindCores(node, inventory, gpus, *cores, options);
  if (absl::Status trimmed = TrimCores(node, options); !trimmed.ok()) return trimmed;
  HoldOneCoreEach(node, inventory, options);
  return ApplyRankfile(node, *cores, options);
}

// The node's only slot leaves GPUs idle, and no flag asked for so few ranks.
bool HasIdleGpus(const PlannedNode& node, const v1::Inventory& inventory,
                 const PlanOptions& options) {
  // --include has GPUs in place of slots.
  if (!node.entry.single_slot || !node.entry.slots) return false;
  if (options.gpu_bind == GpuBind::kNone || options.gpus_per_rank > 1) return false;
  if (options.ranks || options.ranks_per_node || options.per_node || !options.rankfile.empty() ||
      !options.programs.empty()) {
    return false;
  }
  return UsableGpus(node.entry, inventory).size() > 1;
}

void WarnOfIdleGpus(const Plan& plan, const std::vector<v1::Inventory>& inventories,
                    const PlanOptions& options, std::vector<std::string>& warnings) {
  std::vector<std::string> idle;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    if (HasIdleGpus(plan.nodes[i], inventories[i], options)) {
      idle.push_back(plan.nodes[i].entry.host);
    }
  }
  if (idle.empty()) return;
  warnings.push_back(absl::StrCat(
      rendezvous::FormatHosts(idle),
      ": one rank on a node with several GPUs, because the allocation has one slot there; for a "
      "rank on each GPU, request more slots (PBS: mpiprocs=) or use --ppn gpu; --ppn 1 ends this "
      "warning"));
}

}  // namespace

absl::Status Pin(Plan& plan, const std::vector<v1::Inventory>& inventories,
                 const PlanOptions& options) {
  size_t without_gpus = 0;
  std::string first_without;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    absl::Status status = PinNode(plan.nodes[i], inventories[i], options, plan.warnings);
    if (!status.ok()) return status;
    if (!inventories[i].gpus().empty()) continue;
    if (without_gpus++ == 0) first_without = plan.nodes[i].entry.host;
  }
  if (without_gpus > 0 && without_gpus < plan.nodes.size() && options.gpu_bind != GpuBind::kNone) {
    plan.warnings.push_back(
        absl::StrCat(first_without,
                     without_gpus == 1 ? std::string(" has")
                                       : absl::StrCat(" and ", without_gpus - 1, " more have"),
                     " no GPU, but the other nodes do"));
  }
  WarnOfIdleGpus(plan, inventories, options, plan.warnings);
  return absl::OkStatus();
}

}  // namespace dtrain::plan
