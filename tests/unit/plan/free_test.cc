// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/free.h"

#include <utility>

#include "tests/unit/plan/plan_fixture.h"

namespace dtrain::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Hosts whose agents keep books.
class FreeTest : public PlanFixture {
 public:
  v1::Inventory& AddBooked(const std::string& name, uint32_t gpus,
                           std::optional<uint32_t> slots = std::nullopt) {
    AddHost(name, slots);
    AddGpus(gpus);
    inventories_.back().set_reserves(true);
    return inventories_.back();
  }
  void HoldGpu(const std::string& uuid, const std::string& holder = "job a of alice") {
    for (v1::Gpu& gpu : *inventories_.back().mutable_gpus()) {
      if (gpu.uuid() == uuid) gpu.set_withheld("held by " + holder);
    }
  }
  void HoldCores(const std::string& cpulist) {
    v1::HeldCores& held = *inventories_.back().add_held_cores();
    held.set_cpulist(cpulist);
    held.set_holder("job a of alice");
  }
  absl::StatusOr<Plan> PlanFree() {
    const std::vector<v1::Inventory> all = inventories_;
    for (v1::Inventory& inventory : inventories_) inventory = FreeOf(inventory, options_);
    auto plan = PlanAll();
    const std::vector<v1::Inventory> free = std::exchange(inventories_, all);
    if (!plan.ok()) return plan;
    if (absl::Status cores = CheckFreeCores(*plan, all, free); !cores.ok()) return cores;
    return plan;
  }
};

TEST_F(FreeTest, AJobHasTheGpusItsRanksUseAndTheirShareOfTheCores) {
  AddBooked("a", 4);
  options_.ranks = 2;
  const auto plan = PlanFree();
  EXPECT_THAT(Gpus(plan, 0), ElementsAre("GPU-1", "GPU-2"));
  EXPECT_THAT(Cores(plan), ElementsAre("0-1", "2-3"));
  const v1::Reserve reserve = ReserveFor(plan->nodes[0], options_);
  EXPECT_THAT(reserve.gpu_uuids(), ElementsAre("GPU-1", "GPU-2"));
  EXPECT_EQ(reserve.cpulist(), "0-3");
}

// A spare takes a place of any kind: what the job says of certain ranks is not of it.
TEST_F(FreeTest, ASpareIsReservedForAsManyRanksAsItTakes) {
  AddBooked("a", 4);
  HoldGpu("GPU-1");
  options_.ranks = 16;
  options_.nodes = 4;
  options_.rankfile.push_back({});
  options_.rankfile.back().host = "b";
  options_.programs = {{8, 1, {}}, {8, 0, {"b"}}};
  options_.tensorflow = {{"chief", 1}, {"worker", std::nullopt}};
  const auto reserve = ReserveAll(hosts_.entries[0], inventories_[0], options_);
  ASSERT_TRUE(reserve.ok()) << reserve.status();
  EXPECT_THAT(reserve->gpu_uuids(), ElementsAre("GPU-2", "GPU-3", "GPU-4"));
  HoldGpu("GPU-2");
  HoldGpu("GPU-3");
  HoldGpu("GPU-4");
  EXPECT_FALSE(ReserveAll(hosts_.entries[0], inventories_[0], options_).ok());
}

TEST_F(FreeTest, TheNextJobGetsTheFreeOnes) {
  AddBooked("a", 4);
  HoldGpu("GPU-1");
  HoldGpu("GPU-2");
  HoldCores("0-3");
  const auto plan = PlanFree();
  EXPECT_EQ(Ranks(plan), "a0 a1");
  EXPECT_THAT(Gpus(plan, 1), ElementsAre("GPU-3", "GPU-4"));
  EXPECT_THAT(Cores(plan), ElementsAre("4-5", "6-7"));
  EXPECT_THAT(plan->warnings, IsEmpty()) << "that others work there is no news";
}

