// SPDX-License-Identifier: Apache-2.0
#include "common/base/text.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/safe_json.h"

namespace dtrain {
namespace {

TEST(Escape, LeavesPlainTextAndValidUtf8Alone) {
  EXPECT_EQ(Escape("node-1 is up: 100%"), "node-1 is up: 100%");
  EXPECT_EQ(Escape("K\xC3\xB6ln \xE2\x82\xAC \xF0\x9F\x9A\x80"),
            "K\xC3\xB6ln \xE2\x82\xAC \xF0\x9F\x9A\x80");
}

TEST(Escape, MakesControlsVisible) {
  EXPECT_EQ(Escape("a\nb\tc\rd\\e"), "a\\nb\\tc\\rd\\\\e");
  EXPECT_EQ(Escape("\x1b[31mred\x7f"), "\\x1b[31mred\\x7f");
  EXPECT_EQ(Escape(absl::string_view("a\0b", 3)), "a\\x00b");
}

// Terminals act on the C1 controls, in their one-byte and their UTF-8 form.
TEST(Escape, MakesC1ControlsVisible) {
  EXPECT_EQ(Escape("\x9b"
                   "31m"),
            "\\x9b31m");
  EXPECT_EQ(Escape("\xC2\x9b"
                   "31m"),
            "\\xc2\\x9b31m");
  EXPECT_EQ(Escape("\xC2\xA0"), "\xC2\xA0");
}

TEST(Escape, MakesInvalidUtf8Visible) {
  EXPECT_EQ(Escape("\xC0\xAF"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(Escape("\xE0\x80\xAF"), "\\xe0\\x80\\xaf");           // overlong
  EXPECT_EQ(Escape("\xED\xA0\x80"), "\\xed\\xa0\\x80");           // surrogate
  EXPECT_EQ(Escape("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(Escape("\xE2\x82"), "\\xe2\\x82");                    // cut short
  EXPECT_EQ(Escape("\xFF"), "\\xff");
}

TEST(Escape, MakesWhatTurnsTextAroundVisible) {
  EXPECT_EQ(Escape("a\342\200\256b\342\201\246"), "a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6");
  EXPECT_EQ(Escape("\342\200\251 \342\201\252"), "\342\200\251 \342\201\252");
}

TEST(SafeJson, EscapesWhatTerminalsActUpon) {
  EXPECT_EQ(SafeJson("{\"a\": \"\302\233x\177\342\200\256\342\201\251\"}"),
            "{\"a\": \"\\u009bx\\u007f\\u202e\\u2069\"}");
  const std::string plain = "{\"h\303\251\": \"\342\234\223 \360\237\232\200 \342\200\251\"}";
  EXPECT_EQ(SafeJson(plain), plain);
}

TEST(Escape, CutsLongText) {
  EXPECT_EQ(Escape("abcdef", 3), "abc...");
  EXPECT_EQ(Escape("abc", 3), "abc");
  EXPECT_EQ(Escape(std::string(1000, 'x')), std::string(200, 'x') + "...");
}

TEST(Escape, NeverCutsACharacterInTwo) {
  EXPECT_EQ(Escape("ab\xE2\x82\xAC"
                   "cd",
                   3),
            "ab\xE2\x82\xAC...");
  EXPECT_EQ(Escape("\x01\x01\x01", 5), "\\x01\\x01...");
}

TEST(Count, WritesThePlural) {
  EXPECT_EQ(Count(0, "node"), "0 nodes");
  EXPECT_EQ(Count(1, "node"), "1 node");
  EXPECT_EQ(Count(3, "rank"), "3 ranks");
}

}  // namespace
}  // namespace dtrain
