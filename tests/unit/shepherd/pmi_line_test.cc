// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::shepherd {
namespace {

using ::testing::HasSubstr;

TEST(PmiLineTest, ReadsCommandAndArguments) {
  auto request = ParsePmiLine("cmd=put kvsname=job_0 key=P0-businesscard value=a$b#c=d");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->command, "put");
  EXPECT_FALSE(request->multi_line);
  EXPECT_EQ(*request->Find("kvsname"), "job_0");
  EXPECT_EQ(*request->Find("value"), "a$b#c=d");  // split at the first '='
  EXPECT_EQ(request->Find("nothing"), nullptr);
}

TEST(PmiLineTest, ReadsNumbers) {
  auto request = ParsePmiLine("cmd=abort exitcode=-7 other=x");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->FindInt("exitcode"), -7);
  EXPECT_EQ(request->FindInt("other"), std::nullopt);
  EXPECT_EQ(request->FindInt("missing"), std::nullopt);
}

// As MPICH 4.2 sends it.
TEST(PmiLineTest, AnAbortSaysWhyInAnyWords) {
  for (const std::string& message :
       {std::string("application called MPI_Abort(MPI_COMM_WORLD, 42) - process 1"),
        std::string("a=b a=b \x01\xff"), std::string(2000, 'x')}) {
    auto request = ParsePmiLine(absl::StrCat("cmd=abort exitcode=42 message=", message));
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->command, "abort");
    EXPECT_EQ(request->FindInt("exitcode"), 42);
  }
  EXPECT_FALSE(ParsePmiLine("cmd=put key=k message=two words").ok());
}

TEST(PmiLineTest, TakesExtraSpacesEmptyValuesAndMcmd) {
  auto request = ParsePmiLine("mcmd=spawn   a=  ");
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->multi_line);
  EXPECT_EQ(*request->Find("a"), "");
}

TEST(PmiLineTest, RefusesWhatIsNoMessage) {
  for (const std::string& line :
       {std::string(""), std::string("   "), std::string("cmd="), std::string("put key=1"),
        std::string("key=1 cmd=put"), std::string("cmd=put noequals"),
        std::string("cmd=put =value"), std::string("cmd=put a=1 a=2"), std::string("cmd=a\tb"),
        std::string("cmd=a\r"), std::string("cmd=a\0b", 7), std::string("GET / HTTP/1.1"),
        "cmd=put value=" + std::string(1024, 'x')}) {
    EXPECT_FALSE(ParsePmiLine(line).ok()) << line;
  }
}

TEST(PmiLineTest, BoundsTheNumberOfArguments) {
  std::string line = "cmd=x";
  for (int i = 0; i < 100; ++i) line += " " + std::to_string(i) + "=";
  EXPECT_FALSE(ParsePmiLine(line).ok());
}

TEST(PmiLineTest, AcceptsTheLongestLine) {
  std::string line = "cmd=put value=";
  line += std::string(kPmiLineMax - 1 - line.size(), 'x');
  EXPECT_TRUE(ParsePmiLine(line).ok());
  EXPECT_FALSE(ParsePmiLine(line + "x").ok());
}

TEST(PmiLineTest, ErrorsShowTheLineEscaped) {
  EXPECT_THAT(std::string(ParsePmiLine("\x1b[2J").status().message()), HasSubstr("\\x1b[2J"));
}

TEST(PmiLineTest, FormatsInTheGivenOrder) {
  EXPECT_EQ(FormatPmiLine("get_result", {{"rc", "0"}, {"value", "v"}}),
            "cmd=get_result rc=0 value=v\n");
  EXPECT_EQ(FormatPmiLine("barrier_out", {}), "cmd=barrier_out\n");
}

TEST(PmiLineTest, FindsTheFirstLineOfWhatHasCome) {
  EXPECT_EQ(PmiLineSize(""), 0u);
  EXPECT_EQ(PmiLineSize("cmd=get_max"), 0u);
  EXPECT_EQ(PmiLineSize("cmd=a\ncmd=b\n"), 6u);
  EXPECT_EQ(PmiLineSize(std::string(kPmiLineMax - 1, 'x')), 0u);
  EXPECT_EQ(PmiLineSize(std::string(5000, 'x')), kPmiLineMax);
  EXPECT_FALSE(ParsePmiLine(std::string(kPmiLineMax, 'x')).ok());
}

TEST(PmiLineTest, KnowsWhatALineCanCarry) {
  EXPECT_TRUE(FitsPmiLine("a=b;c"));
  EXPECT_TRUE(FitsPmiLine(""));
  for (absl::string_view value : {"a b", "a\n", "\t", "\x7f"}) EXPECT_FALSE(FitsPmiLine(value));
}

TEST(PmiLineTest, MakesWordsOfAnything) {
  EXPECT_EQ(PmiWord("my job\n\xff", 100), "my_job__");
  EXPECT_EQ(PmiWord("abcdef", 3), "abc");
}

}  // namespace
}  // namespace dtrain::shepherd
