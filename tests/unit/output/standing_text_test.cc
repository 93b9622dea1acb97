// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/standing_text.h"

#include <gmock/gmock.h>

#include <random>
#include <string>
#include <vector>

namespace dtrain::output {
namespace {

using testing::ElementsAre;

class StandingTextTest : public testing::Test {
 protected:
  std::string Shows(absl::string_view bytes) {
    Add(bytes);
    return text_.Row(text_.rows() - 1);
  }
  void Add(absl::string_view bytes) {
    text_.Add(bytes, [this](absl::string_view line) { lines_.emplace_back(line); });
  }
  void Flush() {
    text_.Flush([this](absl::string_view line) { lines_.emplace_back(line); });
  }
  StandingText text_{StandingText::Controls::kShown};
  std::vector<std::string> lines_;
};

struct Case {
  std::string bytes;
  std::string shown;
};

TEST(StandingTextCases, OneLine) {
  const std::vector<Case> cases = {
      {"plain", "plain"},
      {"abc\rX", "Xbc"},
      {"\r 10%\r 20%", " 20%"},
      {"100%\r5%\033[K", "5%"},
      {"100%\r\033[2K5%", "5%"},
      {"|\b/\b-", "-"},
      {"ab\033[1Dc", "ac"},
      {"ab\033[5Gc", "ab  c"},
      {"ab\033[2Cc", "ab  c"},
      {"a\tb", "a       b"},
      {"abcdefghij\r\tX", "abcdefghXj"},
      {"\033[31mred\033[0m", "\033[31mred\033[0m"},
      {"\033[31mred\rb", "\033[31mbed\033[0m"},
      {"\033[1m\033[31mx\033[my", "\033[1m\033[31mx\033[0my"},
      {"\033[1;0;32mx", "\033[32mx\033[0m"},
      {"\033[38;5;0mx", "\033[38;5;0mx\033[0m"},
      {"\033[?25lhidden\033[?25h", "hidden"},
      {"\033]0;t\007", "\\x1b]0;t\\x07"},
      {"\033[2Jx", "\\x1b[2Jx"},
      {"\033[6n", "\\x1b[6n"},
      {"a\342\200\256b", "a\\xe2\\x80\\xaeb"},
      {"\377", "\\xff"},
      {"\344\275\240\rx", "x "},
      {"\344\275\240\b\bx", "x "},
      {"\344\275\240\bx", " x"},
      {"e\314\201\rx", "x"},
      {"e\314\201x", "e\314\201x"},
      {"\033", ""},
      {"\033[3", ""},
      {"\344\275", ""},
  };
  for (const Case& each : cases) {
    // However it is cut.
    for (size_t piece : {size_t{1}, size_t{2}, size_t{1000}}) {
      StandingText text(StandingText::Controls::kShown);
      for (size_t at = 0; at < each.bytes.size(); at += piece) {
        text.Add(absl::string_view(each.bytes).substr(at, piece),
                 [&](absl::string_view line) { ADD_FAILURE() << line; });
      }
      EXPECT_EQ(text.Row(0), each.shown) << testing::PrintToString(each.bytes);
    }
  }
}

TEST(StandingTextCases, PipesKeepWhatTerminalsMustNotGet) {
  StandingText text(StandingText::Controls::kKept);
  std::vector<std::string> lines;
  text.Add("\033]0;t\007a\tb\377 \roh\r\n",
           [&](absl::string_view line) { lines.emplace_back(line); });
  EXPECT_THAT(lines, ElementsAre("oh"));
  text.Add("\033]0;t\007a\tb\377", [](absl::string_view) {});
  EXPECT_EQ(text.Row(0), "\033]0;t\007a\tb\377");
}

TEST_F(StandingTextTest, ALineThatEndsIsGivenOutAsItStood) {
  Add("10%\r20%\nnext");
  EXPECT_THAT(lines_, ElementsAre("20%"));
  EXPECT_EQ(text_.rows(), 1u);
  EXPECT_FALSE(text_.overwritten());
  Add("\n");
  EXPECT_TRUE(text_.empty());
  Flush();
  EXPECT_THAT(lines_, ElementsAre("20%", "next"));
}

TEST_F(StandingTextTest, NestedBarsStandAsRows) {
  // The first state goes out before it is known that the cursor goes up.
  Add("\router 0\n\rinner 0\033[A");
  EXPECT_THAT(lines_, ElementsAre("outer 0"));
  for (int i = 1; i < 100; ++i) Add("\router 1\n\rinner 1\033[A");
  EXPECT_THAT(lines_, ElementsAre("outer 0"));
  EXPECT_EQ(text_.rows(), 2u);
  EXPECT_EQ(text_.Row(0), "outer 1");
  EXPECT_EQ(text_.Row(1), "inner 1");
  Add("\n\r       \r\033[A\router 2\nbye\n");
  Flush();
  EXPECT_THAT(lines_, ElementsAre("outer 0", "outer 2", "bye    "));
  EXPECT_TRUE(text_.empty());
}

TEST_F(StandingTextTest, AProgramThatNoLongerGoesUpWritesLinesAgain) {
  Add("a\nb\033[Ac\n\n");
  for (int i = 0; i < 30; ++i) Add("line\n");
  EXPECT_TRUE(text_.empty());
  EXPECT_EQ(lines_.back(), "line");
}

TEST_F(StandingTextTest, RowsAndColumnsAreBounded) {
  for (int i = 0; i < 1000; ++i) Add("x\n\033[99A");
  EXPECT_LE(text_.rows(), StandingText::kMostRows);
  Add("\033[J");
  Add(std::string(StandingText::kMostColumns + 10, 'x'));
  EXPECT_LE(text_.Width(0), StandingText::kMostColumns);
  for (int i = 0; i < 5000; ++i) Add("\r\033[38;2;1;2;" + std::to_string(i) + "mx\033[0m");
  EXPECT_EQ(text_.Row(text_.rows() - 1, 1), "\033[38;2;1;2;4999mx\033[0m");
}

TEST_F(StandingTextTest, PartsOfALine) {
  Add("ab\344\275\240cd");
  EXPECT_EQ(text_.Width(0), 6u);
  EXPECT_EQ(text_.Row(0, 3), "ab");
  EXPECT_EQ(text_.Row(0, 4), "ab\344\275\240");
  EXPECT_EQ(text_.EndOfRow(0, 3), "cd");
  EXPECT_EQ(text_.EndOfRow(0, 4), "\344\275\240cd");
}

TEST_F(StandingTextTest, NoBytesGetThroughThatATerminalMustNotGet) {
  const std::string alphabet("\033[]0;52mKJABGH?>\r\n\t\b\007\233\302\240\303\251\344\275\240Px\0",
                             32);
  std::mt19937 random(20261201);
  for (int round = 0; round < 3000; ++round) {
    lines_.clear();
    for (int piece = 0; piece < 3; ++piece) {
      std::string bytes;
      for (size_t i = random() % 40; i > 0; --i) bytes += alphabet[random() % alphabet.size()];
      Add(bytes);
    }
    Flush();
    ASSERT_TRUE(text_.empty());
    for (const std::string& line : lines_) {
      for (size_t i = 0; i < line.size(); ++i) {
        const auto c = static_cast<unsigned char>(line[i]);
        if (c == 0x1b) {
          const size_t end = line.find_first_not_of("0123456789;:", i + 2);
          ASSERT_TRUE(end != std::string::npos && line[i + 1] == '[' && line[end] == 'm') << line;
        } else {
          ASSERT_TRUE(c >= 0x20 && c != 0x7f) << testing::PrintToString(line);
        }
      }
    }
  }
}

TEST(UnfinishedLineTest, IsWhatStandsWithoutColours) {
  const std::vector<Case> cases = {
      {"", ""},
      {"done\n", ""},
      {"done\nname? ", "name?"},
      {"\r 10%\r 20%\r", " 20%"},
      {"\033[31mred\033[0m\033[K", "red"},
      {"a 1%\n\rb 2%\033[A\ra 3%", "b 2%"},  // nested bars
      {"\033]0;t\007x", "\\x1b]0;t\\x07x"},
  };
  for (const Case& each : cases) EXPECT_EQ(UnfinishedLine(each.bytes), each.shown) << each.bytes;
}

TEST(NeedsScreenTest, FindsTheSequence) {
  for (absl::string_view up : {"x\033[A", "x\033[31m\033[12A", "\033[2F"}) {
    EXPECT_TRUE(MovesUp(up) && NeedsScreen(up)) << up;
  }
  for (absl::string_view other : {"a\bb", "\033[2K", "\033[1K", "\033[3C", "\033[?25l"}) {
    EXPECT_TRUE(NeedsScreen(other) && !MovesUp(other)) << other;
  }
  for (absl::string_view other : {"", "A", "\033[", "\033[1", "\033[mA", "\033]A", "[A", "\033[K",
                                  "\033[2J", "\033[?1049h", "\033[>1A"}) {
    EXPECT_FALSE(NeedsScreen(other)) << other;
  }
}

}  // namespace
}  // namespace dtrain::output
