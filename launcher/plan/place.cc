// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/hosts/host_name.h"
#include "launcher/plan/plan.h"
#include "launcher/plan/slots.h"
#include "launcher/plan/tensorflow.h"
#include "rendezvous/barrier_core.h"
#include "rendezvous/rank_table.h"

namespace dtrain::plan {
namespace {

using Counts = std::vector<uint32_t>;

// One node's room: `slots` without --oversubscribe, `most` with it.
struct Room {
  uint32_t slots = 0;
  uint32_t most = hosts::kMaxRanks;
  std::optional<uint32_t> per_node;  // --ppn
};

absl::StatusOr<Room> RoomOf(const hosts::HostEntry& entry, const v1::Inventory* inventory,
                            const PlanOptions& options, std::vector<std::string>& warnings) {
  Room room;
  room.per_node = options.ranks_per_node;
  if (options.per_node) {
    const auto ranks = CountPerNode(entry, *inventory, *options.per_node, options);
    if (!ranks.ok()) return ranks.status();
    room.per_node = *ranks;
  }
  if (options.per_node && (!entry.slots || entry.single_slot)) {
    room.slots = *room.per_node;
  } else {
    const auto slots = SlotsOf(entry, inventory, options, warnings);
    if (!slots.ok()) return slots.status();
    room.slots = *slots;
  }
  if (entry.max_slots) room.most = *entry.max_slots;
  return room;
}

size_t Considered(const hosts::HostList& hosts, const PlanOptions& options) {
  return options.nodes ? std::min<size_t>(*options.nodes, hosts.entries.size())
                       : hosts.entries.size();
}

uint64_t Sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

absl::Status CheckRankfile(const PlanOptions& options) {
  if (options.rankfile.empty()) return absl::OkStatus();
  if (options.ranks && *options.ranks != options.rankfile.size()) {
    return absl::InvalidArgumentError(absl::StrCat("-np ", *options.ranks,
                                                   " contradicts the rankfile, ", "which places ",
                                                   Count(options.rankfile.size(), "rank")));
  }
  if (options.ranks_per_node || options.per_node || options.map_by != MapBy::kSlot) {
    return absl::InvalidArgumentError("--ppn and --map-by contradict a rankfile: leave one out");
  }
  return absl::OkStatus();
}

std::string FormatSlots(const hosts::HostList& hosts, const std::vector<Room>& rooms) {
  std::vector<std::string> each;
  for (size_t i = 0; i < rooms.size(); ++i) {
    each.push_back(absl::StrCat(hosts.entries[i].host, " ", rooms[i].slots));
  }
  return rendezvous::FormatHosts(each);
}

// Raises `capacity` by one per node in turn, as far as each may go, until `total` fits.
bool Extend(const std::vector<Room>& rooms, uint64_t total, Counts& capacity) {
  uint64_t sum = Sum(capacity);
  while (sum < total) {
    const uint64_t before = sum;
    for (size_t i = 0; i < capacity.size() && sum < total; ++i) {
      // A node without a slot for this job stays without ranks.
      if (rooms[i].slots == 0 || capacity[i] >= rooms[i].most) continue;
      ++capacity[i];
      ++sum;
    }
    if (sum == before) return false;
  }
  return true;
}

// What one program may still take, and where.
struct Demand {
  std::optional<uint32_t> ranks;  // none: all there is room for
  std::vector<bool> allowed;      // by host
  std::string name;               // "" or "program 2: "
};

// Room that is left on the hosts where the program may run, raised to what it needs by
// --oversubscribe. The number of its ranks.
absl::StatusOr<uint64_t> Fit(const hosts::HostList& hosts, const std::vector<Room>& rooms,
                             const PlanOptions& options, const Demand& demand, Counts& capacity) {
  std::vector<Room> open = rooms;
  Counts left = capacity;
  for (size_t i = 0; i < rooms.size(); ++i) {
    if (!demand.allowed[i]) open[i].slots = open[i].most = left[i] = 0;
  }
  const uint64_t room = Sum(left);
  const uint64_t total = demand.ranks.value_or(room);
  if (total == 0) return absl::ResourceExhaustedError("no node has room for a rank");
  if (total > hosts::kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        Count(total, "rank"), " in all: a job has at most ", hosts::kMaxRanks, "; use -np"));
  }
  if (total <= room) return total;
  if (options.ranks_per_node || options.per_node) {
    return absl::ResourceExhaustedError(absl::StrCat(
        demand.name, "-np ", total, " does not fit on ", Count(rooms.size(), "node"), " with ",
        options.per_node ? absl::StrCat(Count(room, "rank"), " in all")
                         : absl::StrCat(Count(*options.ranks_per_node, "rank"), " each"),
        " (--ppn): add nodes, or raise --ppn"));
  }
  if (!options.oversubscribe) {
    return absl::ResourceExhaustedError(
        absl::StrCat(demand.name, "-np ", total, " needs ", total - room, " more than the ",
                     Count(room, "slot"), demand.name.empty() ? " there are (" : " left for it (",
                     FormatSlots(hosts, rooms), "): add hosts or slots, or use --oversubscribe"));
  }
  if (!Extend(open, total, left)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        demand.name, "-np ", total, " does not fit, even with --oversubscribe: the host list ",
        "allows ", Sum(left), " (max_slots)"));
  }
  for (size_t i = 0; i < rooms.size(); ++i) capacity[i] = std::max(capacity[i], left[i]);
  return total;
}