TEST_F(FreeTest, WhoHasTheGpusIsTold) {
  AddBooked("a", 2);
  HoldGpu("GPU-1");
  HoldGpu("GPU-2", "job b of bob");
  EXPECT_THAT(Message(PlanFree()),
              AllOf(HasSubstr("none of its GPUs"), HasSubstr("held by job b of bob")));
  EXPECT_EQ(FormatHeld(hosts_, inventories_),
            "a: GPU 1: held by job a of alice; GPU 0: held by job b of bob");
  options_.gpu_bind = GpuBind::kNone;
  EXPECT_EQ(Ranks(PlanFree()), "a0 a1");
}

// "-np 2 -H a": who asks for two ranks does not ask for two cores.
TEST_F(FreeTest, OnANodeWithoutGpusASlotIsACoreAndRanksMayUseMore) {
  AddBooked("a", 0);
  options_.ranks = 2;
  const auto first = PlanFree();
  EXPECT_THAT(Cores(first), ElementsAre("0-3", "4-7"));
  EXPECT_EQ(ReserveFor(first->nodes[0], options_).cpulist(), "0,4");
  HoldCores("0,4");
  EXPECT_THAT(Cores(PlanFree()), ElementsAre("1-3", "5-7"));
  options_.ranks.reset();
  const auto rest = PlanFree();
  EXPECT_EQ(rest->world_size, 6u);
  EXPECT_EQ(ReserveFor(rest->nodes[0], options_).cpulist(), "1-3,5-7");
}

TEST_F(FreeTest, RanksOnOneNumaNodeHoldDifferentCoresOfIt) {
  AddBooked("a", 0).add_numa_nodes()->set_cpulist("0-7");
  options_.ranks = 2;
  options_.cpu_bind = CpuBind::kNuma;
  const auto plan = PlanFree();
  EXPECT_THAT(Cores(plan), ElementsAre("0-7", "0-7"));
  EXPECT_EQ(ReserveFor(plan->nodes[0], options_).cpulist(), "0-1");
}

TEST_F(FreeTest, GivenSlotsShareTheCores) {
  AddBooked("a", 0, 4);
  options_.ranks = 1;
  EXPECT_THAT(Cores(PlanFree()), ElementsAre("0-1"));
  options_.ranks_per_node = 1;
  EXPECT_THAT(Cores(PlanFree()), ElementsAre("0-7"));
}

TEST_F(FreeTest, MoreRanksThanFreeCoresAreTooMany) {
  AddBooked("a", 0, 4);
  HoldCores("0-5");
  EXPECT_EQ(Message(PlanFree()), "a: 4 ranks, and 2 of 8 cores are free");
  options_.ranks = 2;
  EXPECT_THAT(Cores(PlanFree()), ElementsAre("6", "7"));
}

TEST_F(FreeTest, CoresMayBeShared) {
  AddBooked("a", 0, 4);
  HoldCores("0-7");
  options_.oversubscribe = true;
  auto plan = PlanFree();
  EXPECT_THAT(Cores(plan), ElementsAre("0-1", "2-3", "4-5", "6-7"));
  EXPECT_THAT(ReserveFor(plan->nodes[0], options_).cpulist(), IsEmpty());
  options_.oversubscribe = false;
  options_.cpu_bind = CpuBind::kNone;
  EXPECT_TRUE(PlanFree().ok());
}

// More ranks than the node has cores are not pinned, with or without others.
TEST_F(FreeTest, RanksBeyondTheCoresHoldNone) {
  AddBooked("a", 0, 16);
  auto plan = PlanFree();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(ReserveFor(plan->nodes[0], options_).cpulist(), IsEmpty());
  HoldCores("0-3");
  EXPECT_TRUE(PlanFree().ok());
}

