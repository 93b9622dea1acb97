// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <utility>

#include "tests/unit/plan/plan_fixture.h"

namespace dtrain::plan {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PlaceTest : public PlanFixture {};

TEST_F(PlaceTest, FillsSlotsInFileOrderAndTakesAllByDefault) {
  AddHost("a", 2);
  AddHost("b", 1);
  const auto plan = PlaceAll();
  EXPECT_EQ(Ranks(plan), "a0 a1 b2");
  EXPECT_EQ(plan->world_size, 3u);
  EXPECT_EQ(plan->universe_size, 3u);
  EXPECT_EQ(plan->nodes[1].workers[0].cross_rank(), 1u);
  EXPECT_EQ(plan->nodes[0].workers[0].cross_size(), 2u);
  EXPECT_EQ(plan->nodes[0].workers[1].cross_size(), 1u);
  EXPECT_EQ(plan->process_mapping, "(vector,(0,1,2),(1,1,1))");
}

TEST_F(PlaceTest, HonoursNpAndLeavesOutNodesWithoutARank) {
  AddHost("a", 2);
  AddHost("b", 2);
  AddHost("c", 2);
  options_.ranks = 3;
  const auto plan = PlaceAll();
  EXPECT_EQ(Ranks(plan), "a0 a1 b2");
  ASSERT_EQ(plan->nodes.size(), 2u);
  EXPECT_EQ(plan->nodes[1].node, NodeId(1));
  EXPECT_EQ(plan->universe_size, 4u);
}

TEST_F(PlaceTest, MapByNodeDealsRoundRobin) {
  AddHost("a", 3);
  AddHost("b", 1);
  AddHost("c", 2);
  options_.map_by = MapBy::kNode;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a3 a5 b1 c2 c4");
}

TEST_F(PlaceTest, PpnPutsThatManyOnEachNode) {
  AddHost("a", 4);
  AddHost("b", 4);
  AddHost("c", 4);
  options_.ranks_per_node = 2;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 b2 b3 c4 c5");
  options_.map_by = MapBy::kPerNode;
  options_.ranks = 3;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 b2");
  options_.ranks = std::nullopt;
  options_.nodes = 2;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 b2 b3");
  options_.map_by = MapBy::kNode;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a2 b1 b3");
}

TEST_F(PlaceTest, TheFirstNodesOfTheListAreUsed) {
  AddHost("a", 1);
  AddHost("b", 1);
  AddHost("c");
  options_.nodes = 2;
  EXPECT_TRUE(NeedsNoInventory(hosts_, options_));
  EXPECT_EQ(NodesToAsk(hosts_, options_).entries.size(), 2u);
  EXPECT_EQ(Ranks(PlaceAll()), "a0 b1");
  options_.nodes = std::nullopt;
  EXPECT_FALSE(NeedsNoInventory(hosts_, options_));
  EXPECT_EQ(NodesToAsk(hosts_, options_).entries.size(), 3u);
}

TEST_F(PlaceTest, ANodeOfTheWishedNumberThatStaysIdleIsWarnedOf) {
  AddHost("a", 4);
  AddHost("b", 4);
  options_.nodes = 2;
  options_.ranks = 4;
  EXPECT_THAT(PlaceAll()->warnings, Contains(AllOf(HasSubstr("-N 2"), HasSubstr("b"))));
}

// A7, A8
TEST_F(PlaceTest, MoreRanksThanSlotsAreRefusedWithTheFlag) {
  AddHost("a", 2);
  AddHost("b", 2);
  options_.ranks = 7;
  EXPECT_THAT(Message(PlaceAll()), AllOf(HasSubstr("3 more"), HasSubstr("4 slots"),
                                         HasSubstr("a 2, b 2"), HasSubstr("--oversubscribe")));
  options_.oversubscribe = true;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 a2 a3 b4 b5 b6");
  EXPECT_EQ(PlaceAll()->universe_size, 7u);
  options_.map_by = MapBy::kNode;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a2 a4 a6 b1 b3 b5");
}

TEST_F(PlaceTest, MaxSlotsHoldEvenThen) {
  AddHost("a", 2).max_slots = 3;
  AddHost("b", 2).max_slots = 2;
  options_.oversubscribe = true;
  options_.ranks = 5;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 a2 b3 b4");
  options_.ranks = 6;
  EXPECT_THAT(Message(PlaceAll()), AllOf(HasSubstr("allows 5"), HasSubstr("max_slots")));
  options_.ranks = std::nullopt;
  options_.ranks_per_node = 3;
  EXPECT_THAT(Message(PlaceAll()), AllOf(HasSubstr("b: 3 ranks"), HasSubstr("max_slots")));
}

// mpiexec.hydra -ppn 2 -n 8 on two hosts.
TEST_F(PlaceTest, RanksBeyondPpnBeginAgainWithTheFirstNodeAsByHydra) {
  AddHost("a", 2);
  AddHost("b");
  options_.ranks_per_node = 2;
  options_.ranks = 7;
  EXPECT_THAT(Message(PlaceAll()), HasSubstr("--ppn"));
  options_.ppn_wraps = true;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 a4 a5 b2 b3 b6");
  options_.ranks = 3;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 b2");
  options_.ranks = std::nullopt;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 b2 b3");
  hosts_.entries[0].max_slots = 2;
  options_.ranks = 8;
  EXPECT_THAT(Message(PlaceAll()), HasSubstr("max_slots"));
}

TEST_F(PlaceTest, PpnAboveTheSlotsIsRefusedWithTheFlag) {
  AddHost("a", 4);
  AddHost("b", 2);
  options_.ranks_per_node = 4;
  EXPECT_THAT(Message(PlaceAll()),
              AllOf(HasSubstr("b: 4 ranks"), HasSubstr("2 slots"), HasSubstr("--oversubscribe")));
  options_.oversubscribe = true;
  EXPECT_EQ(PlaceAll()->world_size, 8u);
}

// A8, A9
TEST_F(PlaceTest, ContradictionsAreErrors) {
  struct Case {
    PlanOptions options;
    std::string part;
  };
  AddHost("a", 4);
  AddHost("b", 4);
  std::vector<Case> cases;
  auto add = [&](const std::string& part) -> PlanOptions& {
    cases.push_back({{}, part});
    return cases.back().options;
  };
  add("-np 0").ranks = 0;
  add("--ppn 0").ranks_per_node = 0;
  add("-N 0").nodes = 0;
  add("--gpus-per-rank 0").gpus_per_rank = 0;
  add("the host list has 2 nodes").nodes = 3;
  add("N is missing").map_by = MapBy::kPerNode;
  {
    PlanOptions& o = add("which is 4");
    o.ranks = 5;
    o.nodes = 2;
    o.ranks_per_node = 2;
  }
  {
    PlanOptions& o = add("does not fit on 2 nodes with 2 ranks each");
    o.ranks = 5;
    o.ranks_per_node = 2;
    o.oversubscribe = true;
  }
  {
    PlanOptions& o = add("-np 9 needs 1 more than the 8 slots");
    o.ranks = 9;
  }
  {
    PlanOptions& o = add("the host list has 2 nodes");
    o.nodes = UINT32_MAX;
    o.ranks_per_node = UINT32_MAX;
  }
  {
    PlanOptions& o = add("contradicts the rankfile");
    o.ranks = 2;
    o.rankfile = {{0, "a", std::nullopt, 1}};
  }
  {
    PlanOptions& o = add("contradict a rankfile");
    o.ranks_per_node = 1;
    o.rankfile = {{0, "a", std::nullopt, 1}};
  }
  for (const Case& c : cases) {
    options_ = c.options;
    const auto plan = PlaceAll();
    EXPECT_FALSE(plan.ok()) << c.part;
    EXPECT_THAT(Message(plan), HasSubstr(c.part));
  }
}

// A8: products and sums that would not fit into 32 bits.
TEST_F(PlaceTest, HugeNumbersAreErrorsAndNoOverflow) {
  AddHost("a", hosts::kMaxSlots);
  AddHost("b", hosts::kMaxSlots);
  options_.oversubscribe = true;
  for (uint32_t huge : {UINT32_MAX, 1u << 31, hosts::kMaxRanks + 1}) {
    options_.ranks = huge;
    options_.ranks_per_node = std::nullopt;
    EXPECT_FALSE(PlaceAll().ok());
    options_.ranks_per_node = huge;
    EXPECT_FALSE(PlaceAll().ok());
    options_.ranks = std::nullopt;
    EXPECT_FALSE(PlaceAll().ok());
    options_.nodes = 2;
    EXPECT_FALSE(PlaceAll().ok());
    options_.nodes = std::nullopt;
  }
  options_.ranks_per_node = std::nullopt;
  options_.gpus_per_rank = UINT32_MAX;
  options_.ranks = 2;
  EXPECT_TRUE(PlaceAll().ok());
}

TEST_F(PlaceTest, SlotsComeFromTheListThenGpusThenCores) {
  AddHost("given", 3);
  AddGpus(2);
  AddHost("list").gpus = 2;
  AddHost("none").gpus = 0;
  AddGpus(4);
  inventories_.back().set_allowed_cpus("0-1,5");
  AddHost("gpus");
  AddGpus(4);
  inventories_.back().mutable_gpus(1)->set_fault("lost");
  AddHost("cores");
  const auto plan = PlaceAll();
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<uint32_t> slots;
  for (const PlannedNode& node : plan->nodes) slots.push_back(node.slots);
  EXPECT_THAT(slots, testing::ElementsAre(3, 2, 3, 3, 8));
}

TEST_F(PlaceTest, ARankThatNeedsSeveralGpusTakesThatManyPerSlot) {
  AddHost("a");
  AddGpus(8);
  AddHost("b");
  AddGpus(1);
  options_.gpus_per_rank = 2;
  const auto plan = PlaceAll();
  EXPECT_EQ(Ranks(plan), "a0 a1 a2 a3");
  EXPECT_THAT(plan->warnings, Contains(AllOf(HasSubstr("b"), HasSubstr("1 GPU"))));
  options_.oversubscribe = true;
  options_.ranks = 5;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 a2 a3 a4");
}

// D13: a GPU node without GPUs is not a node with many cores.
TEST_F(PlaceTest, GpusThatAreThereButUselessAreNotReplacedByCores) {
  AddHost("a");
  AddGpus(1);
  inventories_.back().mutable_gpus(0)->set_fault("MIG mode");
  EXPECT_THAT(Message(PlaceAll()),
              AllOf(HasSubstr("a:"), HasSubstr("MIG mode"), HasSubstr("slots=")));
  inventories_.back().clear_gpus();
  inventories_.back().set_gpu_error("driver mismatch");
  EXPECT_THAT(Message(PlaceAll()), HasSubstr("driver mismatch"));
  options_.gpu_bind = GpuBind::kNone;
  EXPECT_EQ(PlaceAll()->world_size, 8u);
}

TEST_F(PlaceTest, ARankfilePlacesEachRank) {
  AddHost("a", 2);
  AddHost("b", 2);
  options_.rankfile = {
      {0, "b", std::nullopt, 1}, {1, "A", std::nullopt, 2}, {2, "b", std::nullopt, 3}};
  const auto plan = PlaceAll();
  EXPECT_EQ(Ranks(plan), "a1 b0 b2");
  EXPECT_EQ(plan->process_mapping, "(vector,(1,1,1),(0,2,1))");
  options_.rankfile.push_back({3, "b", std::nullopt, 4});
  EXPECT_THAT(Message(PlaceAll()), AllOf(HasSubstr("b: 3 ranks"), HasSubstr("--oversubscribe")));
  options_.rankfile.back().host = "c";
  EXPECT_THAT(Message(PlaceAll()), AllOf(HasSubstr("line 4"), HasSubstr("c")));
}

TEST_F(PlaceTest, NothingIsAskedOfNodesWhoseSlotsAreKnown) {
  AddHost("a", 2);
  AddHost("b").gpus = 1;
  inventories_.clear();
  ASSERT_TRUE(NeedsNoInventory(hosts_, options_));
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 b2");
  hosts_.entries[1].gpus = 0;
  EXPECT_FALSE(NeedsNoInventory(hosts_, options_));
}

TEST_F(PlaceTest, TheTableHasOneAlignedRowARank) {
  AddHost("a", 1);
  AddHost("longer", 1);
  EXPECT_EQ(FormatRankTable(*PlaceAll()),
            "rank  node  host    local  gpus  cores\n"
            "0     0     a       0/1    -     -\n"
            "1     1     longer  0/1    -     -\n");
  inventories_.clear();
  EXPECT_THAT(
      FormatRankTable(*PlaceAll()),
      HasSubstr("-     -\nNo host was asked, because the slots are given; dtrain launch -v"));
}

TEST_F(PlaceTest, AnyPlanThatIsMadeHoldsItsPromises) {
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 rng(seed);
    auto pick = [&](uint32_t below) { return static_cast<uint32_t>(rng() % below); };
    hosts_.entries.clear();
    inventories_.clear();
    options_ = {};
    for (uint32_t i = 0, n = 1 + pick(5); i < n; ++i) {
      hosts::HostEntry& host = AddHost(absl::StrCat("h", i), 1 + pick(4));
      if (pick(3) == 0) host.max_slots = *host.slots + pick(3);
    }
    if (pick(2) == 0) options_.ranks = pick(20);
    if (pick(3) == 0) options_.ranks_per_node = pick(5);
    if (pick(3) == 0) options_.nodes = pick(6);
    if (pick(3) == 0) options_.map_by = MapBy::kNode;
    options_.oversubscribe = pick(2) == 0;
    const auto plan = PlaceAll();
    if (!plan.ok()) {
      ASSERT_FALSE(plan.status().message().empty());
      continue;
    }
    std::vector<bool> seen(plan->world_size);
    for (const PlannedNode& node : plan->nodes) {
      ASSERT_FALSE(node.workers.empty());
      ASSERT_TRUE(options_.oversubscribe || node.workers.size() <= node.slots);
      ASSERT_LE(node.workers.size(), node.entry.max_slots.value_or(1000));
      ASSERT_LE(node.workers.size(), options_.ranks_per_node.value_or(1000));
      for (size_t l = 0; l < node.workers.size(); ++l) {
        ASSERT_EQ(node.workers[l].local_rank(), l);
        ASSERT_FALSE(seen.at(node.workers[l].rank()));
        seen[node.workers[l].rank()] = true;
      }
    }
    ASSERT_EQ(std::count(seen.begin(), seen.end(), true), plan->world_size);
    ASSERT_EQ(plan->nodes[0].workers[0].rank(), 0u);
    ASSERT_EQ(plan->world_size, options_.ranks.value_or(plan->world_size));
    ASSERT_LE(plan->nodes.size(), options_.nodes.value_or(1000));
  }
}

