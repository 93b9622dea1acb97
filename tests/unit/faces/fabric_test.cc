// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/faces/face.h"

namespace dtrain::faces {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<Translation> TranslateFabricLine(const std::string& line) {
  return kFabric.translate(std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty())),
                           cli::Surroundings());
}

std::string FabricWords(const std::string& line) {
  const auto translation = TranslateFabricLine(line);
  if (!translation.ok()) return std::string(translation.status().message());
  return absl::StrJoin(LaunchWords(*translation), " ");
}

TEST(FabricTest, TheScriptIsToldWhatTheFlagsSay) {
  EXPECT_EQ(FabricWords("run --accelerator=gpu --strategy ddp --devices 2 --precision bf16-mixed "
                        "train.py --lr 1"),
            "launch --export LT_PRECISION=bf16-mixed --export LT_CLI_USED=1 --export "
            "LT_STRATEGY=ddp --export LT_ACCELERATOR=gpu --export LT_NUM_NODES=1 --ppn 2 --export "
            "LT_DEVICES=2 --tag-output none -- python3 -u train.py --lr 1");
  EXPECT_EQ(FabricWords("run train.py"),
            "launch --export LT_CLI_USED=1 --export LT_NUM_NODES=1 --ppn 1 --export LT_DEVICES=1 "
            "--tag-output none -- python3 -u train.py");
  EXPECT_TRUE(TranslateFabricLine("run train.py")->this_machine);
}

TEST(FabricTest, ItsFlagsMayStandBehindTheScript) {
  const auto translation =
      TranslateFabricLine("run train.py --devices 3 --num-envs 4 --main_port=1 x -- --strategy dp");
  ASSERT_TRUE(translation.ok()) << translation.status();
  EXPECT_THAT(translation->programs[0].command,
              ElementsAre("python3", "-u", "train.py", "--num-envs", "4", "x", "--strategy", "dp"));
  EXPECT_THAT(translation->programs[0].flags, Contains("LT_DEVICES=3"));
  EXPECT_THAT(translation->notes, ElementsAre(HasSubstr("--main_port ignored")));
  // Those of dtrain launch stand before it, where they cannot be the script's.
  EXPECT_THAT(FabricWords("run train.py --timeout 5 --dry-run"),
              HasSubstr("-- python3 -u train.py --timeout 5 --dry-run"));
  EXPECT_THAT(FabricWords("run --timeout 5 train.py"), HasSubstr("launch --timeout 5 --export"));
  EXPECT_THAT(FabricWords("run train.py --devices"), HasSubstr("--devices needs a value"));
  EXPECT_THAT(FabricWords("run --num-envs 4 train.py"), HasSubstr("unknown flag --num-envs"));
  // What follows "--" is the script.
  EXPECT_THAT(FabricWords("run -- train.py --devices 2"), HasSubstr("--ppn 2 --export"));
}

TEST(FabricTest, RanksAreThoseOfTheDevices) {
  EXPECT_THAT(FabricWords("run --devices -1 train.py"), HasSubstr("--ppn gpu "));
  EXPECT_THAT(FabricWords("run --devices auto train.py"), HasSubstr("--ppn 1 "));
  EXPECT_THAT(FabricWords("run --devices 0,2 train.py"), HasSubstr("--gpu-bind none --ppn 2 "));
  EXPECT_THAT(FabricWords("run --devices 1, train.py"), HasSubstr("--gpu-bind none --ppn 1 "));
  EXPECT_THAT(FabricWords("run --devices 2 --accelerator cpu train.py"),
              HasSubstr("--gpu-bind none --ppn 2 "));
  EXPECT_THAT(FabricWords("run --devices 4 --strategy dp train.py"), HasSubstr("--ppn 1 "));
  for (const char* bad : {"0", "-2", "x", "1,x", ",", "99999999"}) {
    EXPECT_THAT(FabricWords(absl::StrCat("run train.py --devices ", bad)),
                HasSubstr(absl::StrCat("--devices: \"", bad, "\" is not a ")));
  }
  EXPECT_THAT(FabricWords("run --accelerator cpu --devices 0,1 train.py"),
              HasSubstr("is not a number of ranks"));
}

TEST(FabricTest, NodesAreTheFirstOfTheHosts) {
  const auto two = TranslateFabricLine("run --num_nodes=2 --hosts a,b,c --devices 8 train.py");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->fewest_nodes, 2U);
  EXPECT_EQ(two->most_nodes, 2U);
  EXPECT_TRUE(two->needs_hosts);
  EXPECT_THAT(two->programs[0].flags, Contains("LT_NUM_NODES=2"));
  EXPECT_THAT(FabricWords("run --hosts a,b train.py"), HasSubstr("add --num-nodes N"));
  EXPECT_THAT(FabricWords("run --num-nodes 0 train.py"), HasSubstr("is not a number of nodes"));
}

TEST(FabricTest, WhatItCannotDoItRefuses) {
  EXPECT_THAT(FabricWords("run --num-nodes 2 --node-rank 1 --main-address a train.py"),
              HasSubstr("run this line once"));
  EXPECT_THAT(FabricWords("run --accelerator tpu train.py"), HasSubstr("tpu is not supported"));
  EXPECT_THAT(FabricWords("run --accelerator abacus train.py"),
              HasSubstr("cpu, gpu, cuda or auto"));
  EXPECT_THAT(FabricWords("consolidate folder"), HasSubstr("there is no consolidate"));
  EXPECT_THAT(FabricWords(""), HasSubstr("a command is missing"));
  EXPECT_THAT(FabricWords("run --devices 2"), HasSubstr("no script to run"));
}

}  // namespace
}  // namespace dtrain::faces
