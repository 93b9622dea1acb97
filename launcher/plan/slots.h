// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/v1/node.pb.h"
#include "launcher/plan/plan.h"

namespace dtrain::plan {

// Room for workers on one node: the host list's slots; else its GPUs, given or reported, by what a
// rank needs; else the cores it may use. Never above max_slots. `inventory` may be null when
// NeedsNoInventory. Zero with a warning when the node has GPUs, but fewer than one rank needs.
absl::StatusOr<uint32_t> SlotsOf(const hosts::HostEntry& entry, const v1::Inventory* inventory,
                                 const PlanOptions& options, std::vector<std::string>& warnings);

// The number of GPUs that the host list and --include name; none: as many as the node has.
std::optional<uint32_t> PromisedGpus(const hosts::HostEntry& entry);

// The GPUs this job may use on a node: healthy ones, in the order of --include, else by PCI address
// and the first `gpus` when the host list says so.
std::vector<const v1::Gpu*> UsableGpus(const hosts::HostEntry& entry,
                                       const v1::Inventory& inventory);

// "GPU 2 (0000:5e:00.0): lost; GPU 3 (...): MIG mode", empty when all are healthy. With `withheld`
// also those that other jobs have, where FreeOf calls that a fault.
std::string FormatFaults(const v1::Inventory& inventory, bool withheld);

// "8 AMD GPUs, but dtrain assigns only NVIDIA GPUs"; empty: it has none, or others.
std::string FormatAmdGpus(const v1::Inventory& inventory);

// --ppn gpu, cpu or auto: the ranks of this node.
absl::StatusOr<uint32_t> CountPerNode(const hosts::HostEntry& entry, const v1::Inventory& inventory,
                                      PerNode what, const PlanOptions& options);

}  // namespace dtrain::plan