TEST_F(PlaceTest, ProgramsFollowEachOther) {
  AddHost("a", 2);
  AddHost("b", 4);
  options_.programs = {{1, 1, {}}, {4, 1, {}}};
  options_.ranks = 5;
  const auto plan = PlaceAll();
  EXPECT_EQ(Ranks(plan), "a0 a1 b2 b3 b4");
  EXPECT_EQ(plan->nodes[0].workers[0].program(), 0u);
  EXPECT_EQ(plan->nodes[0].workers[1].program(), 1u);
  EXPECT_EQ(plan->nodes[1].workers[2].program(), 1u);
  options_.map_by = MapBy::kNode;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 b2 b3 b4");
  options_.programs[1].ranks = 6;
  options_.ranks = 7;
  EXPECT_THAT(Message(PlaceAll()), HasSubstr("program 2: -np 6 needs 1 more"));
  options_.oversubscribe = true;
  EXPECT_EQ(PlaceAll()->world_size, 7u);
}

TEST_F(PlaceTest, AProgramStaysOnItsHosts) {
  AddHost("a", 2);
  AddHost("b", 2);
  options_.programs = {{2, 1, {"B"}}, {1, 1, {"a"}}};
  options_.ranks = 3;
  EXPECT_EQ(Ranks(PlaceAll()), "a2 b0 b1");
  options_.programs[0].ranks = 3;
  options_.ranks = 4;
  EXPECT_THAT(Message(PlaceAll()), HasSubstr("program 1: -np 3 needs 1 more"));
  options_.oversubscribe = true;
  EXPECT_EQ(Ranks(PlaceAll()), "a3 b0 b1 b2");
  options_.programs[0].hosts = {"c"};
  EXPECT_THAT(Message(PlaceAll()), HasSubstr("--hosts c: it is not among"));
}

