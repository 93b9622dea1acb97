// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/mistyped.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace dtrain::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What is said of a command line; an error begins with "error: ".
std::string SaidOf(absl::string_view line) {
  const std::vector<std::string> args = absl::StrSplit(line, ' ');
  const auto words = SplitWords(LaunchFlags(), args);
  EXPECT_TRUE(words.ok()) << words.status();
  std::string warning;
  const absl::Status status = CheckMistyped(*words, &warning);
  return status.ok() ? warning : absl::StrCat("error: ", status.message());
}

TEST(MistypedTest, DashesThatAreNone) {
  EXPECT_THAT(SaidOf("–np 2 a"), HasSubstr("error: \"–np\" begins with a character that only "
                                           "looks like a dash: type -np"));
  EXPECT_THAT(SaidOf("-q —np 2 a"), HasSubstr("type --np"));
  EXPECT_THAT(SaidOf("–-np 2 a"), HasSubstr("type --np"));
  EXPECT_THAT(SaidOf("−H a:1 b"), HasSubstr("type -H"));
  EXPECT_THAT(SaidOf("a –np"), IsEmpty()) << "the program's";
  EXPECT_THAT(SaidOf("-- –np"), IsEmpty());
}

TEST(MistypedTest, OurFlagsBehindTheCommand) {
  EXPECT_THAT(SaidOf("train.py --dry-run"),
              HasSubstr("error: --dry-run stands behind the command, so the job would run. To see "
                        "the plan only, write dtrain launch --dry-run ... train.py; if the flag is "
                        "the program's, write -- before the command: dtrain launch ... -- "
                        "train.py --dry-run"));
  EXPECT_THAT(SaidOf("-np 2 a --grace=3s"), HasSubstr("--grace stands behind the command, so a "));
  EXPECT_THAT(SaidOf("a x -np 2"), HasSubstr("-np stands behind the command"));
  for (const char* fine :
       {"a", "-- a --dry-run", "a --output x --timeout 3", "a -- --dry-run", "mpirun -np 2 a",
        "/opt/bin/torchrun --dry-run", "-np 2 --dry-run a", "a b:--dry-run"}) {
    EXPECT_THAT(SaidOf(fine), IsEmpty()) << fine;
  }
}

}  // namespace
}  // namespace dtrain::cli
