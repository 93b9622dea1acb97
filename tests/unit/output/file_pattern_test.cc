// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/file_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::output {
namespace {

using testing::HasSubstr;
using testing::Not;

// `per_node` ranks on each host.
Layout RanksOn(const std::vector<std::string>& hosts, uint32_t per_node) {
  Layout layout;
  layout.job_id = "dtrain-1f";
  layout.hosts = hosts;
  for (uint32_t node = 0; node < hosts.size(); ++node) {
    for (uint32_t i = 0; i < per_node; ++i) layout.ranks.push_back({node, i});
  }
  return layout;
}

FilePattern Pattern(absl::string_view text) {
  auto pattern = FilePattern::Parse(text);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  return pattern.ok() ? *pattern : FilePattern();
}
std::string ParseError(absl::string_view text) {
  return std::string(FilePattern::Parse(text).status().message());
}
std::string CheckError(absl::string_view text, const Layout& layout) {
  return std::string(Pattern(text).Check(layout).message());
}
// "FOLDER: NAME" of a rank's stderr.
std::string NameOf(absl::string_view text, const Layout& layout, uint32_t rank) {
  const FilePattern pattern = Pattern(text);
  return absl::StrCat(pattern.folder(), ": ",
                      pattern.Name(layout, Rank(rank), v1::STREAM_KIND_STDERR));
}

TEST(FilePatternTest, LettersStandForWhereARankIs) {
  const Layout layout = RanksOn({"a", "b"}, 8);
  EXPECT_EQ(NameOf("%r.log", layout, 9), ".: 9.log");
  EXPECT_EQ(NameOf("out/%R.log", layout, 9), "out: 09.log");
  EXPECT_EQ(NameOf("/x/y/%h/%n-%l.%s", layout, 9), "/x/y: b/1-1.stderr");
  Layout third = layout;
  third.attempt = 2;
  EXPECT_EQ(NameOf("/%j/attempt_%a/%r", third, 15), "/: dtrain-1f/attempt_2/15");
  EXPECT_EQ(NameOf("/%j/rank.%R/%s", layout, 15), "/: dtrain-1f/rank.15/stderr");
  EXPECT_EQ(NameOf("logs/100%%-%r%%", layout, 3), "logs: 100%-3%");
  EXPECT_EQ(Pattern("%s").Name(layout, Rank(0), v1::STREAM_KIND_STDOUT), "stdout");
}

TEST(FilePatternTest, RanksArePaddedToTheWidthOfTheLast) {
  EXPECT_EQ(NameOf("%R", RanksOn({"a"}, 1), 0), ".: 0");
  EXPECT_EQ(NameOf("%R", RanksOn({"a"}, 10), 9), ".: 9");
  EXPECT_EQ(NameOf("%R", RanksOn({"a"}, 11), 9), ".: 09");
  EXPECT_EQ(NameOf("%R", RanksOn({"a"}, 101), 9), ".: 009");
}

TEST(FilePatternTest, WhetherStreamsHaveFilesOfTheirOwn) {
  EXPECT_TRUE(Pattern("%r.%s").HasStream());
  EXPECT_FALSE(Pattern("%r.%%s").HasStream());
}

TEST(FilePatternTest, WhatStandsForNothingIsAMistake) {
  EXPECT_THAT(ParseError("%x.log"), HasSubstr("\"%x\" is not a placeholder; use %r (rank)"));
  EXPECT_THAT(ParseError("a%"), HasSubstr("\"%\" is not a placeholder"));
  EXPECT_THAT(ParseError("%05r"), HasSubstr("\"%0\" is not a placeholder"));
  EXPECT_THAT(ParseError("%\x1b"), Not(HasSubstr("\x1b")));
}

TEST(FilePatternTest, APatternEndsInTheNameOfAFile) {
  for (const char* text : {"logs/", "%r/", "%h/..", "..", ".", "", "/", "%r/."}) {
    EXPECT_THAT(ParseError(text), HasSubstr("names a directory")) << text;
  }
  for (const char* text : {"%r", "a/%h", "%r..", "a/..%r", "../%r"})
    EXPECT_EQ(ParseError(text), "");
}

TEST(FilePatternTest, RanksThatWouldShareAFileAreRefused) {
  const Layout layout = RanksOn({"a", "b"}, 2);
  EXPECT_EQ(CheckError("logs/x.log", layout),
            "--output logs/x.log: ranks 0 and 1 would both write to logs/x.log: put %r, or %h-%l, "
            "into the name");
  EXPECT_THAT(CheckError("%h", layout), HasSubstr("ranks 0 and 1"));
  EXPECT_THAT(CheckError("%l.%s", layout),
              HasSubstr("ranks 0 and 2 would both write to ./0.stdout"));
  for (const char* text : {"%r", "%R", "%h-%l", "%n-%l", "%l/%h/%s", "%j-%r"}) {
    EXPECT_EQ(CheckError(text, layout), "") << text;
  }
  EXPECT_EQ(CheckError("x.log", RanksOn({"a"}, 1)), "");
  EXPECT_EQ(CheckError("%h", RanksOn({"a", "b", "c"}, 1)), "");
}

// "1" and "11" are "111" in either order.
TEST(FilePatternTest, NumbersThatRunIntoEachOtherAreSeen) {
  EXPECT_THAT(CheckError("%n%l", RanksOn(std::vector<std::string>(12, "h"), 12)),
              HasSubstr("would both write to ./"));
  EXPECT_THAT(CheckError("%h%l", RanksOn({"node1", "node11"}, 12)),
              HasSubstr("ranks 10 and 12 would both write to ./node110"));
}

// A host list cannot name such hosts; nothing here relies on it.
TEST(FilePatternTest, NoHostLeadsOutOfTheFolder) {
  for (const char* host : {"../../etc", "a/b", "..", ".", ""}) {
    EXPECT_THAT(CheckError("logs/%h/%r", RanksOn({host}, 1)),
                HasSubstr("cannot be part of the name"));
  }
  EXPECT_THAT(CheckError("%r", RanksOn({std::string("a\0b", 3)}, 1)), HasSubstr("cannot be part"));
  EXPECT_EQ(CheckError("%h", RanksOn({"fe80::1%eth0"}, 1)), "");
}

}  // namespace
}  // namespace dtrain::output
