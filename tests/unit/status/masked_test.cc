// SPDX-License-Identifier: Apache-2.0
#include "launcher/story/masked.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dtrain::story {
namespace {

using testing::ElementsAre;

TEST(MaskedTest, ValuesOfVariablesAreNotShown) {
  EXPECT_THAT(MaskedWords({"launch", "-x", "WANDB_API_KEY=abc", "-np", "2", "python3"}),
              ElementsAre("launch", "-x", "WANDB_API_KEY=***", "-np", "2", "python3"));
  EXPECT_THAT(
      MaskedWords({"launch", "-xA=1", "--export", "B=2", "--export=C=3", "-dx", "D=4", "e"}),
      ElementsAre("launch", "-xA=***", "--export", "B=***", "--export=C=***", "-dx", "D=***", "e"));
  EXPECT_THAT(MaskedWords({"mpirun", "-np", "2", "-x", "HF_TOKEN=x=y", "./a", "-x"}),
              ElementsAre("mpirun", "-np", "2", "-x", "HF_TOKEN=***", "./a", "-x"));
  EXPECT_THAT(
      MaskedWords({"mpiexec", "-genv", "HF_TOKEN", "x", "-env", "NCCL_DEBUG", "INFO", "a"}),
      ElementsAre("mpiexec", "-genv", "HF_TOKEN", "***", "-env", "NCCL_DEBUG", "INFO", "a"));
}

TEST(MaskedTest, WhatIsNoSecretIsShown) {
  const std::vector<std::string> words = {
      "launch", "-x", "NCCL_DEBUG=INFO", "-x",      "OMP_NUM_THREADS=4", "-x",       "PATH", "-x",
      "EMPTY=", "-H", "node1:8",         "python3", "train.py",          "--lr=0.1", "-x"};
  EXPECT_EQ(MaskedWords(words), words);
}

TEST(MaskedTest, ASecretOfAHarmlessLibraryIsOne) {
  EXPECT_EQ(MaskedValue("HOROVOD_SECRET_KEY", "x"), "***");
  EXPECT_EQ(MaskedValue("DTRAIN_EXPORT", "TOKEN=x"), "***");
  EXPECT_EQ(MaskedValue("TOKENIZERS_PARALLELISM", "false"), "false");
  EXPECT_EQ(MaskedValue("DTRAIN_MAX_RESTARTS", "3"), "3");
}

}  // namespace
}  // namespace dtrain::story
