// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/plan/plan.h"

namespace dtrain::plan {

class PlanFixture : public testing::Test {
 public:
  hosts::HostEntry& AddHost(const std::string& name, std::optional<uint32_t> slots = std::nullopt) {
    hosts::HostEntry entry;
    entry.host = name;
    entry.slots = slots;
    hosts_.entries.push_back(entry);
    v1::Inventory& inventory = inventories_.emplace_back();
    inventory.set_hostname(name);
    inventory.set_allowed_cpus("0-7");
    return hosts_.entries.back();
  }
  // `count` GPUs on the last host, in reverse PCI order as NVML may list them.
  void AddGpus(uint32_t count) {
    v1::Inventory& inventory = inventories_.back();
    for (uint32_t i = 0; i < count; ++i) {
      v1::Gpu& gpu = *inventory.add_gpus();
      gpu.set_index(i);
      const uint32_t bus = count - i;
      gpu.set_uuid(absl::StrCat("GPU-", bus));
      gpu.set_pci_address(absl::StrCat("0000:0", bus, ":00.0"));
      gpu.set_name("Tesla");
    }
  }
  absl::StatusOr<Plan> PlaceAll() { return Place(hosts_, inventories_, options_); }
  absl::StatusOr<Plan> PlanAll() {
    absl::StatusOr<Plan> plan = PlaceAll();
    if (!plan.ok()) return plan;
    std::vector<v1::Inventory> used;
    for (const PlannedNode& node : plan->nodes) used.push_back(inventories_[node.node.value()]);
    if (absl::Status status = Pin(*plan, used, options_); !status.ok()) return status;
    return plan;
  }
  // "a0 a1 b2": the ranks of each node, by host.
  static std::string Ranks(const absl::StatusOr<Plan>& plan) {
    if (!plan.ok()) return std::string(plan.status().message());
    std::string text;
    for (const PlannedNode& node : plan->nodes) {
      for (const v1::WorkerSpec& worker : node.workers) {
        absl::StrAppend(&text, text.empty() ? "" : " ", node.entry.host, worker.rank());
      }
    }
    return text;
  }
  static std::vector<std::string> Cores(const absl::StatusOr<Plan>& plan, size_t node = 0) {
    if (!plan.ok()) return {std::string(plan.status().message())};
    std::vector<std::string> lists;
    for (const v1::WorkerSpec& worker : plan->nodes[node].workers)
      lists.push_back(worker.cpulist());
    return lists;
  }
  static std::vector<std::string> Gpus(const absl::StatusOr<Plan>& plan, size_t local_rank) {
    if (!plan.ok()) return {std::string(plan.status().message())};
    const auto& uuids = plan->nodes[0].workers.at(local_rank).gpu_uuids();
    return {uuids.begin(), uuids.end()};
  }
  static std::string Message(const absl::StatusOr<Plan>& plan) {
    return plan.ok() ? "ok" : std::string(plan.status().message());
  }

  hosts::HostList hosts_;
  std::vector<v1::Inventory> inventories_;
  PlanOptions options_;
};

}  // namespace dtrain::plan
