// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/plan/plan_fixture.h"

namespace dtrain::plan {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;

class PinTest : public PlanFixture {
 public:
  void SetCores(const std::string& allowed, const std::vector<std::string>& numa) {
    v1::Inventory& inventory = inventories_.back();
    inventory.set_allowed_cpus(allowed);
    inventory.clear_numa_nodes();
    for (size_t i = 0; i < numa.size(); ++i) {
      v1::NumaNode& node = *inventory.add_numa_nodes();
      node.set_id(static_cast<uint32_t>(i));
      node.set_cpulist(numa[i]);
    }
  }
  // By PCI order.
  void SetNear(const std::vector<std::string>& lists) {
    for (v1::Gpu& gpu : *inventories_.back().mutable_gpus()) {
      gpu.set_local_cpulist(lists.at(static_cast<size_t>(gpu.uuid().back() - '1')));
    }
  }
};

TEST_F(PinTest, EveryWorkerSeesTheNodesGpusInPciOrder) {
  AddHost("a");
  AddGpus(3);
  const auto plan = PlanAll();
  for (size_t l = 0; l < 3; ++l) {
    EXPECT_THAT(Gpus(plan, l), ElementsAre("GPU-1", "GPU-2", "GPU-3"));
    EXPECT_THAT(plan->nodes[0].workers[l].own_gpus(), ElementsAre(l));
    EXPECT_TRUE(plan->nodes[0].workers[l].set_visible_gpus());
    EXPECT_FALSE(plan->nodes[0].workers[l].narrowed_gpus());
  }
}

TEST_F(PinTest, AmongTheNodesGpusEachWorkerHasItsOwn) {
  AddHost("a", 3);
  AddGpus(5);
  options_.gpus_per_rank = 2;
  options_.oversubscribe = true;
  const auto plan = PlanAll();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->nodes[0].workers[0].own_gpus(), ElementsAre(0, 1));
  EXPECT_THAT(plan->nodes[0].workers[1].own_gpus(), ElementsAre(2, 3));
  EXPECT_THAT(plan->nodes[0].workers[2].own_gpus(), ElementsAre(4, 0));
}

TEST_F(PinTest, BindRankGivesEachItsOwn) {
  AddHost("a");
  AddGpus(4);
  options_.gpu_bind = GpuBind::kRank;
  options_.gpus_per_rank = 2;
  const auto plan = PlanAll();
  EXPECT_THAT(Gpus(plan, 0), ElementsAre("GPU-1", "GPU-2"));
  EXPECT_THAT(Gpus(plan, 1), ElementsAre("GPU-3", "GPU-4"));
  for (const v1::WorkerSpec& worker : plan->nodes[0].workers) {
    EXPECT_THAT(worker.own_gpus(), ElementsAre(0, 1));
    EXPECT_TRUE(worker.narrowed_gpus());
  }
}

TEST_F(PinTest, BindNoneLeavesTheVariableAlone) {
  AddHost("a", 9);
  AddGpus(2);
  options_.gpu_bind = GpuBind::kNone;
  const auto plan = PlanAll();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->nodes[0].workers[0].set_visible_gpus());
  EXPECT_THAT(Gpus(plan, 0), IsEmpty());
  EXPECT_THAT(plan->nodes[0].workers[0].own_gpus(), IsEmpty());
}

TEST_F(PinTest, TheHostListMayKeepGpusFromTheJob) {
  AddHost("a").gpus = 2;
  AddGpus(4);
  EXPECT_THAT(Gpus(PlanAll(), 0), ElementsAre("GPU-1", "GPU-2"));
  hosts_.entries[0].gpus = 0;
  const auto plan = PlanAll();
  EXPECT_THAT(Gpus(plan, 0), IsEmpty());
  EXPECT_TRUE(plan->nodes[0].workers[0].set_visible_gpus());  // to none
  EXPECT_FALSE(plan->nodes[0].workers[0].narrowed_gpus());
}

// A7
TEST_F(PinTest, MoreRanksThanGpusAreRefusedWithTheFlagsThatPermitIt) {
  AddHost("a", 4);
  AddGpus(3);
  inventories_.back().mutable_gpus(0)->set_fault("fell off the bus");
  EXPECT_THAT(Message(PlanAll()), AllOf(HasSubstr("a: 4 ranks"), HasSubstr("2 can be used"),
                                        HasSubstr("fell off the bus"), HasSubstr("--oversubscribe"),
                                        HasSubstr("--gpu-bind none")));
  options_.oversubscribe = true;
  EXPECT_THAT(Gpus(PlanAll(), 3), ElementsAre("GPU-1", "GPU-2"));
  options_.gpu_bind = GpuBind::kRank;
  EXPECT_THAT(Gpus(PlanAll(), 3), ElementsAre("GPU-2"));
  options_.oversubscribe = false;
  options_.gpu_bind = GpuBind::kNone;
  EXPECT_TRUE(PlanAll().ok());
}

