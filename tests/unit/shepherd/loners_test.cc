// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/loners.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dtrain::shepherd {
namespace {

const char kHere[] = "mnt:[1]";

TEST(LonerWatchTest, NamesTwoRanksThatWroteOneFile) {
  LonerWatch watch;
  EXPECT_TRUE(watch.OnFile(2, kHere, {"/out/model.pt", 10, false}));
  EXPECT_TRUE(watch.OnFile(2, kHere, {"/out/model.pt", 20, false}));
  EXPECT_FALSE(watch.has_found());
  EXPECT_TRUE(watch.OnFile(1, kHere, {"/out/model.pt", 5, false}));
  EXPECT_TRUE(watch.has_found());
  watch.OnFile(0, kHere, {"/out/model.pt", 5, false});
  EXPECT_EQ(watch.Tell().find("ranks 1 and 2 both wrote /out/model.pt, and no rank here was seen"),
            0u)
      << watch.Tell();
}

TEST(LonerWatchTest, RanksThatTalkMayWriteOneFile) {
  LonerWatch before, after;
  before.OnTalk();
  for (LonerWatch* watch : {&before, &after}) {
    watch->OnFile(0, kHere, {"/out/model.pt", 1, false});
    watch->OnFile(1, kHere, {"/out/model.pt", 1, false});
  }
  EXPECT_FALSE(before.has_found());
  EXPECT_TRUE(after.has_found());
  after.OnTalk();
  EXPECT_FALSE(after.has_found());
  EXPECT_EQ(after.Tell(), "");
}

TEST(LonerWatchTest, WhatMayBeSharedIsNotCounted) {
  const struct {
    os::FileBeingWritten file;
    bool counts;
  } kRows[] = {
      {{"/out/log", 1, true}, false},           {{"/out/the.lock", 1, false}, false},
      {{"/home/a/.triton/x", 1, false}, false}, {{"/tmp/torchinductor_a/x", 1, false}, false},
      {{"/out/jax_cache/x", 1, false}, false},  {{"/out/still-empty", 0, false}, true},
  };
  for (const auto& [file, counts] : kRows) {
    LonerWatch watch;
    EXPECT_EQ(watch.OnFile(0, kHere, file), counts) << file.path;
    EXPECT_EQ(watch.OnFile(1, kHere, file), counts) << file.path;
    EXPECT_FALSE(watch.has_found()) << file.path;
  }
  LonerWatch containers;
  containers.OnFile(0, "mnt:[1]", {"/out/model.pt", 1, false});
  containers.OnFile(1, "mnt:[2]", {"/out/model.pt", 1, false});
  EXPECT_FALSE(containers.has_found());
}

// Not without end: the names of a program that writes many files are forgotten.
TEST(LonerWatchTest, ManyFilesAreForgotten) {
  LonerWatch watch;
  for (int i = 0; i < 100'000; ++i) {
    watch.OnFile(0, kHere, {"/out/" + std::to_string(i), 1, false});
  }
  watch.OnFile(1, kHere, {"/out/0", 1, false});
  EXPECT_FALSE(watch.has_found());
  watch.OnFile(1, kHere, {"/out/99999", 1, false});
  EXPECT_TRUE(watch.has_found());
}

}  // namespace
}  // namespace dtrain::shepherd
