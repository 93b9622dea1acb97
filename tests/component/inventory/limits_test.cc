// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/component/inventory/tree.h"

namespace dtrain::inventory {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = 1 << 20;

// M12
TEST(LimitsTest, SmallOnesAreNamed) {
  EXPECT_THAT(WarningsOf({64 * kMiB, 8 * kMiB, true}),
              ElementsAre(AllOf(HasSubstr("/dev/shm has only 64 MiB"), HasSubstr("--shm-size")),
                          AllOf(HasSubstr("only 8 MiB"), HasSubstr("ulimit -l"))));
}

TEST(LimitsTest, OthersAreNot) {
  EXPECT_THAT(WarningsOf({65 * kMiB, 8 * kMiB, false}), IsEmpty());
  EXPECT_THAT(WarningsOf({std::nullopt, std::nullopt, true}), IsEmpty());
}

TEST(LimitsTest, AdaptersAreFound) {
  Tree tree;
  EXPECT_FALSE(ReadSmallLimits(tree.roots()).rdma);
  tree.Write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  EXPECT_TRUE(ReadSmallLimits(tree.roots()).rdma);
}

}  // namespace
}  // namespace dtrain::inventory
