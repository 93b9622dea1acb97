// SPDX-License-Identifier: Apache-2.0
#include "common/view/rank_view.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace dtrain::view {
namespace {

TEST(RankLetterTest, SaysWhatMattersMost) {
  RankFacts rank;
  v1::RankProgress progress;
  EXPECT_EQ(LetterOf(rank), RankLetter::kWaiting);
  rank.pid = 7;
  rank.progress = &progress;
  EXPECT_EQ(LetterOf(rank), RankLetter::kRunning);
  progress.set_inside(true);
  progress.set_inside_nanos(5'000'000'000);
  EXPECT_EQ(LetterOf(rank), RankLetter::kRunning);
  progress.set_inside_nanos(5'000'000'001);
  EXPECT_EQ(LetterOf(rank), RankLetter::kInside);
  rank.halted = true;
  EXPECT_EQ(LetterOf(rank), RankLetter::kHalted);
  rank.lost = true;
  EXPECT_EQ(LetterOf(rank), RankLetter::kLost);
  v1::WorkerExit exit;
  rank.exit = &exit;
  EXPECT_EQ(LetterOf(rank), RankLetter::kDone);
}

TEST(RankLetterTest, AnAbortIsAFailureWhateverTheProcessExitedWith) {
  v1::WorkerExit exit;
  exit.set_aborted(true);
  const RankFacts rank{.pid = 7, .ended = true, .exit = &exit};
  RankCounts counts;
  counts.Ended(exit);
  EXPECT_EQ(LetterOf(rank), RankLetter::kFailed);
  EXPECT_EQ(counts.View()["failed"], 1);
  exit.set_told_to_stop(true);
  EXPECT_EQ(LetterOf(rank), RankLetter::kStopped);
}

TEST(RankLetterTest, ARankOfWhichNobodyKnowsHowItEndedIsLost) {
  EXPECT_EQ(LetterOf({.pid = 7, .ended = true}), RankLetter::kLost);
}

TEST(RankViewTest, ASignalIsToldInsteadOfACode) {
  v1::WorkerExit exit;
  exit.set_exit_code(3);
  const RankFacts rank{.rank = 2, .host = "n", .pid = 7, .ended = true, .exit = &exit};
  EXPECT_EQ(RankView(rank), nlohmann::ordered_json::parse(
                                R"({"rank":2,"host":"n","state":"ended","pid":7,"exit_code":3})"));
  EXPECT_EQ(ExitOf(rank), 3);
  exit.set_signal(9);
  EXPECT_EQ(RankView(rank)["signal"], 9);
  EXPECT_FALSE(RankView(rank).contains("exit_code"));
  EXPECT_EQ(ExitOf(rank), -9);
}

}  // namespace
}  // namespace dtrain::view
