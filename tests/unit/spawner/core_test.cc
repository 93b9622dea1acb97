// SPDX-License-Identifier: Apache-2.0
// A test per row of the table in spawner/core.h.
#include "spawner/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace dtrain::spawner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = SpawnerCore::Action::Kind;

constexpr uid_t kAlice = 1001;

class CoreTest : public ::testing::Test {
 protected:
  SpawnRequest Wanted(const std::string& job, uint32_t attempt = 0) {
    SpawnRequest request;
    request.header.tag = 77;
    Put(job, request.job);
    request.attempt = attempt;
    request.lease_ms = 10'000;
    request.grace_ms = 2'000;
    return request;
  }
  // Its number; 0: refused.
  uint64_t Spawn(const std::string& job, uid_t uid = kAlice, const std::string& who = "uid 1001") {
    why_ = core_.OnSpawn(now_, Wanted(job), uid, who);
    return why_.empty() ? core_.jobs().rbegin()->first : 0;
  }
  uint64_t Start(const std::string& job, uid_t uid = kAlice) {
    const uint64_t number = Spawn(job, uid, "uid " + std::to_string(uid));
    core_.OnAccount(now_, number, uid);
    return number;
  }
  uint64_t Run(const std::string& job, uid_t uid = kAlice) {
    const uint64_t number = Start(job, uid);
    core_.OnStarted(now_, number);
    Kinds();
    return number;
  }
  static Name NameOf(const std::string& job, uid_t uid = kAlice) {
    Name name;
    Put(job, name.job);
    name.uid = uid;
    return name;
  }
  std::vector<Kind> Kinds() {
    std::vector<Kind> out;
    last_ = core_.TakeActions();
    for (const auto& action : last_) out.push_back(action.kind);
    return out;
  }
  // The loop's turn, when the next deadline is reached.
  std::vector<Kind> AtDeadline() {
    const auto next = core_.NextDeadline();
    EXPECT_TRUE(next.has_value());
    waited_ = std::chrono::duration_cast<Ms>(*next - now_);
    now_ = *next;
    core_.OnTick(now_);
    return Kinds();
  }
  State StateOf(uint64_t number) { return core_.jobs().at(number).state; }

  Time now_{std::chrono::hours(1)};
  Ms waited_{};
  SpawnerCore core_;
  std::vector<SpawnerCore::Action> last_;
  std::string why_;
};

TEST_F(CoreTest, AskingBecomesStartingWithTheAccount) {
  const uint64_t number = Spawn("a", UINT32_MAX, "alice");
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kAsk));
  EXPECT_EQ(last_[0].job.who, "alice");
  core_.OnAccount(now_, number, kAlice);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kStart));
  EXPECT_EQ(last_[0].job.name.uid, kAlice);
  EXPECT_EQ(StateOf(number), State::kStarting);
}

TEST_F(CoreTest, AskingEndsWithoutAnAccount) {
  const uint64_t number = Spawn("a");
  Kinds();
  core_.OnFailed(now_, number, Stage::kPolicy, 13, "not you");
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRefuse, Kind::kDropAsker, Kind::kGone));
  EXPECT_EQ(last_[0].words, "not you");
  EXPECT_EQ(last_[0].job.tag, 77u);
  EXPECT_TRUE(core_.jobs().empty());
}

TEST_F(CoreTest, AskingEndsByKill) {
  Spawn("a");
  Kinds();
  EXPECT_TRUE(core_.OnKill(now_, NameOf("a")));
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRefuse, Kind::kDropAsker, Kind::kGone));
  EXPECT_EQ(last_[0].stage, Stage::kKilled);
  EXPECT_FALSE(core_.OnKill(now_, NameOf("a")));
}

TEST_F(CoreTest, AskingEndsAfter20Seconds) {
  Spawn("a");
  Kinds();
  EXPECT_THAT(AtDeadline(), ElementsAre(Kind::kRefuse, Kind::kDropAsker, Kind::kGone));
  EXPECT_EQ(waited_, Ms(20'000));
  EXPECT_EQ(last_[0].stage, Stage::kTime);
  EXPECT_EQ(core_.NextDeadline(), std::nullopt);
}

TEST_F(CoreTest, StartingBecomesRunning) {
  const uint64_t number = Start("a");
  Kinds();
  core_.OnStarted(now_, number);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kSpawned));
  EXPECT_EQ(StateOf(number), State::kRunning);
}

TEST_F(CoreTest, StartingThatFailsIsKilledAndNoEndIsReported) {
  const uint64_t number = Start("a");
  Kinds();
  core_.OnFailed(now_, number, Stage::kExec, 2, "no file");
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRefuse, Kind::kKill));
  core_.OnEmpty(now_, number);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRemove));
  core_.OnRemoved(now_, number);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kGone));
}

TEST_F(CoreTest, StartingEndsAfter5SecondsAndByKill) {
  Start("a");
  Kinds();
  EXPECT_THAT(AtDeadline(), ElementsAre(Kind::kRefuse, Kind::kKill));
  EXPECT_EQ(waited_, Ms(5'000));
  Start("b");
  Kinds();
  EXPECT_TRUE(core_.OnKill(now_, NameOf("b")));
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRefuse, Kind::kKill));
}