// Takes `total` ranks' room and appends where they go, `at_once` on each node in turn.
void Deal(Counts& capacity, const Demand& demand, uint64_t total, uint64_t at_once,
          std::vector<uint32_t>& node_of_rank) {
  const size_t end = node_of_rank.size() + total;
  while (node_of_rank.size() < end) {
    for (uint32_t n = 0; n < capacity.size() && node_of_rank.size() < end; ++n) {
      if (!demand.allowed[n]) continue;
      const uint64_t left = end - node_of_rank.size();
      const uint64_t most = std::min(at_once, left);
      const auto here = static_cast<uint32_t>(std::min<uint64_t>(capacity[n], most));
      node_of_rank.insert(node_of_rank.end(), here, n);
      capacity[n] -= here;
    }
  }
}

absl::StatusOr<std::vector<Demand>> Demands(const hosts::HostList& hosts, size_t considered,
                                            const PlanOptions& options) {
  if (options.programs.empty()) {
    return std::vector<Demand>{{options.ranks, std::vector<bool>(considered, true), ""}};
  }
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < considered; ++i) by_name.emplace(hosts::HostKey(hosts.entries[i].host), i);
  std::vector<Demand> demands;
  for (const ProgramRanks& program : options.programs) {
    Demand& demand = demands.emplace_back();
    demand.ranks = program.ranks;
    demand.name = absl::StrCat("program ", demands.size(), ": ");
    demand.allowed.assign(considered, program.hosts.empty());
    for (const std::string& host : program.hosts) {
      const auto it = by_name.find(hosts::HostKey(host));
      if (it == by_name.end()) {
        return absl::InvalidArgumentError(absl::StrCat(demand.name, "--hosts ", Escape(host),
                                                       ": it is not among the ",
                                                       Count(considered, "node"), " of this job"));
      }
      demand.allowed[it->second] = true;
    }
  }
  return demands;
}

bool Wraps(const PlanOptions& options) {
  return options.ppn_wraps && options.ranks_per_node && options.programs.empty();
}

// Room for so many rounds that `ranks` fit.
void Repeat(uint64_t ranks, Counts& capacity) {
  ranks = std::min<uint64_t>(ranks, hosts::kMaxRanks);
  const uint64_t round = std::max<uint64_t>(Sum(capacity), 1);
  const uint64_t rounds = std::max<uint64_t>((ranks + round - 1) / round, 1);
  for (uint32_t& here : capacity) here = static_cast<uint32_t>(here * rounds);
}

// The host of each rank.
absl::StatusOr<std::vector<uint32_t>> DealAll(const hosts::HostList& hosts,
                                              const std::vector<Room>& rooms,
                                              const PlanOptions& options) {
  const auto demands = Demands(hosts, rooms.size(), options);
  if (!demands.ok()) return demands.status();
  Counts capacity;
  for (const Room& room : rooms) capacity.push_back(room.per_node.value_or(room.slots));
  std::vector<uint32_t> node_of_rank;
  for (const Demand& demand : *demands) {
    if (Wraps(options)) Repeat(demand.ranks.value_or(0), capacity);
    const auto total = Fit(hosts, rooms, options, demand, capacity);
    if (!total.ok()) return total.status();
    const uint64_t at_once = options.map_by == MapBy::kNode ? 1
                             : Wraps(options)               ? *options.ranks_per_node
                                                            : *total;
    Deal(capacity, demand, *total, at_once, node_of_rank);
  }
  return node_of_rank;
}

