// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/values.h"

#include <gtest/gtest.h>

namespace dtrain::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ValuesTest, DurationsHaveUnitsAndSecondsByDefault) {
  EXPECT_EQ(*ParseDuration("30"), seconds(30));
  EXPECT_EQ(*ParseDuration("30s"), seconds(30));
  EXPECT_EQ(*ParseDuration("2m"), seconds(120));
  EXPECT_EQ(*ParseDuration("500ms"), milliseconds(500));
  EXPECT_EQ(*ParseDuration("1h"), seconds(3600));
  EXPECT_EQ(*ParseDuration("1.5s"), milliseconds(1500));
  EXPECT_EQ(*ParseDuration("0"), seconds(0));
}

TEST(ValuesTest, DurationsThatAreNoneAreRefusedWithExamples) {
  for (const char* text : {"", "s", "-1", "+3s", "1e9", "inf", "nan", "5 s", "5x", "1..2", ".5",
                           "99999999999999999999"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
  EXPECT_EQ(ParseDuration("5 bananas").status().message(),
            "\"5 bananas\" is not a time such as 30, 30s, 500ms, 2m or 1h");
}

TEST(ValuesTest, SizesArePowersOf1024) {
  EXPECT_EQ(*ParseSize("4096"), 4096u);
  EXPECT_EQ(*ParseSize("64K"), 65536u);
  EXPECT_EQ(*ParseSize("64KiB"), 65536u);
  EXPECT_EQ(*ParseSize("64kb"), 65536u);
  EXPECT_EQ(*ParseSize("1.5G"), 3u << 29);
  EXPECT_EQ(*ParseSize("10B"), 10u);
  for (const char* text : {"", "K", "-1", "1X", "1Kx", "1e30", "9999999999T"}) {
    EXPECT_FALSE(ParseSize(text).ok()) << text;
  }
}

// A5, A8
TEST(ValuesTest, NumbersDoNotWrapAround) {
  EXPECT_EQ(*ParseNumber("7", 1, 10), 7u);
  for (const char* text : {"", "0", "-1", "11", "8x", "1e3", "0x8", "+4", " 4",
                           "18446744073709551617", "4294967297"}) {
    EXPECT_FALSE(ParseNumber(text, 1, 10).ok()) << text;
  }
}

TEST(ValuesTest, SwitchesTakeTheUsualWords) {
  EXPECT_TRUE(*ParseBool("Yes"));
  EXPECT_TRUE(*ParseBool("1"));
  EXPECT_FALSE(*ParseBool("off"));
  EXPECT_FALSE(ParseBool("maybe").ok());
  EXPECT_FALSE(ParseBool("").ok());
}

// A4: what comes from outside cannot write to the terminal through a message.
TEST(ValuesTest, MessagesShowTheTextEscaped) {
  EXPECT_EQ(ParseBool("\x1b[31m").status().message(), "\"\\x1b[31m\" is not true or false");
}

}  // namespace
}  // namespace dtrain::cli
