// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/fence_core.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::rendezvous {
namespace {

using testing::AllOf;
using testing::HasSubstr;

v1::FenceEnter EnterOf(uint32_t sequence,
                       std::vector<std::pair<std::string, std::string>> entries = {}) {
  v1::FenceEnter enter;
  enter.set_sequence(sequence);
  for (const auto& [key, value] : entries) {
    v1::KeyValue& entry = *enter.add_entries();
    entry.set_key(key);
    entry.set_value(value);
  }
  return enter;
}

TEST(FenceCoreTest, TheLastToEnterReleasesAllWithWhatAllPut) {
  FenceCore fence({"a", "b"});
  auto first = fence.Enter(1, EnterOf(0, {{"k1", "v1"}}));
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->has_value());
  EXPECT_TRUE(fence.in_progress());
  EXPECT_TRUE(fence.has_entered(1));
  EXPECT_FALSE(fence.has_entered(0));
  auto last = fence.Enter(0, EnterOf(0, {{"k0", "v0"}, {"k2", ""}}));
  ASSERT_TRUE(last.ok() && last->has_value());
  const v1::FenceRelease& release = **last;
  EXPECT_EQ(release.sequence(), 0u);
  ASSERT_EQ(release.entries().size(), 3);
  EXPECT_EQ(release.entries(0).key(), "k0");  // in the nodes' order
  EXPECT_EQ(release.entries(2).key(), "k1");
  EXPECT_EQ(release.entries(2).value(), "v1");
  EXPECT_FALSE(fence.in_progress());
  EXPECT_EQ(fence.sequence(), 1u);
}

TEST(FenceCoreTest, ForgetsWhatWasReleased) {
  FenceCore fence({"a"});
  ASSERT_TRUE(fence.Enter(0, EnterOf(0, {{"k", "v"}})).ok());
  auto second = fence.Enter(0, EnterOf(1));
  ASSERT_TRUE(second.ok() && second->has_value());
  EXPECT_EQ((*second)->entries().size(), 0);
}

TEST(FenceCoreTest, AWrongSequenceNamesTheNodeAndChangesNothing) {
  FenceCore fence({"a", "b"});
  for (uint32_t sequence : {1u, 7u}) {
    auto result = fence.Enter(1, EnterOf(sequence));
    EXPECT_THAT(std::string(result.status().message()),
                AllOf(HasSubstr("b entered fence"), HasSubstr("fence 0")));
  }
  EXPECT_FALSE(fence.in_progress());
}

TEST(FenceCoreTest, EnteringTwiceIsAnError) {
  FenceCore fence({"a", "b"});
  ASSERT_TRUE(fence.Enter(0, EnterOf(0)).ok());
  EXPECT_THAT(std::string(fence.Enter(0, EnterOf(0)).status().message()), HasSubstr("a entered"));
  auto last = fence.Enter(1, EnterOf(0));
  EXPECT_TRUE(last.ok() && last->has_value());
}

TEST(FenceCoreTest, AnUnknownNodeIsAnError) {
  FenceCore fence({"a"});
  EXPECT_FALSE(fence.Enter(1, EnterOf(0)).ok());
}

TEST(FenceCoreTest, AFinishedNodeMakesTheFenceOfTheOthersHopeless) {
  FenceCore fence({"a", "b"});
  fence.NodeFinished(1);
  EXPECT_FALSE(fence.cannot_complete());  // nobody waits
  ASSERT_TRUE(fence.Enter(0, EnterOf(0)).ok());
  EXPECT_TRUE(fence.cannot_complete());
  EXPECT_FALSE(fence.Enter(1, EnterOf(0)).ok());
}

TEST(FenceCoreTest, ANodeThatFinishesInsideAFenceStillCounts) {
  FenceCore fence({"a", "b"});
  ASSERT_TRUE(fence.Enter(0, EnterOf(0)).ok());
  fence.NodeFinished(0);
  fence.NodeFinished(0);
  EXPECT_FALSE(fence.cannot_complete());
  auto last = fence.Enter(1, EnterOf(0));
  ASSERT_TRUE(last.ok() && last->has_value());
  ASSERT_TRUE(fence.Enter(1, EnterOf(1)).ok());
  EXPECT_TRUE(fence.cannot_complete());
}

TEST(FenceCoreTest, AnyOrderOfEnteringGivesTheSameTable) {
  std::mt19937 rng(7);
  std::string expected;
  for (int run = 0; run < 50; ++run) {
    FenceCore fence({"a", "b", "c", "d", "e"});
    std::vector<size_t> order = {0, 1, 2, 3, 4};
    std::shuffle(order.begin(), order.end(), rng);
    for (size_t i = 0; i < order.size(); ++i) {
      auto result = fence.Enter(order[i], EnterOf(0, {{absl::StrCat("k", order[i]), "v"}}));
      ASSERT_TRUE(result.ok());
      ASSERT_EQ(result->has_value(), i + 1 == order.size());
      if (!result->has_value()) continue;
      if (expected.empty()) expected = (*result)->SerializeAsString();
      EXPECT_EQ((*result)->SerializeAsString(), expected);
    }
  }
}

}  // namespace
}  // namespace dtrain::rendezvous
