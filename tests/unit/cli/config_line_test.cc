// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/config_line.h"

#include <gtest/gtest.h>

namespace dtrain::cli {
namespace {

TEST(ConfigLineTest, FindsAKeyAtTheTopAndInItsSection) {
  constexpr absl::string_view text =
      "# lease = 1\n  lease=2\r\n\n[other]\ngrace = 3\n[ launch ]\n\"grace\" = 4\nverbose\n";
  EXPECT_EQ(LineOfKey(text, "lease"), 2u);
  EXPECT_EQ(LineOfKey(text, "grace"), 7u);
  EXPECT_EQ(LineOfKey(text, "verbose"), 8u);
  EXPECT_EQ(LineOfKey(text, "np"), 0u);
  EXPECT_EQ(LineOfKey(text, "grace", "other"), 5u);
  EXPECT_EQ(LineOfKey(text, "lease", "other"), 0u);
  EXPECT_EQ(LineOfKey("launched = 1\nlaunch.np = 1", "launched"), 1u);
  EXPECT_EQ(LineOfKey("[other]\nx = 1\nlaunch.np = 1", "np"), 3u);
}

TEST(ConfigLineTest, AnyTextIsFine) {
  for (absl::string_view text : {"", "\n", "[", "[[[", "=", "\"", "'=", "]=[\n="}) {
    EXPECT_EQ(LineOfKey(text, "np"), 0u);
  }
}

}  // namespace
}  // namespace dtrain::cli
