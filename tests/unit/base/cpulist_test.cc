// SPDX-License-Identifier: Apache-2.0
#include "common/base/cpulist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dtrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int> Parse(absl::string_view text) {
  auto cpus = ParseCpuList(text);
  EXPECT_TRUE(cpus.ok()) << cpus.status();
  return cpus.ok() ? *cpus : std::vector<int>{-1};
}

TEST(CpuList, ReadsWhatTheKernelWrites) {
  EXPECT_THAT(Parse("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(Parse("7"), ElementsAre(7));
  EXPECT_THAT(Parse("65535"), ElementsAre(65535));
}

TEST(CpuList, EmptyTextIsAnEmptyList) {
  EXPECT_THAT(Parse(""), IsEmpty());
  EXPECT_THAT(Parse("\n"), IsEmpty());
}

TEST(CpuList, SortsAndDropsRepeats) {
  EXPECT_THAT(Parse("4,2-3,3,0-2"), ElementsAre(0, 1, 2, 3, 4));
}

TEST(CpuList, RefusesWhatIsNotAList) {
  for (const char* text :
       {"x", "1,", ",1", "1,,2", "-1", "3-1", "1-", "1-2-3", "0-65536", "99999999999", "0x3"}) {
    auto cpus = ParseCpuList(text);
    EXPECT_FALSE(cpus.ok()) << text;
    EXPECT_THAT(std::string(cpus.status().message()), HasSubstr(text));
  }
}

TEST(CpuList, ManyWideOverlappingRangesCostNoMemory) {
  std::string text = "0-65535";
  for (int i = 0; i < 10000; ++i) text += ",0-65535";
  EXPECT_EQ(Parse(text).size(), 65536u);
}

TEST(CpuList, FormatsRunsAsRanges) {
  EXPECT_EQ(FormatCpuList({}), "");
  EXPECT_EQ(FormatCpuList({5}), "5");
  EXPECT_EQ(FormatCpuList({0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
}

TEST(CpuList, ReadsBackWhatItFormats) {
  std::vector<int> cpus = {0, 2, 3, 4, 63, 64, 127};
  EXPECT_EQ(Parse(FormatCpuList(cpus)), cpus);
}

}  // namespace
}  // namespace dtrain
