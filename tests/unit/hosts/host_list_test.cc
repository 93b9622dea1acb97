// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::hosts {
namespace {

using ::testing::HasSubstr;

std::string Parse(absl::string_view text) {
  auto list = ParseHostList(text);
  if (!list.ok()) return std::string(list.status().message());
  std::string out;
  for (const HostEntry& entry : list->entries) {
    absl::StrAppend(&out, out.empty() ? "" : " ", entry.user, entry.user.empty() ? "" : "@",
                    entry.host, ":", entry.slots ? absl::StrCat(*entry.slots) : "?");
  }
  return out;
}

TEST(HostList, SplitsAtCommasOutsideOfBrackets) {
  EXPECT_EQ(Parse("a:4,b[1-2,7]:2,user@c"), "a:4 b1:2 b2:2 b7:2 user@c:?");
  EXPECT_EQ(Parse("[::1]:4,::2,fe80::3%eth0"), "::1:4 ::2:? fe80::3%eth0:?");
  EXPECT_EQ(Parse(" a:1 ,\tb:2 "), "a:1 b:2");
  EXPECT_EQ(Parse("localhost"), "localhost:?");
}

TEST(HostList, CountsRepeatedHosts) {
  EXPECT_EQ(Parse("a,a,b"), "a:2 b:1");
  EXPECT_EQ(Parse("a:2,b,a:3"), "a:5 b:?");
}

TEST(HostList, MarksSlotsThatLookLikeAPort) {
  auto list = ParseHostList("a:22,b:2222,c:8,d,e:22,e:22");
  ASSERT_TRUE(list.ok());
  std::string marked;
  for (const HostEntry& entry : list->entries) {
    if (entry.slots_like_port) marked += entry.host;
  }
  EXPECT_EQ(marked, "ab");
  EXPECT_FALSE(ParseHostfile("a slots=22\n", "hosts")->entries[0].slots_like_port);
}

TEST(HostList, RemembersTheColumnOfEachHost) {
  auto list = ParseHostList("a:4,b[1-2],c");
  ASSERT_TRUE(list.ok());
  std::vector<uint32_t> columns;
  for (const HostEntry& entry : list->entries) columns.push_back(entry.column);
  EXPECT_THAT(columns, ::testing::ElementsAre(1, 5, 5, 12));
}

TEST(HostList, ErrorsNameFlagAndColumn) {
  EXPECT_EQ(Parse(""), "no hosts in --hosts; name at least one");
  EXPECT_EQ(Parse("  "), "no hosts in --hosts; name at least one");
  EXPECT_EQ(Parse("a:4,b:x"),
            "--hosts, column 7: slots is not a whole number: \"x\"; give a number from 1 to 65535");
  EXPECT_THAT(Parse("a,,b"), HasSubstr("--hosts, column 3: host name is empty"));
  EXPECT_THAT(Parse("a,"), HasSubstr("--hosts, column 3: host name is empty"));
  EXPECT_THAT(Parse(","), HasSubstr("--hosts, column 1: host name is empty"));
  EXPECT_THAT(Parse("a slots=4"), HasSubstr("--hosts, column 2: host name must not contain ' '"));
  EXPECT_THAT(Parse("a,b[1-2,c"), HasSubstr("--hosts, column 4: '[' without ']'"));
  EXPECT_THAT(Parse("a,x:1:2"), HasSubstr("--hosts, column 3: not an IPv6 address"));
  EXPECT_THAT(Parse("u@a,v@a"),
              HasSubstr("user v here, but user u before (first named on column 1)"));
  EXPECT_THAT(Parse("n[0-999999999]"), HasSubstr("--hosts, column 3: range names too many hosts"));
  EXPECT_EQ(ParseHostList("", "DTRAIN_HOSTS").status().message(),
            "no hosts in DTRAIN_HOSTS; name at least one");
}

// A11
TEST(HostList, BadRangesAndRangeBombsAreRefusedAsInAFile) {
  EXPECT_THAT(Parse("n[0-999999999]"), HasSubstr("--hosts, column 3: range names too many hosts"));
  EXPECT_THAT(Parse("n[0-9999][0-9999]"),
              HasSubstr("--hosts, column 10: ranges name too many hosts"));
  EXPECT_THAT(Parse("n[1-3"), HasSubstr("--hosts, column 2: '[' without ']'"));
  EXPECT_THAT(Parse("n[3-1]"), HasSubstr("--hosts, column 3: range runs backwards"));
}

}  // namespace
}  // namespace dtrain::hosts