TEST_F(PinTest, GpusPerRankCountEvenWhenHuge) {
  AddHost("a", 2);
  AddGpus(3);
  options_.gpus_per_rank = 2;
  EXPECT_THAT(Message(PlanAll()), HasSubstr("need 4"));
  options_.gpus_per_rank = UINT32_MAX;
  EXPECT_THAT(Message(PlanAll()), HasSubstr("need 8589934590"));
  options_.oversubscribe = true;
  options_.gpu_bind = GpuBind::kRank;
  EXPECT_EQ(Gpus(PlanAll(), 1).size(), 3u);
}

// D13
TEST_F(PinTest, GpusThatTheListPromisesButTheNodeLacksAreRefused) {
  AddHost("a").gpus = 4;
  AddGpus(3);
  EXPECT_THAT(Message(PlanAll()), AllOf(HasSubstr("gpus=4"), HasSubstr("3 GPUs")));
  inventories_[0].clear_gpus();
  EXPECT_THAT(Message(PlanAll()), HasSubstr("0 GPUs"));
}

TEST_F(PinTest, ANodeWithoutGpusRunsRanksUnlessTheyNeedSeveral) {
  AddHost("a", 2);
  EXPECT_TRUE(PlanAll().ok());
  EXPECT_FALSE(PlanAll()->nodes[0].workers[0].set_visible_gpus());
  options_.gpus_per_rank = 2;
  EXPECT_THAT(Message(PlanAll()), HasSubstr("a has no GPU"));
}

// D14: what a dead job left, as the next one sees it.
TEST_F(PinTest, MemoryInUseByNobodyIsAWarning) {
  AddHost("a", 1);
  AddGpus(2);
  v1::Gpu& gpu = *inventories_[0].mutable_gpus(1);
  gpu.set_memory_used_bytes(5ull << 30);
  v1::GpuProcess& desktop = *gpu.add_processes();
  desktop.set_pid(1);
  desktop.set_memory_bytes(1ull << 30);
  desktop.set_graphics(true);
  auto plan = PlanAll();
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->warnings,
              ElementsAre(AllOf(HasSubstr("a: GPU 1 (Tesla, 0000:01:00.0) has 4.0 GiB in use"),
                                HasSubstr("CUDA_VISIBLE_DEVICES"))));
  desktop.set_memory_bytes(0);  // not known: it may be the one
  plan = PlanAll();
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->warnings, ElementsAre());
}

// D13
TEST_F(PinTest, ABusyGpuIsRefusedWithTheProcessAndTheFlagThatPermitsIt) {
  AddHost("a", 1);
  AddGpus(2);
  for (v1::Gpu& gpu : *inventories_[0].mutable_gpus()) {
    v1::GpuProcess& process = *gpu.add_processes();
    process.set_pid(4711);
    process.set_name("py\x1b");
    process.set_memory_bytes(3ull << 30);
  }
  // Only the GPU of the one rank: the other is not touched.
  const char kUse[] = "a: GPU 1 (Tesla, 0000:01:00.0) is in use by py\\x1b (pid 4711, 3.0 GiB)";
  EXPECT_THAT(Message(PlanAll()), AllOf(::testing::StartsWith(kUse), HasSubstr("--oversubscribe")));
  options_.oversubscribe = true;
  auto plan = PlanAll();
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->warnings, ElementsAre(kUse));
  options_.oversubscribe = false;
  options_.gpu_bind = GpuBind::kNone;
  EXPECT_TRUE(PlanAll().ok());
}

TEST_F(PinTest, AGpuThatIsOnlyWatchedOrDrawnOnIsNotBusy) {
  AddHost("a", 1);
  AddGpus(1);
  v1::GpuProcess& process = *inventories_[0].mutable_gpus(0)->add_processes();
  process.set_memory_bytes(300 << 20);
  auto plan = PlanAll();
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->warnings, ElementsAre(HasSubstr("a process (pid 0, 0.3 GiB)")));
  process.set_memory_bytes(3ull << 30);
  process.set_graphics(true);
  plan = PlanAll();
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->warnings, ElementsAre());
}

