// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/free.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/cpulist.h"
#include "common/base/programs.h"
#include "common/base/text.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::plan {
namespace {

size_t CountCores(const v1::Inventory& inventory) {
  const auto cpus = ParseCpuList(inventory.allowed_cpus());
  return cpus.ok() ? cpus->size() : 0;
}

// "GPU 0, GPU 1: held by job dtrain-1f of alice; cores 0-3: held by job dtrain-20 of bob"
std::string FormatHeldOn(const v1::Inventory& inventory) {
  std::map<std::string, std::vector<std::string>> gpus;  // by why
  for (const v1::Gpu& gpu : inventory.gpus()) {
    if (!gpu.withheld().empty()) {
      gpus[gpu.withheld()].push_back(absl::StrCat("GPU ", gpu.index()));
    }
  }
  std::vector<std::string> all;
  for (const auto& [why, which] : gpus) {
    all.push_back(absl::StrCat(rendezvous::FormatHosts(which), ": ", Escape(why)));
  }
  for (const v1::HeldCores& cores : inventory.held_cores()) {
    all.push_back(absl::StrCat("cores ", Escape(cores.cpulist(), 256), ": held by ",
                               Escape(cores.holder(), 256)));
  }
  return absl::StrJoin(all, "; ");
}

}  // namespace

bool MayShareCores(const PlanOptions& options) {
  return options.oversubscribe || options.cpu_bind == CpuBind::kNone;
}

v1::Inventory FreeOf(v1::Inventory inventory, const PlanOptions& options) {
  if (options.gpu_bind != GpuBind::kNone) {
    for (v1::Gpu& gpu : *inventory.mutable_gpus()) {
      if (!gpu.withheld().empty() && gpu.fault().empty()) gpu.set_fault(gpu.withheld());
    }
  }
  if (MayShareCores(options)) return inventory;
  const auto allowed = ParseCpuList(inventory.allowed_cpus());
  if (!allowed.ok()) return inventory;
  std::set<int> free(allowed->begin(), allowed->end());
  for (const v1::HeldCores& cores : inventory.held_cores()) {
    const auto held = ParseCpuList(cores.cpulist());
    if (!held.ok()) continue;
    for (int cpu : *held) free.erase(cpu);
  }
  inventory.set_allowed_cpus(FormatCpuList({free.begin(), free.end()}));
  return inventory;
}

absl::Status CheckFreeCores(const Plan& plan, const std::vector<v1::Inventory>& all,
                            const std::vector<v1::Inventory>& free) {
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const size_t workers = plan.nodes[i].workers.size();
    if (workers > 0 && plan.nodes[i].workers[0].gpu_uuids_size() > 0) continue;
    const size_t left = CountCores(free[i]), total = CountCores(all[i]);
    if (left == total || workers <= left || workers > total) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat(plan.nodes[i].entry.host, ": ", Count(workers, "rank"), ", and ", left, " of ",
                     Count(total, "core"), left == 1 ? " is" : " are", " free"));
  }
  return absl::OkStatus();
}

std::string FormatHeld(const hosts::HostList& hosts,
                       const std::vector<v1::Inventory>& inventories) {
  std::map<std::string, std::vector<std::string>> hosts_of;
  for (size_t i = 0; i < inventories.size(); ++i) {
    const std::string held = FormatHeldOn(inventories[i]);
    if (!held.empty()) hosts_of[held].push_back(hosts.entries[i].host);
  }
  std::vector<std::string> all;
  for (const auto& [held, names] : hosts_of) {
    all.push_back(absl::StrCat(rendezvous::FormatHosts(names), ": ", held));
  }
  return absl::StrJoin(all, "; ");
}

v1::Reserve ReserveFor(const PlannedNode& node, const PlanOptions& options) {
  std::set<std::string> gpus;
  std::set<int> cores;
  for (const v1::WorkerSpec& worker : node.workers) {
    if (worker.set_visible_gpus()) {
      gpus.insert(worker.gpu_uuids().begin(), worker.gpu_uuids().end());
    }
    const auto cpus = ParseCpuList(HeldCpus(worker));
    if (cpus.ok()) cores.insert(cpus->begin(), cpus->end());
  }
  v1::Reserve reserve;
  for (const std::string& uuid : gpus) reserve.add_gpu_uuids(uuid);
  if (!MayShareCores(options)) reserve.set_cpulist(FormatCpuList({cores.begin(), cores.end()}));
  return reserve;
}

absl::StatusOr<v1::Reserve> ReserveAll(const hosts::HostEntry& host, const v1::Inventory& inventory,
                                       PlanOptions options) {
  options.ranks.reset();
  options.nodes.reset();
  options.rankfile.clear();
  options.programs.clear();
  options.tensorflow.clear();
  const std::vector<v1::Inventory> all = {inventory}, free = {FreeOf(inventory, options)};
  hosts::HostList one;
  one.entries = {host};
  absl::StatusOr<Plan> plan = Place(one, free, options);
  if (!plan.ok()) return plan.status();
  if (absl::Status cores = CheckFreeCores(*plan, all, free); !cores.ok()) return cores;
  if (absl::Status pinned = Pin(*plan, free, options); !pinned.ok()) return pinned;
  return ReserveFor(plan->nodes.front(), options);
}

}  // namespace dtrain::plan