TEST_F(FreeTest, CoresKeepNobodyFromGpus) {
  AddBooked("a", 4);
  HoldCores("0-7");
  const auto plan = PlanFree();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Cores(plan), testing::Each(""));
  inventories_.clear();
  hosts_.entries.clear();
  AddBooked("b", 4).set_allowed_cpus("0-1");  // fewer cores than GPUs
  EXPECT_THAT(Cores(PlanFree()), testing::Each(""));
}

TEST_F(FreeTest, GpusNearTheSameCoresShareThem) {
  AddBooked("a", 4);
  for (v1::Gpu& gpu : *inventories_.back().mutable_gpus()) {
    gpu.set_local_cpulist(gpu.uuid() <= "GPU-2" ? "0-3" : "4-7");
  }
  EXPECT_THAT(Cores(PlanFree()), ElementsAre("0-1", "2-3", "4-5", "6-7"));
  options_.ranks = 1;
  options_.gpus_per_rank = 2;
  EXPECT_THAT(Cores(PlanFree()), ElementsAre("0-3"));
}

// "launch -d -np 1" and then another job: the first may use all cores, and keeps one.
TEST_F(FreeTest, RanksThatWereAskedForHoldACoreEachAndMayUseMore) {
  AddBooked("a", 0, 1).set_allowed_cpus("0-7");
  hosts_.entries.back().slots_asked = true;
  const auto first = PlanFree();
  EXPECT_THAT(Cores(first), ElementsAre("0-7"));
  EXPECT_EQ(ReserveFor(first->nodes[0], options_).cpulist(), "0");
  HoldCores("0");
  const auto second = PlanFree();
  EXPECT_THAT(Cores(second), ElementsAre("1-7"));
  EXPECT_EQ(ReserveFor(second->nodes[0], options_).cpulist(), "1");
  // A host list's slots are the machine's: the job has its share of them.
  hosts_.entries.back().slots_asked = false;
  EXPECT_EQ(ReserveFor(PlanFree()->nodes[0], options_).cpulist(), "1-7");
}

TEST_F(FreeTest, RanksThatFillTheNodeHoldAllOfIt) {
  AddBooked("a", 0, 8).set_allowed_cpus("0-7");
  hosts_.entries.back().slots_asked = true;
  EXPECT_EQ(ReserveFor(PlanFree()->nodes[0], options_).cpulist(), "0-7");
}

TEST_F(FreeTest, CoresPerRankAreHeldAndNoMore) {
  AddBooked("a", 0, 2).set_allowed_cpus("0-7");
  hosts_.entries.back().slots_asked = true;
  options_.cores_per_rank = 3;
  const auto plan = PlanFree();
  EXPECT_THAT(Cores(plan), ElementsAre("0-2", "4-6"));
  EXPECT_EQ(ReserveFor(plan->nodes[0], options_).cpulist(), "0-2,4-6");
  HoldCores("0-3");
  EXPECT_EQ(Message(PlanFree()),
            "a: a rank needs 3 cores (--cores-per-rank), and 2 cores are left for rank 0: run "
            "fewer ranks there, or ask for fewer cores");
}

TEST_F(FreeTest, CoresPerRankSayHowManySlotsANodeHas) {
  AddBooked("a", 0).set_allowed_cpus("0-7");
  options_.cores_per_rank = 4;
  EXPECT_THAT(Cores(PlanFree()), ElementsAre("0-3", "4-7"));
}

TEST_F(FreeTest, RanksOnOneNumaNodeGetDifferentCoresOfIt) {
  AddHost("a", 2);
  v1::NumaNode& numa = *inventories_.back().add_numa_nodes();
  numa.set_cpulist("0-7");
  options_.cpu_bind = CpuBind::kNuma;
  options_.cores_per_rank = 2;
  EXPECT_THAT(Cores(PlanAll()), ElementsAre("0-1", "2-3"));
  options_.cpu_bind = CpuBind::kNone;
  EXPECT_THAT(Message(PlanAll()), HasSubstr("--bind none"));
}

}  // namespace
}  // namespace dtrain::plan
