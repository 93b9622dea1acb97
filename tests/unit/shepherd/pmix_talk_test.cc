// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/shepherd/pmix_gate.h"

namespace dtrain::shepherd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::PmixUp Fence(std::initializer_list<uint32_t> ranks) {
  v1::PmixUp up;
  *up.mutable_fence()->mutable_ranks() = {ranks.begin(), ranks.end()};
  return up;
}

TEST(PmixTalkTest, WhatWasNotAnsweredIsSaidAgain) {
  PmixTalk talk;
  v1::PmixUp joined, ask, wanted;
  joined.mutable_joined()->add_ranks(3);
  ask.mutable_ask();
  wanted.mutable_wanted()->set_id(7);
  for (const v1::PmixUp& up : {joined, ask, Fence({}), Fence({0, 1}), wanted}) {
    EXPECT_TRUE(talk.OnUp(up).has_value());
  }
  v1::PmixDown job, done, found;
  job.mutable_job();
  done.mutable_fence_done()->add_ranks(0);
  done.mutable_fence_done()->add_ranks(1);
  EXPECT_THAT(talk.OnAnother(), SizeIs(5));
  talk.OnDown(job);
  talk.OnDown(done);
  const auto again = talk.OnAnother();
  ASSERT_THAT(again, SizeIs(3));
  EXPECT_THAT(again[0].joined().ranks(), ElementsAre(3));
  EXPECT_THAT(again[1].fence().ranks(), IsEmpty());
  EXPECT_EQ(again[2].wanted().id(), 7u);
  found.mutable_found()->set_id(7);
  talk.OnDown(found);
  EXPECT_THAT(talk.OnAnother(), SizeIs(2));
}

TEST(PmixTalkTest, WhoHasJoinedIsInsideUntilItLeaves) {
  PmixTalk talk;
  v1::PmixUp joined, left;
  joined.mutable_joined()->add_ranks(3);
  left.mutable_left()->add_ranks(3);
  EXPECT_EQ(talk.WorldOf(3), v1::WorkerExit::WORLD_UNSPECIFIED);
  talk.OnUp(joined);
  EXPECT_EQ(talk.WorldOf(3), v1::WorkerExit::WORLD_INSIDE);
  talk.OnUp(left);
  EXPECT_EQ(talk.WorldOf(3), v1::WorkerExit::WORLD_LEFT);
  talk.OnUp(joined);  // the script's next program
  EXPECT_EQ(talk.WorldOf(3), v1::WorkerExit::WORLD_INSIDE);
  EXPECT_THAT(talk.OnAnother(), SizeIs(1));
}

// Each launcher numbers its own from the same number on.
TEST(PmixTalkTest, AnAnswerReachesOnlyTheLauncherThatAsked) {
  PmixTalk talk;
  v1::PmixDown question;
  question.mutable_wanted()->set_id(1);
  v1::PmixUp first, second;
  first.mutable_found()->set_id(talk.OnDown(question).wanted().id());
  talk.OnAnother();
  second.mutable_found()->set_id(talk.OnDown(question).wanted().id());
  EXPECT_FALSE(talk.OnUp(first).has_value());
  const auto answer = talk.OnUp(second);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->found().id(), 1u);
  EXPECT_FALSE(talk.OnUp(second).has_value()) << "once";
}

}  // namespace
}  // namespace dtrain::shepherd