TEST_F(PlaceTest, RanksPerNodeAreCountedOnEach) {
  AddHost("a");
  AddGpus(4);
  AddHost("b");
  options_.per_node = PerNode::kAuto;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 a2 a3 b4 b5 b6 b7 b8 b9 b10 b11");
  options_.per_node = PerNode::kCores;
  EXPECT_EQ(PlaceAll()->world_size, 16u);
  options_.per_node = PerNode::kGpus;
  EXPECT_THAT(Message(PlaceAll()), HasSubstr("b: --ppn gpu is one rank for each GPU"));
  hosts_.entries.pop_back();
  inventories_.pop_back();
  EXPECT_EQ(PlaceAll()->world_size, 4u);
  options_.gpus_per_rank = 2;
  EXPECT_EQ(PlaceAll()->world_size, 2u);
  EXPECT_FALSE(NeedsNoInventory(hosts_, options_));
}

// A container with four CPUs of eight.
TEST_F(PlaceTest, AQuotaLimitsTheSlotsThatCoresMake) {
  AddHost("a");
  inventories_[0].set_cpu_quota(4);
  EXPECT_EQ(PlaceAll()->world_size, 4u);
  options_.cores_per_rank = 2;
  EXPECT_EQ(PlaceAll()->world_size, 2u);
  options_.cores_per_rank = std::nullopt;
  options_.ranks = 6;
  EXPECT_EQ(PlaceAll()->world_size, 6u) << "asked for";
  options_.ranks = std::nullopt;
  options_.ranks_per_node = 5;
  EXPECT_EQ(PlaceAll()->world_size, 5u) << "asked for";
  options_.ranks_per_node = std::nullopt;
  options_.per_node = PerNode::kCores;
  EXPECT_EQ(PlaceAll()->world_size, 4u);
  inventories_[0].set_cpu_quota(100);
  EXPECT_EQ(PlaceAll()->world_size, 8u);
  options_.per_node = std::nullopt;
  inventories_[0].set_cpu_quota(4);
  AddGpus(6);
  EXPECT_EQ(PlaceAll()->world_size, 6u);
}

