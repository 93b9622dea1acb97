// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/recorded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::cli {
namespace {

TEST(RecordedTest, FlagVariablesAreThoseOfThen) {
  v1::Spec spec;
  RecordFlagVariables({"DTRAIN_NP=2", "DTRAIN_CONFIG=/c", "DTRAIN_PPN=", "PATH=/then"}, spec);
  const std::vector<std::string> now = {"PATH=/now",        "DTRAIN_NP=1",   "DTRAIN_HOSTS=test1",
                                        "DTRAIN_CONFIG=/d", "DTRAIN_RANK=0", "DTRAIN_PPN"};
  EXPECT_THAT(
      WithFlagVariablesOf(spec, now),
      testing::ElementsAre("PATH=/now", "DTRAIN_RANK=0", "DTRAIN_NP=2", "DTRAIN_CONFIG=/c"));
}

}  // namespace
}  // namespace dtrain::cli