// It is read with the pipe that says so.
TEST_F(CoreTest, StartingTakesNoNoticeOfAnEmptyCgroup) {
  const uint64_t number = Start("a");
  Kinds();
  core_.OnEmpty(now_, number);
  EXPECT_THAT(Kinds(), IsEmpty());
}

TEST_F(CoreTest, RunningEndsByKill) {
  const uint64_t number = Run("a");
  EXPECT_TRUE(core_.OnKill(now_, NameOf("a")));
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kKill));
  EXPECT_TRUE(core_.OnKill(now_, NameOf("a"))) << "again";
  EXPECT_THAT(Kinds(), IsEmpty());
  core_.OnEmpty(now_, number);
  core_.OnEmpty(now_, number);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRemove));
  core_.OnRemoved(now_, number);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kEnded, Kind::kGone));
}

TEST_F(CoreTest, RunningEndsWhenTheAgentIsSilent) {
  Run("a");
  now_ += Ms(30'000);
  core_.OnAlive(now_);
  EXPECT_THAT(AtDeadline(), ElementsAre(Kind::kKill));
  EXPECT_EQ(waited_, Ms(10'000 + 2'000 + 60'000)) << "from when it was last heard";
}

TEST_F(CoreTest, RunningDoesNotEndBecauseWeStoodStill) {
  const uint64_t number = Run("a");
  now_ = *core_.NextDeadline() + Ms(6'000);
  core_.OnTick(now_);
  EXPECT_THAT(Kinds(), IsEmpty());
  EXPECT_EQ(StateOf(number), State::kRunning);
  EXPECT_THAT(AtDeadline(), ElementsAre(Kind::kKill));
}

TEST_F(CoreTest, RunningEndsByItself) {
  const uint64_t number = Run("a");
  core_.OnEmpty(now_, number);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRemove));
  core_.OnRemoved(now_, number);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kEnded, Kind::kGone));
}

TEST_F(CoreTest, KillingIsRepeatedAndToldOfOnce) {
  const uint64_t number = Run("a");
  core_.OnKill(now_, NameOf("a"));
  Kinds();
  for (int i = 1; i < 600; ++i) {
    ASSERT_THAT(AtDeadline(), ElementsAre(Kind::kKill));
    ASSERT_EQ(waited_, Ms(100));
  }
  EXPECT_THAT(AtDeadline(), ElementsAre(Kind::kKill, Kind::kUnkillable));
  EXPECT_THAT(AtDeadline(), ElementsAre(Kind::kKill));
  core_.OnEmpty(now_, number);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRemove));
}

TEST_F(CoreTest, RemovingIsRepeated) {
  const uint64_t number = Run("a");
  core_.OnEmpty(now_, number);
  Kinds();
  EXPECT_THAT(AtDeadline(), ElementsAre(Kind::kRemove));
  EXPECT_EQ(waited_, Ms(100));
  core_.OnRemoved(now_, number);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kEnded, Kind::kGone));
  core_.OnRemoved(now_, number);
  core_.OnEmpty(now_, number);
  EXPECT_THAT(Kinds(), IsEmpty());
}

TEST_F(CoreTest, OneTakenOverRunsWithANewDeadline) {
  now_ += std::chrono::hours(5);
  const uint64_t number = core_.Adopt(now_, NameOf("a"), Ms(3'000), Ms(500));
  EXPECT_EQ(StateOf(number), State::kRunning);
  EXPECT_THAT(AtDeadline(), ElementsAre(Kind::kKill));
  EXPECT_EQ(waited_, Ms(63'500));
  EXPECT_TRUE(core_.jobs().at(number).spawned) << "its end is reported";
}

TEST_F(CoreTest, NamesAreTakenUntilTheJobIsGone) {
  const uint64_t number = Run("a");
  EXPECT_EQ(Spawn("a"), 0u);
  EXPECT_EQ(why_, "a job of this name is there");
  EXPECT_NE(Run("a", 1002), 0u) << "another user's";
  // By account the uid is known late.
  const uint64_t late = Spawn("a", UINT32_MAX, "alice");
  ASSERT_NE(late, 0u);
  Kinds();
  core_.OnAccount(now_, late, kAlice);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRefuse, Kind::kDropAsker, Kind::kGone));
  EXPECT_EQ(last_[0].stage, Stage::kBusy);
  core_.OnEmpty(now_, number);
  EXPECT_EQ(Spawn("a"), 0u);
  core_.OnRemoved(now_, number);
  EXPECT_NE(Spawn("a"), 0u);
}

TEST_F(CoreTest, AskersAreFewAndTheRestWaits) {
  for (int i = 0; i < 6; ++i) Spawn("a" + std::to_string(i));
  EXPECT_EQ(Kinds().size(), 4u) << "of one user";
  for (uid_t uid = 2000; uid < 2020; ++uid) Spawn("b", uid, "uid " + std::to_string(uid));
  EXPECT_EQ(Kinds().size(), 12u) << "of all";
  core_.OnKill(now_, NameOf("b", 2000));
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRefuse, Kind::kDropAsker, Kind::kGone, Kind::kAsk));
  EXPECT_EQ(last_[3].job.name.uid, 2012u) << "the first user's has four already";
  for (int i = 0; i < 100; ++i) Spawn("c" + std::to_string(i), 3000, "uid 3000");
  EXPECT_EQ(why_, "32 jobs of this user wait to be started");
  EXPECT_NE(Spawn("d", 3001, "uid 3001"), 0u) << "another's place is not taken";
  for (int i = 0; i < 300; ++i) Spawn("e", 4000 + i, "uid " + std::to_string(4000 + i));
  EXPECT_EQ(why_, "256 jobs wait to be started");
  EXPECT_EQ(core_.jobs().size(), 16u + 256u);
}

