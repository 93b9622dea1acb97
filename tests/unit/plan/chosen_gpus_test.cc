// SPDX-License-Identifier: Apache-2.0
// --include and --exclude.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/plan/plan_fixture.h"

namespace dtrain::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class ChosenGpusTest : public PlanFixture {
 protected:
  // As the kernel numbers them: GPU-0 is the first by PCI address.
  void AddNumberedGpus(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      v1::Gpu& gpu = *inventories_.back().add_gpus();
      gpu.set_index(i);
      gpu.set_uuid(absl::StrCat("GPU-", i));
      gpu.set_pci_address(absl::StrCat("0000:0", i, ":00.0"));
    }
  }
};

TEST_F(ChosenGpusTest, WorkersSeeThoseThatAreIncludedInTheirOrder) {
  AddHost("a").only_gpus = {3, 0, 2};
  AddNumberedGpus(4);
  const auto plan = PlanAll();
  EXPECT_EQ(Ranks(plan), "a0 a1 a2");
  for (size_t i : {0, 1, 2}) {
    EXPECT_THAT(Gpus(plan, i), ElementsAre("GPU-3", "GPU-0", "GPU-2"));
    EXPECT_THAT(plan->nodes[0].workers[i].own_gpus(), ElementsAre(i));
  }
  options_.gpu_bind = GpuBind::kRank;
  EXPECT_THAT(Gpus(PlanAll(), 0), ElementsAre("GPU-3"));
}

TEST_F(ChosenGpusTest, SlotsFollowTheGpusThatAreIncludedWithoutAskingTheNode) {
  AddHost("a").only_gpus = {0, 1, 2, 3, 4};
  EXPECT_TRUE(NeedsNoInventory(hosts_, options_));
  inventories_.clear();
  EXPECT_EQ(PlaceAll()->world_size, 5u);
  options_.gpus_per_rank = 2;
  EXPECT_EQ(PlaceAll()->world_size, 2u);
  hosts_.entries[0].max_slots = 1;
  EXPECT_EQ(PlaceAll()->world_size, 1u);
}

TEST_F(ChosenGpusTest, ExcludedGpusAreNeitherUsedNorSlots) {
  AddHost("a").without_gpus = {1};
  AddNumberedGpus(4);
  EXPECT_FALSE(NeedsNoInventory(hosts_, options_));
  const auto plan = PlanAll();
  EXPECT_EQ(Ranks(plan), "a0 a1 a2");
  EXPECT_THAT(Gpus(plan, 0), ElementsAre("GPU-0", "GPU-2", "GPU-3"));
}

TEST_F(ChosenGpusTest, SlotsOfTheListStayTheMost) {
  AddHost("a", 4).without_gpus = {1};
  AddNumberedGpus(8);
  EXPECT_EQ(Ranks(PlanAll()), "a0 a1 a2 a3");
  hosts_.entries[0].slots = 8;
  EXPECT_EQ(PlanAll()->world_size, 7u);
}

TEST_F(ChosenGpusTest, TheListsFirstGpusAreCountedBeforeSomeAreExcluded) {
  AddHost("a").gpus = 3;
  hosts_.entries[0].without_gpus = {1};
  AddNumberedGpus(8);
  inventories_.back().mutable_gpus(1)->set_fault("lost");
  EXPECT_TRUE(NeedsNoInventory(hosts_, options_));
  EXPECT_THAT(Gpus(PlanAll(), 1), ElementsAre("GPU-0", "GPU-2"));
}

TEST_F(ChosenGpusTest, AGpuThatTheNodeDoesNotHaveIsAnErrorThatNamesThoseItHas) {
  AddHost("a").only_gpus = {0, 5};
  AddNumberedGpus(4);
  EXPECT_EQ(Message(PlanAll()), "a has no GPU 5, which --include names: it has GPUs 0-3");
  hosts_.entries[0].only_gpus.clear();
  hosts_.entries[0].without_gpus = {7};
  EXPECT_EQ(Message(PlanAll()), "a has no GPU 7, which --exclude names: it has GPUs 0-3");
  inventories_[0].clear_gpus();
  inventories_[0].set_gpu_error("the driver does not answer");
  EXPECT_EQ(Message(PlanAll()),
            "a has no GPU 7, which --exclude names: it has none (the driver does not answer)");
}

TEST_F(ChosenGpusTest, AnIncludedGpuThatCannotBeUsedIsAnErrorWithItsFault) {
  AddHost("a").only_gpus = {0, 2};
  AddNumberedGpus(4);
  inventories_[0].mutable_gpus(2)->set_fault("MIG mode");
  EXPECT_THAT(Message(PlanAll()),
              AllOf(HasSubstr("a: --include names 2 GPUs, but 1 GPU can be used"),
                    HasSubstr("GPU 2 (0000:02:00.0): MIG mode"), HasSubstr("choose others")));
}

TEST_F(ChosenGpusTest, WhatGpuBindNoneDoesNotTouchCannotBeChosen) {
  AddHost("a").only_gpus = {0};
  AddNumberedGpus(1);
  options_.gpu_bind = GpuBind::kNone;
  EXPECT_THAT(Message(PlanAll()), HasSubstr("--gpu-bind none leaves them to the program"));
}

TEST_F(ChosenGpusTest, MoreRanksThanChosenGpusNeedTheFlag) {
  AddHost("a").only_gpus = {1};
  AddNumberedGpus(2);
  options_.ranks = 2;
  EXPECT_THAT(Message(PlanAll()), HasSubstr("-np 2 needs 1 more than the 1 slot"));
  options_.oversubscribe = true;
  EXPECT_THAT(Gpus(PlanAll(), 1), ElementsAre("GPU-1"));
}

}  // namespace
}  // namespace dtrain::plan
