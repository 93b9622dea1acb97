// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/tagger.h"

#include <gtest/gtest.h>

namespace dtrain::output {
namespace {

TEST(TaggerTest, PrefixNamesTheRankAndOnDemandTheHost) {
  EXPECT_EQ(LinePrefix(Tag::kNone, "node2", Rank(3)), "");
  EXPECT_EQ(LinePrefix(Tag::kRank, "node2", Rank(3)), "[3] ");
  EXPECT_EQ(LinePrefix(Tag::kHost, "node2", Rank(3)), "[node2:3] ");
}

TEST(TaggerTest, LinesAreTaggedWhenSeveralRanksWrite) {
  EXPECT_EQ(EffectiveTag({}, 1), Tag::kNone);
  EXPECT_EQ(EffectiveTag({}, 2), Tag::kRank);
  EXPECT_EQ(EffectiveTag({Tag::kNone, false, ""}, 2), Tag::kNone);
  EXPECT_EQ(EffectiveTag({Tag::kHost, false, ""}, 1), Tag::kHost);
}

TEST(TaggerTest, OnlyALoneRankWithoutTagOrTimePassesThrough) {
  EXPECT_TRUE(PassesThrough({}, 1));
  EXPECT_TRUE(PassesThrough({Tag::kNone, false, ""}, 1));
  EXPECT_FALSE(PassesThrough({Tag::kNone, false, ""}, 2));
  EXPECT_FALSE(PassesThrough({Tag::kNone, true, ""}, 1));
  EXPECT_FALSE(PassesThrough({Tag::kRank, false, ""}, 1));
}

TEST(TaggerTest, TimeHasMilliseconds) {
  absl::Time time = absl::FromUnixMillis(1700000000042);
  EXPECT_EQ(TimePrefix(time, absl::UTCTimeZone()), "2023-11-14T22:13:20.042 ");
}

}  // namespace
}  // namespace dtrain::output
