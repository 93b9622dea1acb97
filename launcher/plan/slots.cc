// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/slots.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/cpulist.h"
#include "common/base/text.h"

namespace dtrain::plan {
namespace {

absl::StatusOr<uint32_t> FromCores(const hosts::HostEntry& entry, const v1::Inventory& inventory,
                                   const PlanOptions& options) {
  if (options.cores_are_no_limit && options.ranks_per_node) return *options.ranks_per_node;
  const absl::StatusOr<std::vector<int>> cpus = ParseCpuList(inventory.allowed_cpus());
  if (cpus.ok() && !cpus->empty()) {
    auto cores = static_cast<uint32_t>(cpus->size());
    // A container with a quota may use every core of its machine, but not all the time. A
    // number of ranks that the user gives is not limited by that.
    const bool asked = options.ranks || options.ranks_per_node || !options.rankfile.empty();
    if (inventory.cpu_quota() > 0 && !asked) cores = std::min(cores, inventory.cpu_quota());
    return std::max(cores / options.cores_per_rank.value_or(1), 1u);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      entry.host, " does not say which cores it has; give it slots= in the host list"));
}

absl::StatusOr<uint32_t> FromGpus(const hosts::HostEntry& entry, size_t gpus,
                                  const PlanOptions& options, std::vector<std::string>& warnings) {
  const auto slots = static_cast<uint32_t>(gpus / options.gpus_per_rank);
  if (slots == 0) {
    warnings.push_back(absl::StrCat(entry.host, " runs no rank: it has ", Count(gpus, "GPU"),
                                    " and a rank needs ", options.gpus_per_rank,
                                    " (--gpus-per-rank)"));
  }
  return slots;
}

bool Contains(const std::vector<uint32_t>& numbers, uint32_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

// Refuses GPUs that --include or --exclude names and the node does not have.
absl::Status CheckChosen(const hosts::HostEntry& entry, const v1::Inventory& inventory) {
  std::vector<uint32_t> chosen = entry.only_gpus;
  chosen.insert(chosen.end(), entry.without_gpus.begin(), entry.without_gpus.end());
  std::vector<int> numbers;
  for (const v1::Gpu& gpu : inventory.gpus()) numbers.push_back(static_cast<int>(gpu.index()));
  std::sort(numbers.begin(), numbers.end());
  for (uint32_t number : chosen) {
    if (std::binary_search(numbers.begin(), numbers.end(), static_cast<int>(number))) continue;
    const std::string why = Escape(inventory.gpu_error());
    return absl::FailedPreconditionError(
        absl::StrCat(entry.host, " has no GPU ", number, ", which ",
                     entry.only_gpus.empty() ? "--exclude" : "--include", " names: it has ",
                     numbers.empty() ? "none" : absl::StrCat("GPUs ", FormatCpuList(numbers)),
                     why.empty() ? "" : absl::StrCat(" (", why, ")")));
  }
  return absl::OkStatus();
}

// Why a node's GPUs cannot be used; empty: not known.
std::string WhyUnusable(const v1::Inventory& inventory) {
  if (!inventory.gpus().empty()) return FormatFaults(inventory, /*withheld=*/true);
  if (!inventory.gpu_error().empty()) return Escape(inventory.gpu_error());
  return FormatAmdGpus(inventory);
}

absl::StatusOr<uint32_t> Uncapped(const hosts::HostEntry& entry, const v1::Inventory* inventory,
                                  const PlanOptions& options, std::vector<std::string>& warnings) {
  const std::optional<uint32_t> promised = PromisedGpus(entry);
  if (!entry.without_gpus.empty() && (promised || inventory != nullptr)) {
    const size_t left = promised ? *promised : UsableGpus(entry, *inventory).size();
    const auto slots = FromGpus(entry, left, options, warnings);
    return slots.ok() && entry.slots ? std::min(*slots, *entry.slots) : slots;
  }
  if (entry.slots) return *entry.slots;
  if (promised && *promised > 0) return FromGpus(entry, *promised, options, warnings);
  if (inventory == nullptr) {
    return absl::InternalError(absl::StrCat(entry.host, ": slots are not known"));
  }
  if (entry.gpus) return FromCores(entry, *inventory, options);  // gpus=0: a node without any
  const size_t usable = UsableGpus(entry, *inventory).size();
  if (usable > 0) return FromGpus(entry, usable, options, warnings);
  // A GPU node that lost its GPUs, or has AMD's, is not a node with many cores.
  if (options.gpu_bind == GpuBind::kNone) return FromCores(entry, *inventory, options);
  if (const std::string amd = FormatAmdGpus(*inventory); !amd.empty()) {
    const bool placed = options.ranks_per_node || !options.rankfile.empty();
    if (placed) return FromCores(entry, *inventory, options);
    warnings.push_back(absl::StrCat(
        entry.host, " has ", amd,
        ": it has a slot for each; let each rank use the GPU of its LOCAL_RANK, or set slots="));
    return FromGpus(entry, inventory->amd_gpus(), options, warnings);
  }
  const std::string why = WhyUnusable(*inventory);
  if (why.empty()) return FromCores(entry, *inventory, options);
  return absl::FailedPreconditionError(
      absl::StrCat(entry.host, ": none of its GPUs can be used: ", why,
                   "; give it slots= in the host list, or use --gpu-bind none"));
}

}  // namespace

absl::StatusOr<uint32_t> SlotsOf(const hosts::HostEntry& entry, const v1::Inventory* inventory,
                                 const PlanOptions& options, std::vector<std::string>& warnings) {
  if (inventory != nullptr) {
    if (absl::Status chosen = CheckChosen(entry, *inventory); !chosen.ok()) return chosen;
  }
  absl::StatusOr<uint32_t> slots = Uncapped(entry, inventory, options, warnings);
  if (slots.ok() && entry.max_slots) *slots = std::min(*slots, *entry.max_slots);
  return slots;
}

absl::StatusOr<uint32_t> CountPerNode(const hosts::HostEntry& entry, const v1::Inventory& inventory,
                                      PerNode what, const PlanOptions& options) {
  const size_t gpus = UsableGpus(entry, inventory).size();
  const std::string amd = FormatAmdGpus(inventory);
  if (what == PerNode::kCores || (what == PerNode::kAuto && gpus == 0 && amd.empty())) {
    return FromCores(entry, inventory, options);
  }
  if (what == PerNode::kGpusOrOne && inventory.gpus().empty() && inventory.gpu_error().empty() &&
      inventory.amd_gpus() == 0) {
    return 1;
  }
  const size_t all = amd.empty() ? gpus : inventory.amd_gpus();
  const auto ranks = static_cast<uint32_t>(all / std::max(options.gpus_per_rank, 1u));
  if (ranks > 0) return ranks;
  const std::string why = WhyUnusable(inventory);
  return absl::FailedPreconditionError(
      absl::StrCat(entry.host, ": --ppn ", what == PerNode::kAuto ? "auto" : "gpu",
                   " is one rank for each GPU, and ",
                   gpus > 0 ? absl::StrCat(Count(gpus, "GPU"), " can be used, but a rank needs ",
                                           options.gpus_per_rank, " (--gpus-per-rank)")
                            : absl::StrCat("no GPU can be used", why.empty() ? "" : " (", why,
                                           why.empty() ? "" : ")"),
                   ": leave the node out, or give a number"));
}

std::optional<uint32_t> PromisedGpus(const hosts::HostEntry& entry) {
  if (!entry.only_gpus.empty()) return static_cast<uint32_t>(entry.only_gpus.size());
  if (!entry.gpus) return std::nullopt;
  return *entry.gpus - static_cast<uint32_t>(entry.without_gpus.size());
}

std::vector<const v1::Gpu*> UsableGpus(const hosts::HostEntry& entry,
                                       const v1::Inventory& inventory) {
  const auto healthy = [](const v1::Gpu& gpu) {
    return gpu.fault().empty() && !gpu.uuid().empty();
  };
  std::vector<const v1::Gpu*> gpus;
  for (uint32_t number : entry.only_gpus) {
    for (const v1::Gpu& gpu : inventory.gpus()) {
      if (gpu.index() == number && healthy(gpu)) gpus.push_back(&gpu);
    }
  }
  if (!entry.only_gpus.empty()) return gpus;
  // Those that are left out count among the first `gpus`, whatever their health.
  for (const v1::Gpu& gpu : inventory.gpus()) {
    if (healthy(gpu) || Contains(entry.without_gpus, gpu.index())) gpus.push_back(&gpu);
  }
  std::stable_sort(gpus.begin(), gpus.end(), [](const v1::Gpu* a, const v1::Gpu* b) {
    return a->pci_address() < b->pci_address();
  });
  if (entry.gpus && gpus.size() > *entry.gpus) gpus.resize(*entry.gpus);
  std::erase_if(gpus,
                [&](const v1::Gpu* gpu) { return Contains(entry.without_gpus, gpu->index()); });
  return gpus;
}

std::string FormatFaults(const v1::Inventory& inventory, bool withheld) {
  std::string text;
  for (const v1::Gpu& gpu : inventory.gpus()) {
    if (gpu.fault().empty() || (!withheld && !gpu.withheld().empty())) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "GPU ", gpu.index(), " (",
                    Escape(gpu.pci_address(), 32), "): ", Escape(gpu.fault()));
  }
  return text;
}

std::string FormatAmdGpus(const v1::Inventory& inventory) {
  const bool others = !inventory.gpus().empty() || !inventory.gpu_error().empty();
  if (inventory.amd_gpus() == 0 || others) return "";
  return absl::StrCat(Count(inventory.amd_gpus(), "AMD GPU"),
                      ", but dtrain assigns only NVIDIA GPUs");
}

}  // namespace dtrain::plan