absl::StatusOr<std::vector<uint32_t>> FromRankfile(const hosts::HostList& hosts, size_t considered,
                                                   const PlanOptions& options) {
  std::map<std::string, uint32_t> by_name;
  for (uint32_t i = 0; i < considered; ++i) {
    by_name.emplace(hosts::HostKey(hosts.entries[i].host), i);
  }
  std::vector<uint32_t> node_of_rank;
  for (const hosts::RankPlace& line : options.rankfile) {
    const auto it = by_name.find(hosts::HostKey(line.host));
    if (it == by_name.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rankfile line ", line.line, ": rank ", line.rank, " is to run on ", line.host,
          ", which is not among the ", Count(considered, "node"), " of this job"));
    }
    node_of_rank.push_back(it->second);
  }
  return node_of_rank;
}

absl::Status CheckRoom(const hosts::HostList& hosts, const std::vector<Room>& rooms,
                       const Counts& counts, bool oversubscribe) {
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > rooms[i].most) {
      return absl::ResourceExhaustedError(
          absl::StrCat(hosts.entries[i].host, ": ", Count(counts[i], "rank"),
                       ", and the host list allows ", rooms[i].most, " (max_slots)"));
    }
    if (counts[i] > rooms[i].slots && !oversubscribe) {
      return absl::ResourceExhaustedError(absl::StrCat(
          hosts.entries[i].host, ": ", Count(counts[i], "rank"), ", but it has ",
          Count(rooms[i].slots, "slot"), ": place fewer there, or use --oversubscribe"));
    }
  }
  return absl::OkStatus();
}

void NamePrograms(const PlanOptions& options, Plan& plan) {
  std::vector<uint32_t> program_of_rank;
  for (uint32_t i = 0; i < options.programs.size(); ++i) {
    program_of_rank.insert(program_of_rank.end(), options.programs[i].ranks, i);
  }
  if (program_of_rank.empty()) return;
  for (PlannedNode& node : plan.nodes) {
    for (v1::WorkerSpec& worker : node.workers) worker.set_program(program_of_rank[worker.rank()]);
  }
}

Plan MakePlan(const hosts::HostList& hosts, const std::vector<Room>& rooms, const Counts& counts,
              std::vector<uint32_t> node_of_rank, const PlanOptions& options) {
  Plan plan;
  std::vector<uint32_t> node_rank(counts.size(), 0);
  std::vector<std::string> idle;
  uint64_t universe = 0;
  for (uint32_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) {
      idle.push_back(hosts.entries[i].host);
      continue;
    }
    node_rank[i] = static_cast<uint32_t>(plan.nodes.size());
    universe += rooms[i].slots;
    plan.nodes.push_back({NodeId(i), hosts.entries[i], rooms[i].slots, {}});
  }
  if (options.nodes && !idle.empty()) {
    plan.warnings.push_back(absl::StrCat("-N ", *options.nodes, ": no rank is left for ",
                                         rendezvous::FormatHosts(idle)));
  }
  for (uint32_t& node : node_of_rank) node = node_rank[node];
  plan.world_size = static_cast<uint32_t>(node_of_rank.size());
  plan.universe_size = static_cast<uint32_t>(std::max<uint64_t>(universe, plan.world_size));
  plan.process_mapping = rendezvous::ProcessMapping(node_of_rank);
  for (const auto& row : rendezvous::MakeRankTable(node_of_rank, plan.nodes.size())) {
    v1::WorkerSpec& worker = plan.nodes[row.node].workers.emplace_back();
    worker.set_rank(row.rank.value());
    worker.set_local_rank(row.local_rank);
    worker.set_cross_rank(row.cross_rank);
    worker.set_cross_size(row.cross_size);
  }
  NamePrograms(options, plan);
  return plan;
}

}  // namespace