TEST_F(PlaceTest, ANodeWithAmdGpusHasASlotForEach) {
  AddHost("a");
  inventories_[0].set_amd_gpus(4);
  const auto plan = PlaceAll();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->world_size, 4u);
  EXPECT_THAT(plan->warnings,
              ElementsAre(AllOf(HasSubstr("a has 4 AMD GPUs"), HasSubstr("LOCAL_RANK"))));
  options_.ranks = 2;
  EXPECT_EQ(PlaceAll()->world_size, 2u);
  options_.ranks = std::nullopt;
  for (const PerNode what : {PerNode::kGpus, PerNode::kGpusOrOne, PerNode::kAuto}) {
    options_.per_node = what;
    EXPECT_EQ(PlaceAll()->world_size, 4u);
    EXPECT_THAT(PlaceAll()->warnings, IsEmpty()) << "it was asked for";
  }
  options_.per_node = PerNode::kCores;
  EXPECT_EQ(PlaceAll()->world_size, 8u);
  options_.per_node = std::nullopt;
  options_.ranks_per_node = 6;
  EXPECT_EQ(PlaceAll()->world_size, 6u);
  options_.ranks_per_node = std::nullopt;
  hosts_.entries[0].slots = 3;
  EXPECT_EQ(PlaceAll()->world_size, 3u);
  hosts_.entries[0].slots = std::nullopt;
  AddGpus(2);
  EXPECT_EQ(PlaceAll()->world_size, 2u);
}

TEST_F(PlaceTest, ARankForEachGpuOrOne) {
  AddHost("a");
  AddGpus(4);
  AddHost("b");
  options_.per_node = PerNode::kGpusOrOne;
  EXPECT_EQ(Ranks(PlaceAll()), "a0 a1 a2 a3 b4");
  // A node that lost its GPUs is not one without.
  inventories_[1].set_gpu_error("driver hangs");
  EXPECT_THAT(
      Message(PlaceAll()),
      HasSubstr("b: --ppn gpu is one rank for each GPU, and no GPU can be used (driver hangs)"));
}

TEST_F(PlaceTest, CoresAreNoLimitWhereALauncherKnewNone) {
  AddHost("a");
  options_.ranks_per_node = 20;
  EXPECT_THAT(Message(PlaceAll()), HasSubstr("8 slots"));
  options_.cores_are_no_limit = true;
  EXPECT_EQ(PlaceAll()->world_size, 20u);
}

}  // namespace
}  // namespace dtrain::plan
