// SPDX-License-Identifier: Apache-2.0
#include "agent/session/gpu_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace dtrain::session {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

v1::Gpu Seen(const std::string& uuid, std::optional<uint64_t> ecc, const std::string& fault = "") {
  v1::Gpu gpu;
  gpu.set_uuid(uuid);
  gpu.set_index(3);
  if (ecc) gpu.set_uncorrected_ecc_errors(*ecc);
  gpu.set_fault(fault);
  return gpu;
}

v1::GpuStates Now(uint64_t ecc, std::vector<uint32_t> xids = {}, const std::string& fault = "") {
  v1::GpuStates states;
  v1::GpuState& state = *states.add_gpus();
  state.set_uuid("GPU-a");
  state.set_index(3);
  state.set_uncorrected_ecc_errors(ecc);
  state.mutable_xids()->Add(xids.begin(), xids.end());
  state.set_fault(fault);
  state.set_temperature_celsius(50);
  return states;
}

TEST(GpuErrorsTest, OnlyGpusThatWereThereBeforeAreWatched) {
  GpuErrors errors;
  errors.Before({Seen("GPU-a", 0), Seen("GPU-b", 0)});
  EXPECT_THAT(errors.Known({"GPU-b", "-rf /"}), ElementsAre("GPU-b"));
  EXPECT_THAT(GpuErrors().Known({"GPU-b"}), IsEmpty());
}

TEST(GpuErrorsTest, WhatWasCountedBeforeIsNotTheJobs) {
  GpuErrors errors;
  errors.Before({Seen("GPU-a", 7)});
  EXPECT_FALSE(errors.OnStates(Now(7)));
  EXPECT_FALSE(errors.any());
  EXPECT_TRUE(errors.OnStates(Now(9)));
  EXPECT_FALSE(errors.OnStates(Now(9)));
  EXPECT_EQ(errors.states().gpus(0).uncorrected_ecc_errors(), 2U);
  EXPECT_TRUE(errors.any());
  // The driver was loaded again.
  EXPECT_FALSE(errors.OnStates(Now(0)));
  EXPECT_EQ(errors.states().gpus(0).uncorrected_ecc_errors(), 2U);
}

TEST(GpuErrorsTest, WithoutACountBeforeTheFirstIsWhatItBeginsWith) {
  GpuErrors errors;
  errors.Before({Seen("GPU-a", std::nullopt)});
  EXPECT_FALSE(errors.OnStates(Now(7)));
  EXPECT_TRUE(errors.OnStates(Now(8)));
  EXPECT_EQ(errors.states().gpus(0).uncorrected_ecc_errors(), 1U);
}

TEST(GpuErrorsTest, XidsAndFaultsAreNewOnceAndStay) {
  GpuErrors errors;
  errors.Before({Seen("GPU-a", 0)});
  EXPECT_TRUE(errors.OnStates(Now(0, {31})));
  EXPECT_FALSE(errors.OnStates(Now(0, {31})));
  EXPECT_TRUE(errors.OnStates(Now(0, {31, 79})));
  // Another watch knows nothing of them.
  EXPECT_FALSE(errors.OnStates(Now(0, {79})));
  EXPECT_THAT(errors.states().gpus(0).xids(), ElementsAre(31, 79));
  EXPECT_TRUE(errors.OnStates(Now(0, {}, "lost")));
  EXPECT_FALSE(errors.OnStates(Now(0, {}, "lost again")));
  EXPECT_FALSE(errors.OnStates(Now(0)));
  EXPECT_EQ(errors.states().gpus(0).fault(), "lost");
  EXPECT_EQ(errors.states().gpus(0).temperature_celsius(), 50U);
}

TEST(GpuErrorsTest, ADriverThatHangsIsSaidOnce) {
  GpuErrors errors;
  EXPECT_FALSE(errors.OnHang({"GPU-a"}));
  errors.Before({Seen("GPU-a", 1), Seen("GPU-b", 1)});
  EXPECT_TRUE(errors.OnHang({"GPU-a", "GPU-b"}));
  EXPECT_FALSE(errors.OnHang({"GPU-a", "GPU-b"}));
  ASSERT_EQ(errors.states().gpus_size(), 1);
  EXPECT_EQ(errors.states().gpus(0).uuid(), "GPU-a");
  EXPECT_EQ(errors.states().gpus(0).index(), 3U);
  EXPECT_THAT(errors.states().gpus(0).fault(), testing::HasSubstr("does not answer"));
}

TEST(GpuErrorsTest, ALookAfterTheEndFindsWhatNoWatchHasSeen) {
  GpuErrors errors;
  errors.Before({Seen("GPU-a", 1), Seen("GPU-b", 1)});
  EXPECT_FALSE(errors.OnLook({Seen("GPU-a", 1), Seen("GPU-b", 9)}, {"GPU-a"}));
  EXPECT_FALSE(errors.any());
  EXPECT_TRUE(errors.OnLook({Seen("GPU-a", 2, "lost")}, {"GPU-a"}));
  EXPECT_FALSE(errors.OnLook({Seen("GPU-a", 2, "lost")}, {"GPU-a"}));
  ASSERT_EQ(errors.states().gpus_size(), 1);
  EXPECT_EQ(errors.states().gpus(0).uncorrected_ecc_errors(), 1U);
  EXPECT_EQ(errors.states().gpus(0).index(), 3U);
  EXPECT_EQ(errors.states().gpus(0).fault(), "lost");
}

}  // namespace
}  // namespace dtrain::session
