// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/terminal_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "launcher/output/line_splitter.h"

namespace dtrain::output {
namespace {

std::string Shown(absl::string_view line, absl::string_view prefix = "[3] ") {
  std::string out;
  AppendForTerminal(line, prefix, out);
  return out;
}

TEST(TerminalTextTest, OrdinaryTextIsNotTouched) {
  for (absl::string_view line : {"", "plain", "a\tb", "back\\slash", "h\303\251llo \342\234\223",
                                 "\360\237\232\200", "\344\275\240"}) {
    EXPECT_EQ(Shown(line), "[3] " + std::string(line));
  }
}

TEST(TerminalTextTest, ColoursPassAndEndWithTheLine) {
  EXPECT_EQ(Shown("\033[31mred\033[0m"), "[3] \033[31mred\033[0m\033[0m");
  EXPECT_EQ(Shown("\033[1;38:5:9mx"), "[3] \033[1;38:5:9mx\033[0m");
  EXPECT_EQ(Shown("\033[mx\033[K"), "[3] \033[mx\033[K\033[0m");
}

// J4
TEST(TerminalTextTest, OtherSequencesAreShown) {
  EXPECT_EQ(Shown("\033]52;c;aGk=\007"), "[3] \\x1b]52;c;aGk=\\x07");
  EXPECT_EQ(Shown("\033]0;title\033\\"), "[3] \\x1b]0;title\\x1b\\");
  EXPECT_EQ(Shown("\033[2J\033[H"), "[3] \\x1b[2J\\x1b[H");
  EXPECT_EQ(Shown("\033[A\033[2K"), "[3] \\x1b[A\\x1b[2K");
  EXPECT_EQ(Shown("\033[>4m\033[?25l"), "[3] \\x1b[>4m\\x1b[?25l");
  EXPECT_EQ(Shown("\033c\033P+q\033\\"), "[3] \\x1bc\\x1bP+q\\x1b\\");
  EXPECT_EQ(Shown("a\bb\016\177"), "[3] a\\x08b\\x0e\\x7f");
  EXPECT_EQ(Shown(absl::string_view("\0\v\f", 3)), "[3] \\x00\\x0b\\x0c");
}

// J4: the same controls in 8 bits, as UTF-8, and as UTF-8 that is longer than allowed.
TEST(TerminalTextTest, EightBitControlsAreShown) {
  EXPECT_EQ(Shown("\2332J"), "[3] \\x9b2J");
  EXPECT_EQ(Shown("\302\2332J"), "[3] \\xc2\\x9b2J");
  EXPECT_EQ(Shown("\340\202\2332J"), "[3] \\xe0\\x82\\x9b2J");
  EXPECT_EQ(Shown("\360\200\202\233"), "[3] \\xf0\\x80\\x82\\x9b");
  EXPECT_EQ(Shown("\033\302\233"), "[3] \\x1b\\xc2\\x9b");
}

TEST(TerminalTextTest, WhatTurnsTextAroundIsShown) {
  EXPECT_EQ(Shown("a\342\200\256b"), "[3] a\\xe2\\x80\\xaeb");
  EXPECT_EQ(Shown("\342\201\247"), "[3] \\xe2\\x81\\xa7");
  EXPECT_EQ(Shown("\342\200\251 \342\201\252"), "[3] \342\200\251 \342\201\252");
}

TEST(TerminalTextTest, OfOthersOnlyTextPasses) {
  const std::string bytes = "a\tb\r\n\033[31mh\303\251\033]0;t\007\342\200\256\302\233\377";
  const std::string shown =
      "a\tb\r\n\\x1b[31mh\303\251\\x1b]0;t\\x07\\xe2\\x80\\xae\\xc2\\x9b\\xff";
  for (size_t piece : {size_t{1}, size_t{3}, bytes.size()}) {
    std::string out;
    std::string rest;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      rest += bytes.substr(at, piece);
      rest = rest.substr(rest.size() - AppendForOthers(rest, out));
    }
    EXPECT_EQ(out + rest, shown) << piece;
  }
}

// J4: progress bars stay readable; nobody can write over the rank.
TEST(TerminalTextTest, AfterACarriageReturnThePrefixStandsAgain) {
  EXPECT_EQ(Shown("\r 10%\r 20%"), "[3] \r[3]  10%\r[3]  20%");
  EXPECT_EQ(Shown("ok\r[0] faked"), "[3] ok\r[3] [0] faked");
  EXPECT_EQ(Shown("a\r\r\rb"), "[3] a\r[3] b");
  EXPECT_EQ(Shown("windows\r"), "[3] windows\r");
  EXPECT_EQ(Shown("\033[7mx\ry"), "[3] \033[7mx\033[0m\r[3] y");
  EXPECT_EQ(Shown("a\rb", ""), "a\rb");
}

TEST(TerminalTextTest, ASequenceThatTheLineCutsIsShown) {
  for (absl::string_view line : {"\033", "\033[", "\033[3", "\033[31;", "\033]52;c;"}) {
    EXPECT_EQ(Shown(line), "[3] \\x1b" + std::string(line.substr(1)));
  }
  EXPECT_EQ(Shown("31mx"), "[3] 31mx");
}

// Nothing dangerous is left of any bytes, in whatever pieces they come: what is taken away here is
// all that may pass.
bool IsHarmless(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == 0x1b) {
      const size_t end = text.find_first_not_of("0123456789;:", i + 2);
      if (end == std::string::npos || text[i + 1] != '[') return false;
      if (text[end] != 'm' && text[end] != 'K') return false;
    } else if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7f) {
      return false;
    } else if (c >= 0x80 && c < 0xa0) {
      const auto before = i == 0 ? 0 : static_cast<unsigned char>(text[i - 1]);
      if (before < 0x80 || before == 0xc2) return false;
    }
  }
  return true;
}

TEST(TerminalTextTest, NoBytesInNoPiecesGetThroughUnsafe) {
  const std::string alphabet("\033[]0;52mKJ?>\r\n\t\b\007\233\302\240\303\251\342\234\223\\Px\0",
                             29);
  std::mt19937 random(20261121);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (size_t i = random() % 60; i > 0; --i) bytes += alphabet[random() % alphabet.size()];
    std::string whole;
    std::string pieces;
    LineSplitter one;
    LineSplitter many;
    auto to = [](std::string& out) {
      return [&out](absl::string_view line, bool) {
        AppendForTerminal(line, "[3] ", out);
        out += '\n';
      };
    };
    one.Add(bytes, to(whole));
    one.Flush(to(whole));
    for (absl::string_view rest = bytes; !rest.empty();) {
      const size_t size = std::min<size_t>(rest.size(), 1 + random() % 5);
      many.Add(rest.substr(0, size), to(pieces));
      rest.remove_prefix(size);
    }
    many.Flush(to(pieces));
    EXPECT_TRUE(IsHarmless(whole)) << testing::PrintToString(bytes);
    EXPECT_EQ(whole, pieces) << testing::PrintToString(bytes);
  }
}

}  // namespace
}  // namespace dtrain::output