TEST_F(PinTest, FaultyGpusAndMissingOnesAreWarnedOf) {
  AddHost("a", 1);
  AddGpus(2);
  inventories_[0].mutable_gpus(0)->set_fault("lost");
  AddHost("b", 1);
  const auto plan = PlanAll();
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->warnings,
              Contains(AllOf(HasSubstr("a:"), HasSubstr("GPU 0"), HasSubstr("lost"))));
  EXPECT_THAT(plan->warnings, Contains(HasSubstr("b has no GPU")));
}

TEST_F(PinTest, CoresNearTheGpuAreSharedByThoseNearTheSame) {
  AddHost("a");
  AddGpus(4);
  SetCores("0-7", {"0-3", "4-7"});
  SetNear({"0-3", "0-3", "4-7", "4-7"});
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0-1", "2-3", "4-5", "6-7"));
}

TEST_F(PinTest, OnlyAllowedCoresAreUsed) {
  AddHost("a");
  AddGpus(2);
  SetCores("1-5", {"0-3", "4-7"});
  SetNear({"0-3", "4-7"});
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("1-3", "4-5"));
}

TEST_F(PinTest, WithoutAKnownPlaceOfTheGpusCoresAreSplitEvenly) {
  AddHost("a");
  AddGpus(2);
  SetCores("0-7", {"0-3", "4-7"});
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0-3", "4-7"));
  SetNear({"0-3", "64-71"});  // cores this job may not use
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0-3", "4-7"));
  SetNear({"0-3", "x"});
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0-3", "4-7"));
}

TEST_F(PinTest, CoresAreSplitInNumaOrder) {
  AddHost("a", 2);
  SetCores("0-7", {"0,2,4,6", "1,3,5,7"});
  options_.cpu_bind = CpuBind::kCore;
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0,2,4,6", "1,3,5,7"));
  options_.ranks = 1;
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0-7"));
  options_.ranks = 3;
  options_.oversubscribe = true;
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0,2", "1,4,6", "3,5,7"));
}

// Two ranks on the threads of the same cores have half a core each, and other cores are idle.
TEST_F(PinTest, TheThreadsOfACoreGoToOneRank) {
  AddHost("a", 4);
  AddGpus(4);
  SetCores("0-15", {"0-3,8-11", "4-7,12-15"});
  for (uint32_t cpu = 0; cpu < 16; ++cpu) inventories_[0].add_first_siblings(cpu % 8);
  SetNear({"0-3,8-11", "0-3,8-11", "4-7,12-15", "4-7,12-15"});
  const auto all = {"0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"};
  EXPECT_THAT(Cores(PlanAll()), ElementsAreArray(all));
  inventories_[0].set_reserves(true);
  EXPECT_THAT(Cores(PlanAll()), ElementsAreArray(all));
  inventories_[0].set_reserves(false);
  options_.cpu_bind = CpuBind::kCore;
  EXPECT_THAT(Cores(PlanAll()), ElementsAreArray(all));
  options_.cores_per_rank = 2;  // CPUs of two cores, as there are enough
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0-1", "2-3", "4-5", "6-7"));
  options_.cpu_bind = CpuBind::kNuma;
  options_.cores_per_rank.reset();
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0-3,8-11", "4-7,12-15", "0-3,8-11", "4-7,12-15"));
}

TEST_F(PinTest, NumaBindingGoesRoundRobin) {
  AddHost("a", 3);
  SetCores("0-5", {"0-3", "4-7", "8-11"});
  options_.cpu_bind = CpuBind::kNuma;
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0-3", "4-5", "0-3"));
  SetCores("0-5", {});
  EXPECT_THAT(Cores(PlanAll()), Each(""));
}

TEST_F(PinTest, MoreRanksThanCoresAreNotPinned) {
  AddHost("a", 9);
  EXPECT_THAT(Cores(PlanAll()), Each(""));
  options_.cpu_bind = CpuBind::kNone;
  options_.ranks = 2;
  EXPECT_THAT(Cores(PlanAll()), Each(""));
}

// "host:22" by those who mean ssh's port.
TEST_F(PinTest, SlotsThatLookLikeAPortAndDoNotFitAreExplained) {
  AddHost("a", 22);
  EXPECT_THAT(PlanAll()->warnings, IsEmpty());
  hosts_.entries[0].slots_like_port = true;
  EXPECT_THAT(PlanAll()->warnings,
              ElementsAre("a: 22 ranks on 8 cores; :22 is a number of slots; for a port use "
                          "--ssh-port 22"));
  options_.ranks = 8;
  EXPECT_THAT(PlanAll()->warnings, IsEmpty());
  options_.ranks = std::nullopt;
  AddGpus(8);
  EXPECT_THAT(Message(PlanAll()), AllOf(HasSubstr("8 can be used"), HasSubstr("--ssh-port 22")));
}

