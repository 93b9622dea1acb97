// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/rankfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::hosts {
namespace {

using ::testing::HasSubstr;

std::string Parse(absl::string_view text) {
  auto places = ParseRankfile(text, "ranks");
  if (!places.ok()) return std::string(places.status().message());
  std::string out;
  for (const RankPlace& place : *places) {
    absl::StrAppend(&out, out.empty() ? "" : " | ", place.rank, " ", place.host);
    if (place.cpus) absl::StrAppend(&out, " ", *place.cpus);
  }
  return out;
}

TEST(Rankfile, ReadsRanksHostsAndCpus) {
  EXPECT_EQ(Parse("rank 0=a slot=0-3,8\nrank 1=b.example\nrank 2=::1 slots=7\n"),
            "0 a 0-3,8 | 1 b.example | 2 ::1 7");
  EXPECT_EQ(Parse("\xEF\xBB\xBF# x\r\nrank 0 = a slot = 1 // y\r\n\r\n/* z */ rank 1=a"),
            "0 a 1 | 1 a");
}

TEST(Rankfile, SortsByRankAndKeepsTheLine) {
  auto places = ParseRankfile("rank 2=c\nrank 0=a\nrank 1=b\n", "ranks");
  ASSERT_TRUE(places.ok());
  EXPECT_EQ(places->at(0).host, "a");
  EXPECT_EQ(places->at(0).line, 2u);
  EXPECT_EQ(places->at(2).host, "c");
  EXPECT_EQ(places->at(2).line, 1u);
}

TEST(Rankfile, RefusesGapsAndRepeats) {
  EXPECT_EQ(Parse("rank 0=a\nrank 2=b\n"),
            "ranks:2:1: rank 1 is missing, the next one is: \"2\"; "
            "number the ranks from 0 without gaps");
  EXPECT_THAT(Parse("rank 1=a"), HasSubstr("ranks:1:1: rank 0 is missing"));
  EXPECT_EQ(Parse("rank 0=a\nrank 1=b\nrank 0=c"),
            "ranks:3:1: rank is given twice: \"0\"; it is also on line 1");
}

TEST(Rankfile, RefusesBadLinesWithLineAndColumn) {
  EXPECT_EQ(Parse("\n# none\n"), "no ranks in ranks; write lines like rank 0=host slot=0-3");
  EXPECT_THAT(Parse("node1 slots=4"), HasSubstr("ranks:1:1: not a rank line: \"node1\""));
  EXPECT_THAT(Parse("rank x=a"), HasSubstr("ranks:1:6: rank is not a whole number: \"x\""));
  EXPECT_THAT(Parse("rank -1=a"), HasSubstr("ranks:1:6: rank is not a whole number"));
  EXPECT_THAT(Parse("rank 1e20=a"), HasSubstr("ranks:1:6: rank is not a whole number"));
  EXPECT_THAT(Parse("rank 4294967296=a"), HasSubstr("ranks:1:6: rank is out of range"));
  EXPECT_THAT(Parse("rank"), HasSubstr("rank has no value"));
  EXPECT_THAT(Parse("rank 0 a"), HasSubstr("ranks:1:6: rank has no host"));
  EXPECT_THAT(Parse("rank 0="), HasSubstr("ranks:1:8: host name is empty"));
  EXPECT_THAT(Parse("rank 0=+n1"), HasSubstr("ranks:1:8: host name must not contain '+'"));
  EXPECT_THAT(Parse("rank 0=u@a"), HasSubstr("ranks:1:9: host name must not contain '@'"));
  EXPECT_THAT(Parse("rank 0=-x"), HasSubstr("ranks:1:8: host name starts with '-'"));
  EXPECT_THAT(Parse("rank 0=a cpus=1"),
              HasSubstr("ranks:1:10: unknown setting of a rank: \"cpus\""));
  EXPECT_THAT(Parse("rank 0=a slot"), HasSubstr("ranks:1:10: unknown setting of a rank"));
  EXPECT_THAT(Parse("rank 0=a slot="), HasSubstr("ranks:1:15: slot has no value"));
  EXPECT_THAT(Parse("rank 0=a slot=x"), HasSubstr("ranks:1:15: not a list of cpus: \"x\""));
  EXPECT_THAT(Parse("rank 0=a slot=1:0-2"),
              HasSubstr("ranks:1:15: socket:core pairs are not supported"));
  EXPECT_THAT(Parse("rank 0=a slot=\r\r"), HasSubstr("ranks:1:15: not a list of cpus: \"\\r\""));
  EXPECT_THAT(Parse("rank 0=a slot=+1"), HasSubstr("ranks:1:15: not a list of cpus: \"+1\""));
  EXPECT_THAT(Parse("rank 0=a slot=1 x"), HasSubstr("ranks:1:17: text after the cpus of a rank"));
  EXPECT_THAT(Parse("/* rank 0=a"), HasSubstr("ranks:1:1: comment is never closed"));
}

}  // namespace
}  // namespace dtrain::hosts
