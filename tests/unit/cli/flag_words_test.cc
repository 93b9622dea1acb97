// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::cli {
namespace {

TEST(FlagWords, AreTakenAndOthersAreNot) {
  int flags = 0;
  for (const Flag& flag : LaunchFlags()) {
    if (flag.words.empty()) continue;
    ++flags;
    for (absl::string_view word : flag.words) {
      RawLaunch raw;
      // The others are how a value begins.
      if (!absl::EndsWith(word, ":")) {
        EXPECT_TRUE(flag.set(word, raw).ok()) << flag.names << " " << word;
      }
    }
    RawLaunch raw;
    EXPECT_FALSE(flag.set("no-such-word", raw).ok()) << flag.names;
  }
  EXPECT_GE(flags, 6);
}

// A flag whose error lists its words must have them for the shells, too.
TEST(FlagWords, NoneIsForgotten) {
  for (const Flag& flag : LaunchFlags()) {
    RawLaunch raw;
    const absl::Status status = flag.set("no-such-word", raw);
    if (!absl::StrContains(status.message(), "\" is not ") || flag.value.empty()) continue;
    const bool lists = absl::StrContains(status.message(), " or ") &&
                       !absl::StrContains(status.message(), "number") &&
                       !absl::StrContains(status.message(), "such as");
    EXPECT_TRUE(!lists || !flag.words.empty()) << flag.names << ": " << status.message();
  }
}

}  // namespace
}  // namespace dtrain::cli