TEST_F(CoreTest, AUserHas32JobsAndANode256) {
  for (int i = 0; i < 32; ++i) Run("a" + std::to_string(i));
  const uint64_t more = Start("more");
  Kinds();
  EXPECT_EQ(last_[last_.size() - 3].words, "32 jobs of this user run on this node");
  EXPECT_EQ(core_.jobs().count(more), 0u);
  for (int i = 0; i < 224; ++i) Run("b" + std::to_string(i), static_cast<uid_t>(2000 + i / 32));
  Start("last", 9999);
  Kinds();
  EXPECT_EQ(last_[last_.size() - 3].words, "256 jobs run on this node");
}

TEST_F(CoreTest, WhatAnAgentLeavesUnstartedIsDropped) {
  Run("runs");
  Start("starts");
  Spawn("asks");
  Kinds();
  core_.OnDisconnected(now_);
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kRefuse, Kind::kKill, Kind::kRefuse, Kind::kDropAsker,
                                   Kind::kGone));
  EXPECT_EQ(core_.jobs().size(), 2u);
}

TEST_F(CoreTest, SixteenBreachesInARowEndTheConnection) {
  for (int i = 0; i < 15; ++i) EXPECT_FALSE(core_.OnBreach());
  core_.OnPermitted();
  for (int i = 0; i < 15; ++i) EXPECT_FALSE(core_.OnBreach());
  EXPECT_TRUE(core_.OnBreach());
}

// Whatever happens in whatever order: the caps hold, every job has a deadline, what is refused is
// never reported to have ended, and what has run is, once.
TEST_F(CoreTest, AnyOrderOfEvents) {
  std::mt19937 random(7);
  std::map<uint64_t, int> ended, spawned, refused;
  for (int step = 0; step < 30'000; ++step) {
    const auto& jobs = core_.jobs();
    uint64_t number = 0;
    if (!jobs.empty()) {
      number = std::next(jobs.begin(), static_cast<int64_t>(random() % jobs.size()))->first;
    }
    const uid_t uid = 1000 + random() % 12;
    const std::string job = "j" + std::to_string(random() % 60);
    switch (random() % 10) {
      case 0:
      case 1:
        Spawn(job, uid, "uid " + std::to_string(uid));
        break;
      case 2:
        Spawn(job, UINT32_MAX, "name");
        break;
      case 3:
        core_.OnAccount(
            now_, number,
            number && jobs.at(number).name.uid != UINT32_MAX ? jobs.at(number).name.uid : uid);
        break;
      case 4:
        core_.OnStarted(now_, number);
        break;
      case 5:
        core_.OnFailed(now_, number, Stage::kPrepare, 5, "x");
        break;
      case 6:
        core_.OnEmpty(now_, number);
        break;
      case 7:
        core_.OnRemoved(now_, number);
        break;
      case 8:
        if (number != 0 && random() % 4 == 0) core_.OnKill(now_, jobs.at(number).name);
        break;
      default:
        now_ += Ms(random() % 700);
        core_.OnAlive(now_);
        break;
    }
    core_.OnTick(now_);
    for (const auto& action : core_.TakeActions()) {
      const uint64_t of = action.job.number;
      ended[of] += action.kind == Kind::kEnded;
      spawned[of] += action.kind == Kind::kSpawned;
      refused[of] += action.kind == Kind::kRefuse;
      if (action.kind == Kind::kGone) {
        ASSERT_EQ(spawned[of] + refused[of], 1);
        ASSERT_EQ(ended[of], spawned[of]);
      }
    }
    std::map<uid_t, size_t> of_user;
    size_t begun = 0, waiting = 0, known = 0;
    for (const auto& [n, each] : jobs) {
      const bool asks = each.state == State::kAsking;
      begun += asks ? each.begun : each.state == State::kStarting;
      waiting += asks && !each.begun;
      known += !asks;
      of_user[each.name.uid] += !asks;
      ASSERT_LE(of_user[each.name.uid], SpawnerCore::kMostOfUser);
    }
    ASSERT_LE(begun, SpawnerCore::kMostBegun);
    ASSERT_LE(waiting, SpawnerCore::kMostWaiting);
    ASSERT_LE(known, SpawnerCore::kMostJobs);
    ASSERT_EQ(core_.NextDeadline().has_value(), !jobs.empty());
  }
  EXPECT_GT(ended.size(), 1000u);
}

}  // namespace
}  // namespace dtrain::spawner
