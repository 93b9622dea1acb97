// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/script.h"

#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace dtrain::shepherd {
namespace {

std::string Of(absl::string_view command) {
  v1::Program program;
  for (absl::string_view word : absl::StrSplit(command, ' ')) program.add_argv(std::string(word));
  const auto script = ScriptOf(program);
  return script ? script->path : "-";
}

TEST(Script, IsTheFirstWordThatIsNoOption) {
  EXPECT_EQ(Of("python train.py"), "train.py");
  EXPECT_EQ(Of("/usr/bin/python3.11 -u -W ignore -Xdev ../train.py --lr 1"), "../train.py");
  EXPECT_EQ(Of("python3 -uB train"), "train");
  EXPECT_EQ(Of("bash -eux -o pipefail run.sh"), "run.sh");
  EXPECT_EQ(Of("sh ./run.sh"), "./run.sh");
  EXPECT_EQ(Of("perl train.pl"), "train.pl");
}

TEST(Script, WhatIsNoFileIsNone) {
  for (const char* command :
       {"python -c print(1)", "python -m torch.distributed.run train.py", "python -um pkg",
        "python -", "python", "bash -c ./run.sh", "bash -ec ./run.sh", "bash -s x",
        "bash --rcfile x run.sh", "perl -e 1", "ruby -Ilib x.rb", "./train.py x", "echo train.py",
        "pythonic train.py", "env python train.py", "torchrun train.py", "python --version",
        "python -W"}) {
    EXPECT_EQ(Of(command), "-") << command;
  }
}

TEST(Script, IsMissingOnlyWhereItWouldBeLookedFor) {
  EXPECT_TRUE(IsMissing({"no-such-file.py", false}, "/", ""));
  EXPECT_TRUE(IsMissing({"/no/such/file.py", false}, "/", ""));
  EXPECT_FALSE(IsMissing({"bin", false}, "/", ""));  // Python runs folders, too
  EXPECT_FALSE(IsMissing({"bin", false}, "/no/such/folder", ""));
  EXPECT_FALSE(IsMissing({"sh", true}, "/", "/usr/sbin:/bin"));
  EXPECT_TRUE(IsMissing({"sh", false}, "/", "/usr/sbin:/bin"));
  EXPECT_TRUE(IsMissing({"./sh", true}, "/", "/usr/sbin:/bin"));
}

}  // namespace
}  // namespace dtrain::shepherd
