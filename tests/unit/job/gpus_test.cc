// SPDX-License-Identifier: Apache-2.0
// What the job's GPUs report while it runs.
#include "launcher/job/gpu_watch.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class GpusTest : public JobFixture {
 protected:
  void Run() {
    Make(2);
    RunUntil(State::kRunning);
    ASSERT_EQ(core_->state(), State::kRunning);
  }
  std::vector<Action> Say(uint32_t node, uint32_t gpu, std::vector<uint32_t> xids, uint64_t ecc = 0,
                          const std::string& fault = "") {
    v1::SessionEvent event;
    v1::GpuState& state = *event.mutable_gpus()->add_gpus();
    state.set_uuid(absl::StrCat("GPU-", gpu));
    state.set_index(gpu);
    state.mutable_xids()->Add(xids.begin(), xids.end());
    state.set_uncorrected_ecc_errors(ecc);
    state.set_fault(fault);
    state.set_utilisation_percent(50);
    return Message(node, event);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const GpuFault& fault : core_->gpu_faults()) {
      names.push_back(absl::StrCat(fault.node.value(), ": ", NameOf(fault)));
    }
    return names;
  }
};

TEST_F(GpusTest, AnErrorIsToldOnceAndEndsNothing) {
  Run();
  const std::vector<Action> first = Say(1, 3, {79});
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(std::get<Warn>(first[0]).text,
            "node1: GPU 3 reported Xid 79 (GPU has fallen off the bus)");
  EXPECT_THAT(Say(1, 3, {79}), IsEmpty());
  EXPECT_EQ(Say(1, 3, {79, 999}).size(), 1U);
  EXPECT_EQ(Say(0, 3, {79}).size(), 1U);  // another one, of the same name
  EXPECT_EQ(core_->state(), State::kRunning);
  EXPECT_THAT(Names(), ElementsAre("1: GPU 3 reported Xid 79 (GPU has fallen off the bus)",
                                   "1: GPU 3 reported Xid 999",
                                   "0: GPU 3 reported Xid 79 (GPU has fallen off the bus)"));
}

TEST_F(GpusTest, ASampleIsNoError) {
  Run();
  EXPECT_THAT(Say(1, 3, {}), IsEmpty());
  EXPECT_THAT(core_->gpu_faults(), IsEmpty());
}

TEST_F(GpusTest, EccErrorsAndLostGpus) {
  Run();
  EXPECT_EQ(Say(1, 3, {}, 1).size(), 1U);
  EXPECT_THAT(Say(1, 3, {}, 5), IsEmpty());
  EXPECT_EQ(Say(0, 0, {}, 0, "lost\n").size(), 1U);
  EXPECT_THAT(Names(), ElementsAre("1: GPU 3 had 5 uncorrected ECC errors",
                                   "0: GPU 0 cannot be used any more: lost\\n"));
  for (const GpuFault& fault : core_->gpu_faults()) EXPECT_EQ(fault.kind, XidKind::kHardware);
}

TEST_F(GpusTest, WhichErrorsAreOfTheHardware) {
  for (const uint32_t xid : {48, 63, 64, 79, 94, 95, 119}) {
    EXPECT_EQ(KindOfXid(xid), XidKind::kHardware) << xid;
    EXPECT_NE(XidMeaning(xid), "") << xid;
  }
  for (const uint32_t xid : {13, 31, 43, 45}) EXPECT_EQ(KindOfXid(xid), XidKind::kProgram) << xid;
  for (const uint32_t xid : {0, 62, 74, 999}) EXPECT_EQ(KindOfXid(xid), XidKind::kOther) << xid;
}

// Those that come of our own signals are no news.
TEST_F(GpusTest, WhileStoppingOnlyTheHardwareCounts) {
  Run();
  Exit(2, 7);
  ASSERT_EQ(core_->state(), State::kStopping);
  Say(1, 3, {45, 79});
  EndAll();
  EXPECT_THAT(Names(), ElementsAre("1: GPU 3 reported Xid 79 (GPU has fallen off the bus)"));
}

TEST_F(GpusTest, ANodeThatSaysTooMuchIsBounded) {
  Run();
  for (uint32_t gpu = 0; gpu < 2000; ++gpu) Say(1, gpu, {79});
  for (uint32_t xid = 0; xid < 2000; ++xid) Say(0, 0, {xid});
  EXPECT_LE(core_->gpu_faults().size(), 1000U);
}

TEST_F(GpusTest, ErrorsWithoutSamples) {
  v1::GpuStates states;
  states.set_unix_nanos(5);
  states.add_gpus()->set_utilisation_percent(50);
  EXPECT_EQ(ErrorsOf(states).gpus_size(), 0);
  v1::GpuState& bad = *states.add_gpus();
  bad.set_uuid("GPU-1");
  bad.set_index(1);
  bad.add_xids(79);
  bad.set_temperature_celsius(50);
  const v1::GpuStates errors = ErrorsOf(states);
  ASSERT_EQ(errors.gpus_size(), 1);
  bad.clear_temperature_celsius();
  EXPECT_EQ(errors.gpus(0).SerializeAsString(), bad.SerializeAsString());
  EXPECT_EQ(errors.unix_nanos(), 0);
}

}  // namespace
}  // namespace dtrain::job
