// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/v1/agent.pb.h"
#include "dtrain/v1/node.pb.h"
#include "launcher/plan/plan.h"

// What of the nodes other jobs have left, where agents keep books of that. Pure.
namespace dtrain::plan {

// Cores need not be a job's own.
bool MayShareCores(const PlanOptions& options);

// The inventory without what other jobs have: their GPUs count as faulty, their cores are not
// there, unless they may be shared. With --gpu-bind none GPUs are not looked at.
v1::Inventory FreeOf(v1::Inventory inventory, const PlanOptions& options);

// RESOURCE_EXHAUSTED when a node's workers, that use no GPU, outnumber the cores that are free
// there, and would not if all were. `all` and `free` are parallel to `plan.nodes`.
absl::Status CheckFreeCores(const Plan& plan, const std::vector<v1::Inventory>& all,
                            const std::vector<v1::Inventory>& free);

// "node3: GPU 0, GPU 1: held by job dtrain-1f of alice; cores 0-3: ..." of all nodes where others
// have something; empty: nowhere.
std::string FormatHeld(const hosts::HostList& hosts, const std::vector<v1::Inventory>& inventories);

// What a node's workers are to have for themselves.
v1::Reserve ReserveFor(const PlannedNode& node, const PlanOptions& options);
// What workers would have there if the host were given as many as it takes. RESOURCE_EXHAUSTED and
// the like: others have it.
absl::StatusOr<v1::Reserve> ReserveAll(const hosts::HostEntry& host, const v1::Inventory& inventory,
                                       PlanOptions options);

}  // namespace dtrain::plan
