// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/order.h"

#include <gtest/gtest.h>

#include <chrono>

namespace dtrain::shepherd {
namespace {

TEST(OrderTest, SaysForWhomAShepherdRuns) {
  const auto order = ParseOrder(
      "job j-1\nattempt 0\nlease_ms 15000\ngrace_ms 5000\nagent_uid 4294967294\nagent_gid 7\n");
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->lease, std::chrono::seconds(15));
  EXPECT_EQ(order->agent_uid, 4294967294u);
}

TEST(OrderTest, WithoutAnAgentThereIsNone) {
  for (const char* text : {"", "lease_ms 1\n", "agent_uid 1\n", "lease_ms x\nagent_uid 1\n",
                           "lease_ms 1\nagent_uid -1\n", "lease_ms 1\nagent_uid\n",
                           "lease_ms 1\nagent_uid 4294967296\n"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseOrder(text).status())) << text;
  }
}

}  // namespace
}  // namespace dtrain::shepherd