TEST_F(PinTest, RanksThatShareAGpuForOneProcessAreWarnedOf) {
  AddHost("a", 2);
  AddGpus(2);
  for (v1::Gpu& gpu : *inventories_[0].mutable_gpus()) gpu.set_exclusive_process(true);
  EXPECT_THAT(PlanAll()->warnings, IsEmpty());
  options_.oversubscribe = true;
  options_.ranks = 3;
  EXPECT_THAT(PlanAll()->warnings,
              ElementsAre(AllOf(HasSubstr("a: 2 ranks share GPU 1"), HasSubstr("MPS"))));
  options_.mps = true;
  EXPECT_THAT(PlanAll()->warnings, IsEmpty());
  options_.mps = false;
  options_.gpu_bind = GpuBind::kNone;
  EXPECT_THAT(PlanAll()->warnings, IsEmpty());
}

// PBS with ngpus=4 and without mpiprocs.
TEST_F(PinTest, OneSlotOfAnAllocationOnANodeWithGpusIsWarnedOf) {
  for (const char* name : {"a", "b"}) {
    AddHost(name, 1);
    AddGpus(4);
  }
  EXPECT_THAT(PlanAll()->warnings, IsEmpty());
  for (hosts::HostEntry& entry : hosts_.entries) entry.single_slot = true;
  EXPECT_THAT(PlanAll()->warnings,
              ElementsAre(AllOf(HasSubstr("a, b: one rank on a node"), HasSubstr("--ppn gpu"))));
  options_.per_node = PerNode::kGpus;
  EXPECT_EQ(PlanAll()->world_size, 8u);
  EXPECT_THAT(PlanAll()->warnings, IsEmpty());
  options_.per_node = std::nullopt;
  options_.ranks_per_node = 1;
  EXPECT_THAT(PlanAll()->warnings, IsEmpty());
  options_.ranks_per_node = std::nullopt;
  for (hosts::HostEntry& entry : hosts_.entries) {  // --include
    entry.slots.reset();
    entry.only_gpus = {0, 2};
  }
  EXPECT_EQ(PlanAll()->world_size, 4u);
  EXPECT_THAT(PlanAll()->warnings, IsEmpty());
}

TEST_F(PinTest, TheRankfilesCoresWin) {
  AddHost("a", 2);
  SetCores("0-7", {});
  options_.rankfile = {{0, "a", "6-7", 1}, {1, "a", std::nullopt, 2}};
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("6-7", "4-7"));
  options_.rankfile[1].cpus = "7-8";
  EXPECT_THAT(Message(PlanAll()),
              AllOf(HasSubstr("line 2"), HasSubstr("cores 7-8"), HasSubstr("0-7")));
}

TEST_F(PinTest, CoresThatCannotBeReadAreTheNodesFault) {
  AddHost("a", 1);
  SetCores("0-x", {});
  EXPECT_THAT(Message(PlanAll()), HasSubstr("a reports cores"));
}

TEST_F(PinTest, TheTableShowsWhatEachRankGets) {
  AddHost("a");
  AddGpus(2);
  SetCores("0-3", {});
  EXPECT_EQ(FormatRankTable(*PlanAll()),
            "rank  node  host  local  gpus        cores\n"
            "0     0     a     0/2    GPU-1 of 2  0-1\n"
            "1     0     a     1/2    GPU-2 of 2  2-3\n");
  options_.gpu_bind = GpuBind::kRank;
  EXPECT_THAT(FormatRankTable(*PlanAll()), HasSubstr("1/2    GPU-2  2-3"));
}

TEST_F(PinTest, EachProgramHasGpusOfItsOwn) {
  AddHost("a", 4);
  AddGpus(4);
  options_.programs = {{1, 0, {}}, {1, 1, {}}, {1, 2, {}}};
  options_.ranks = 3;
  options_.gpu_bind = GpuBind::kRank;
  const auto plan = PlanAll();
  EXPECT_THAT(Gpus(plan, 0), testing::IsEmpty());
  EXPECT_TRUE(plan->nodes[0].workers[0].set_visible_gpus());
  EXPECT_EQ(Gpus(plan, 1), std::vector<std::string>{"GPU-1"});
  EXPECT_EQ(Gpus(plan, 2), (std::vector<std::string>{"GPU-2", "GPU-3"}));
  options_.programs[2].gpus_per_rank = 4;
  EXPECT_THAT(Message(PlanAll()), HasSubstr("3 ranks need 5 GPUs, but 4 can be used"));
}

}  // namespace
}  // namespace dtrain::plan