absl::Status CheckNumbers(const hosts::HostList& hosts, const PlanOptions& options) {
  if (options.ranks && *options.ranks == 0) {
    return absl::InvalidArgumentError("-np 0: a job has at least one rank");
  }
  if (options.ranks_per_node && *options.ranks_per_node == 0) {
    return absl::InvalidArgumentError("--ppn 0: a node runs at least one rank");
  }
  if (options.nodes && *options.nodes == 0) {
    return absl::InvalidArgumentError("-N 0: a job has at least one node");
  }
  if (options.gpus_per_rank == 0 && options.programs.empty()) {
    return absl::InvalidArgumentError(
        "--gpus-per-rank 0: use --gpu-bind none for ranks without GPU");
  }
  if (options.cores_per_rank && options.cpu_bind == CpuBind::kNone) {
    return absl::InvalidArgumentError("--cores-per-rank and --bind none contradict each other");
  }
  if (options.gpu_bind == GpuBind::kNone) {
    for (const hosts::HostEntry& entry : hosts.entries) {
      if (entry.only_gpus.empty() && entry.without_gpus.empty()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(entry.host,
                       ": --include and --exclude choose GPUs, but --gpu-bind none leaves them to "
                       "the program: use only one of the two"));
    }
  }
  if (options.nodes && *options.nodes > hosts.entries.size()) {
    return absl::InvalidArgumentError(absl::StrCat("-N ", *options.nodes, ": the host list has ",
                                                   Count(hosts.entries.size(), "node")));
  }
  if (options.map_by == MapBy::kPerNode && !options.ranks_per_node) {
    return absl::InvalidArgumentError("--map-by ppr:N:node: N is missing");
  }
  const uint64_t product =
      uint64_t{options.nodes.value_or(1)} * uint64_t{options.ranks_per_node.value_or(1)};
  if (options.ranks && options.nodes && options.ranks_per_node && *options.ranks != product) {
    return absl::InvalidArgumentError(
        absl::StrCat("-np ", *options.ranks, " contradicts ", Count(*options.nodes, "node"),
                     " (-N) with ", Count(*options.ranks_per_node, "rank"),
                     " each (--ppn), which is ", product, ": leave one of the three out"));
  }
  if (options.ranks.value_or(0) > hosts::kMaxRanks || product > hosts::kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job has at most ", hosts::kMaxRanks, " ranks"));
  }
  return CheckRankfile(options);
}

bool NeedsNoInventory(const hosts::HostList& hosts, const PlanOptions& options) {
  if (options.per_node) return false;
  const size_t considered = Considered(hosts, options);
  return std::all_of(
      hosts.entries.begin(), hosts.entries.begin() + considered, [](const hosts::HostEntry& entry) {
        return (entry.slots && entry.without_gpus.empty()) || PromisedGpus(entry).value_or(0) > 0;
      });
}

hosts::HostList NodesToAsk(const hosts::HostList& hosts, const PlanOptions& options) {
  hosts::HostList result = hosts;
  result.entries.resize(Considered(hosts, options));
  return result;
}

absl::StatusOr<Plan> Place(const hosts::HostList& hosts,
                           const std::vector<v1::Inventory>& inventories,
                           const PlanOptions& options) {
  if (absl::Status status = CheckNumbers(hosts, options); !status.ok()) return status;
  const size_t considered = Considered(hosts, options);
  std::vector<std::string> warnings;
  std::vector<Room> rooms;
  for (size_t i = 0; i < considered; ++i) {
    const v1::Inventory* inventory = i < inventories.size() ? &inventories[i] : nullptr;
    const auto room = RoomOf(hosts.entries[i], inventory, options, warnings);
    if (!room.ok()) return room.status();
    rooms.push_back(*room);
  }
  auto node_of_rank = options.rankfile.empty() ? DealAll(hosts, rooms, options)
                                               : FromRankfile(hosts, considered, options);
  if (!node_of_rank.ok()) return node_of_rank.status();
  Counts counts(considered, 0);
  for (uint32_t node : *node_of_rank) ++counts[node];
  const bool beyond_slots = options.oversubscribe || Wraps(options);
  if (absl::Status status = CheckRoom(hosts, rooms, counts, beyond_slots); !status.ok()) {
    return status;
  }
  Plan plan = MakePlan(hosts, rooms, counts, *std::move(node_of_rank), options);
  plan.made_blind = inventories.empty();
  if (!options.tensorflow.empty()) {
    absl::Status assigned = AssignTensorflow(options.tensorflow, plan);
    if (!assigned.ok()) return assigned;
  }
  plan.warnings.insert(plan.warnings.begin(), warnings.begin(), warnings.end());
  return plan;
}

}  // namespace dtrain::plan
