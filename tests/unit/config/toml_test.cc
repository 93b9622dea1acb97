// SPDX-License-Identifier: Apache-2.0
#include "common/config/toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"

namespace dtrain::config {
namespace {

// "2 [launch] export=A=1|B;" for each entry, or the error.
std::string Read(absl::string_view text) {
  const auto entries = ParseToml("/c.toml", text);
  if (!entries.ok()) {
    EXPECT_EQ(entries.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(entries.status().message());
  }
  return absl::StrJoin(*entries, "", [](std::string* out, const Entry& entry) {
    absl::StrAppend(out, entry.line, " [", entry.section, "] ", entry.key, "=",
                    absl::StrJoin(entry.values, "|"), ";");
  });
}

TEST(TomlTest, EntriesComeInTheOrderOfTheirLinesWithTheirValuesAsText) {
  EXPECT_EQ(Read(""), "");
  EXPECT_EQ(Read("z = 1\na = -2\r\n[launch]  # ours\ny = 1.5\nb = true\nx = 0x10\nc = 1_000\n"),
            "1 [] z=1;2 [] a=-2;4 [launch] y=1.5;5 [launch] b=true;6 [launch] x=16;7 [launch] "
            "c=1000;");
  EXPECT_EQ(Read("history.jobs = 0\n[a.b]\n\"q r\" = 'c:\\d'\n"),
            "1 [history] jobs=0;3 [a.b] q r=c:\\d;");
  EXPECT_EQ(Read("a = \"x # no comment\"  # one\nb = '''\ntwo\nlines'''\nd = 2026-01-02\n"),
            "1 [] a=x # no comment;2 [] b=two\nlines;5 [] d=2026-01-02;");
}

TEST(TomlTest, AListMayTakeSeveralLines) {
  EXPECT_EQ(Read("export = [\n  \"A=1\",  # why\n  \"B\",\n]\nempty = []\n"),
            "1 [] export=A=1|B;5 [] empty=;");
  EXPECT_EQ(Read("x = 1\ny = [1,\n [2]]\n"),
            "/c.toml:3: y: a list of lists or tables means nothing here");
}

TEST(TomlTest, MistakesAreNamedWithTheirLine) {
  EXPECT_EQ(Read("a = 1\na = 2\n"),
            "/c.toml:2: Error while parsing key-value pair: cannot redefine existing integer 'a'");
  EXPECT_THAT(Read("[launch]\nlease = 20s  # long\n"),
              testing::AllOf(testing::StartsWith("/c.toml:2: "),
                             testing::EndsWith("; text needs quotes: lease = \"20s\"")));
  EXPECT_THAT(Read("hostfile = hosts\n"), testing::EndsWith("hostfile = \"hosts\""));
  EXPECT_THAT(Read("[lau\nx = 1\n"), testing::StartsWith("/c.toml:1: "));
  for (absl::string_view text : {"[[[", "[", "=", "\"", "a=", "a=[[[", "x = \"\xff\"", "a b = 1"}) {
    EXPECT_THAT(Read(text), testing::StartsWith("/c.toml:1: ")) << text;
  }
  EXPECT_THAT(Read(std::string(100'000, '[')), testing::StartsWith("/c.toml:1: "));
  EXPECT_THAT(Read("a=" + std::string(100'000, '[')), testing::StartsWith("/c.toml:1: "));
}

}  // namespace
}  // namespace dtrain::config
