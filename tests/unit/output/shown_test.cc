// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/shown.h"

#include <gtest/gtest.h>

#include <string>

namespace dtrain::output {
namespace {

// "oe o. .. .e": what is shown of ranks 0 to 3, two on each node.
std::string WhatIsShown(const Shown& shown) {
  std::string text;
  for (uint32_t rank : {0, 1, 2, 3}) {
    text += rank == 0 ? "" : " ";
    text += IsShown(shown, Rank(rank), rank % 2, v1::STREAM_KIND_STDOUT) ? "o" : ".";
    text += IsShown(shown, Rank(rank), rank % 2, v1::STREAM_KIND_STDERR) ? "e" : ".";
  }
  return text;
}

TEST(ShownTest, EverythingIsUnlessSomethingIsChosen) { EXPECT_EQ(WhatIsShown({}), "oe oe oe oe"); }

TEST(ShownTest, RanksAreChosenByRangesThatIncludeBothEnds) {
  Shown shown;
  shown.ranks = {{0, 0}, {2, 3}};
  EXPECT_EQ(WhatIsShown(shown), "oe .. oe oe");
  shown.ranks = {{4, 1000000}};
  EXPECT_EQ(WhatIsShown(shown), ".. .. .. ..");
}

TEST(ShownTest, LocalRanksAreChosenOnEachNode) {
  Shown shown;
  shown.local_ranks = {1};
  EXPECT_EQ(WhatIsShown(shown), ".. oe .. oe");
  shown.local_ranks = std::set<uint32_t>();
  EXPECT_EQ(WhatIsShown(shown), ".. .. .. ..");
}

TEST(ShownTest, StreamsAreChosenByLocalRankOverADefault) {
  Shown shown;
  shown.streams = Streams::kNone;
  EXPECT_EQ(WhatIsShown(shown), ".. .. .. ..");
  shown.streams = Streams::kStderr;
  shown.streams_of = {{1, Streams::kStdout}};
  EXPECT_EQ(WhatIsShown(shown), ".e o. .e o.");
  shown.streams = Streams::kBoth;
  shown.streams_of = {{0, Streams::kNone}};
  EXPECT_EQ(WhatIsShown(shown), ".. oe .. oe");
}

TEST(ShownTest, AllConditionsHaveToHold) {
  Shown shown;
  shown.ranks = {{1, 3}};
  shown.local_ranks = {1};
  shown.streams = Streams::kStderr;
  EXPECT_EQ(WhatIsShown(shown), ".. .e .. .e");
}

TEST(ShownTest, RanksThatTheJobDoesNotHaveAreToldOnce) {
  Shown shown;
  EXPECT_EQ(WarningOfRanks(shown, 1), "");
  shown.ranks = {{0, 0}, {2, 9}, {20, 20}};
  EXPECT_EQ(WarningOfRanks(shown, 21), "");
  EXPECT_EQ(WarningOfRanks(shown, 4), "--show-ranks: the job has no rank 4, only 0 to 3");
  EXPECT_EQ(WarningOfRanks(shown, 1), "--show-ranks: the job has no rank 2, only 0");
}

}  // namespace
}  // namespace dtrain::output
