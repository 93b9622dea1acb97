// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/ignore.h"

#include <gtest/gtest.h>

namespace dtrain::stage {
namespace {

// What git 2.39 says of the same patterns and paths (git check-ignore).
TEST(IgnoreTest, MatchesAsGitDoes) {
  struct Case {
    const char* lines;
    const char* path;
    bool matches;
  };
  constexpr Case kCases[] = {
      {"*.pt", "a/b/model.pt", true},
      {"*.pt", "model.pth", false},
      {"/data", "data/x", true},
      {"/data", "src/data/x", false},
      {"data/", "src/data/x", true},
      {"data/", "src/data", false},
      {"src/*.log", "src/a.log", true},
      {"src/*.log", "src/b/a.log", false},
      {"src/**/a.log", "src/b/c/a.log", true},
      {"src/**/a.log", "src/a.log", true},
      {"**/logs", "x/logs/y", true},
      {"logs/**", "logs/x/y", true},
      {"logs/**", "x/logs/y", false},
      {"*.txt\n!keep.txt", "keep.txt", false},
      {"*.txt\n!keep.txt", "other.txt", true},
      {"out/\n!out/keep.txt", "out/keep.txt", true},
      {"# *.py", "a.py", false},
      {"\\#a", "#a", true},
      {"a[0-9].bin", "a7.bin", true},
      {"a[0-9].bin", "ab.bin", false},
      {"trailing  ", "trailing", true},
      {"crlf\r", "crlf", true},
      {"", "a", false},
      {"/", "a", false},
  };
  for (const Case& c : kCases) {
    IgnoreRules rules;
    rules.AddLines(c.lines);
    EXPECT_EQ(rules.Matches(c.path), c.matches) << c.lines << " of " << c.path;
  }
}

}  // namespace
}  // namespace dtrain::stage
