// SPDX-License-Identifier: Apache-2.0
// --scale-up: when a job that goes on without some hosts is started again with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/job/campaign_core.h"
#include "launcher/job/campaign_journal.h"

namespace dtrain::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Phase = CampaignCore::State;
using End = Verdict::Kind;

constexpr int64_t kUnixNow = int64_t{1'790'000'000} * 1'000'000'000;

class ScaleUpTest : public testing::Test {
 public:
  // A job that may use `most` hosts and goes on with 2 of them.
  void Make(uint32_t most, uint32_t spares = 0) {
    options_.hosts.clear();
    for (uint32_t i = 0; i < most + spares; ++i) options_.hosts.push_back(absl::StrCat("node", i));
    options_.least_hosts = std::min<uint32_t>(most, 2);
    options_.most_hosts = most;
    options_.spares = spares > 0;
    options_.max_restarts = 1;
    core_.emplace(options_, now_);
    Take(core_->Begin());
    std::vector<uint32_t> all(options_.hosts.size());
    std::iota(all.begin(), all.end(), 0);
    Feed(AttemptRuns{all});
  }
  void Feed(const CampaignEvent& event) { Take(core_->OnEvent(now_, event)); }
  void Take(std::vector<CampaignAction> actions) {
    for (CampaignAction& action : actions) {
      if (auto* begin = std::get_if<BeginAttempt>(&action)) begun_ = *begin;
      if (auto* announce = std::get_if<Announce>(&action)) said_.push_back(announce->text);
      if (std::holds_alternative<LookAtCheckpoint>(action)) ++looks_;
      if (auto* ends = std::get_if<EndAttempt>(&action)) asked_.push_back(*ends);
      if (auto* end = std::get_if<EndCampaign>(&action)) verdict_ = end->verdict;
    }
  }
  void Ends(End kind, int exit_code, std::vector<uint32_t> hosts = {}, bool done = false) {
    AttemptEnded end;
    end.verdict.kind = kind;
    end.verdict.exit_code = exit_code;
    end.cause = absl::StrCat("cause ", exit_code);
    end.hosts = std::move(hosts);
    end.dead_at = TimePoint::min();
    end.done = done;
    Feed(end);
  }
  // As JobCore says it of one that was asked to end.
  void EndsAsAsked(bool done = false) { Ends(End::kSignal, 143, {}, done); }
  void Next(std::vector<uint32_t> hosts) {
    ASSERT_EQ(core_->state(), Phase::kPause);
    now_ = core_->NextDeadline();
    Feed(CampaignTick{});
    Feed(AttemptRuns{std::move(hosts)});
  }
  // From then on the job goes on with `left`.
  void Lose(std::vector<uint32_t> lost, std::vector<uint32_t> left) {
    now_ += minutes(20);
    Ends(End::kNode, kExitNodeLost, std::move(lost));
    Next(std::move(left));
  }
  void After(Duration time) {
    now_ += time;
    Feed(CampaignTick{});
  }
  void Looked(uint32_t host, bool reachable = true) { Feed(HostLooked{host, reachable}); }
  hosts::HostList HostList() const {
    hosts::HostList hosts;
    for (const std::string& host : options_.hosts) hosts.entries.emplace_back().host = host;
    return hosts;
  }
  // What the journal says, for a launcher that comes now.
  void Succeed(const v1::JournalState& state) {
    core_.emplace(options_, PastOf(state, HostList(), now_, kUnixNow), now_);
    Take(core_->Begin());
  }

  CampaignOptions options_ = [] {
    CampaignOptions options;
    options.scale_up = minutes(5);
    return options;
  }();
  TimePoint now_{seconds(1000)};
  std::optional<CampaignCore> core_;
  BeginAttempt begun_;
  std::vector<std::string> said_;
  std::vector<EndAttempt> asked_;
  int looks_ = 0;
  std::optional<Verdict> verdict_;
};

TEST_F(ScaleUpTest, StartsAgainWhenTheHostIsBackAndACheckpointWasWritten) {
  Make(4);
  EXPECT_THAT(core_->absent(), IsEmpty());
  Lose({3}, {0, 1, 2});
  EXPECT_THAT(core_->absent(), ElementsAre(3));
  EXPECT_EQ(core_->NextDeadline(), kNever);
  Looked(3);
  EXPECT_EQ(core_->NextDeadline(), now_ + minutes(5));
  After(minutes(5) - milliseconds(1));
  EXPECT_EQ(looks_, 0);
  After(milliseconds(1));
  EXPECT_EQ(looks_, 1);
  EXPECT_THAT(asked_, IsEmpty());
  Feed(CheckpointLooked{true});
  ASSERT_EQ(asked_.size(), 1U);
  EXPECT_EQ(asked_[0].why, "restarting with 4 nodes: node3 is back");
  EXPECT_THAT(asked_[0].hosts, ElementsAre(3));
  EXPECT_EQ(said_.back(), "dtrain: restarting with 4 nodes: node3 is back");
  EXPECT_TRUE(core_->scales_up());
  EXPECT_THAT(core_->absent(), IsEmpty());
  After(minutes(60));
  Looked(3);
  EXPECT_EQ(asked_.size(), 1U) << "once";
  EndsAsAsked();
  Next({0, 1, 2, 3});
  EXPECT_EQ(begun_.attempt, 2U);
  EXPECT_THAT(begun_.hosts, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(begun_.doubtful, ElementsAre(false, false, false, false));
  EXPECT_EQ(core_->counted(), 0U);
  EXPECT_EQ(core_->ended().back().cause, "restarting with 4 nodes: node3 is back");
  EXPECT_THAT(core_->absent(), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), kNever);
}

TEST_F(ScaleUpTest, WithoutTheFlagNothingIsLookedFor) {
  options_.scale_up = Duration::zero();
  Make(4);
  Lose({3}, {0, 1, 2});
  EXPECT_THAT(core_->absent(), IsEmpty());
  Looked(3);
  Feed(CheckpointLooked{true});
  After(minutes(60));
  EXPECT_EQ(looks_, 0);
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(ScaleUpTest, CostsNoRestartWhenNoneIsLeft) {
  Make(4);
  now_ += minutes(20);
  Ends(End::kWorker, 7);
  Next({0, 1, 2, 3});
  EXPECT_EQ(core_->counted(), options_.max_restarts);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  EndsAsAsked();
  EXPECT_EQ(core_->state(), Phase::kPause);
  EXPECT_EQ(core_->counted(), 1U);
}

TEST_F(ScaleUpTest, IsNotRestartedWhileTheCheckpointIsOld) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  said_.clear();
  for (int look = 1; look < 100; ++look) {
    EXPECT_EQ(looks_, look);
    Feed(CheckpointLooked{false, /*unknown=*/look == 1});
    EXPECT_EQ(core_->NextDeadline(), now_ + seconds(5));
    After(seconds(5));
  }
  EXPECT_THAT(asked_, IsEmpty());
  EXPECT_THAT(said_,
              ElementsAre("dtrain: node3 is back; the next checkpoint (DTRAIN_CHECKPOINT_FILE) "
                          "is awaited before the restart with 4 nodes"));
  Feed(CheckpointLooked{true});
  EXPECT_EQ(asked_.size(), 1U);
}

TEST_F(ScaleUpTest, AnAnswerThatDoesNotComeIsAskedForAgain) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  After(seconds(59));
  EXPECT_EQ(looks_, 1);
  After(seconds(1));
  EXPECT_EQ(looks_, 2);
}

TEST_F(ScaleUpTest, ACheckpointOfTheAttemptBeforeDoesNotCount) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  EndsAsAsked();
  Next({0, 1, 2, 3});
  Lose({2}, {0, 1, 3});
  Looked(2);
  After(minutes(5));
  EXPECT_EQ(asked_.size(), 1U);
  EXPECT_EQ(looks_, 2);
}

TEST_F(ScaleUpTest, AFlappingHostBeginsAnew) {
  Make(4);
  Lose({3}, {0, 1, 2});
  for (int i = 0; i < 10; ++i) {
    Looked(3);
    After(minutes(4));
    Looked(3);
    Looked(3, false);
    EXPECT_EQ(core_->NextDeadline(), kNever);
    After(seconds(10));
  }
  EXPECT_EQ(looks_, 0);
  Looked(3);
  After(minutes(5));
  Looked(3, false);  // while the checkpoint is looked at
  Feed(CheckpointLooked{true});
  EXPECT_THAT(asked_, IsEmpty());
  Looked(3);
  After(minutes(5));
  EXPECT_EQ(looks_, 2);
  EXPECT_THAT(asked_, IsEmpty()) << "that checkpoint is old by now";
  Feed(CheckpointLooked{false});
  EXPECT_THAT(asked_, IsEmpty());
  After(seconds(5));
  EXPECT_EQ(looks_, 3);
  Feed(CheckpointLooked{true});
  EXPECT_EQ(asked_.size(), 1U);
}

TEST_F(ScaleUpTest, WaitsForAsManyAsAreMissing) {
  Make(4);
  Lose({2, 3}, {0, 1});
  EXPECT_THAT(core_->absent(), ElementsAre(2, 3));
  Looked(2);
  After(minutes(60));
  EXPECT_EQ(looks_, 0);
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  ASSERT_EQ(asked_.size(), 1U);
  EXPECT_EQ(asked_[0].why, "restarting with 4 nodes: node2, node3 are back");
}

TEST_F(ScaleUpTest, AnyHostOfTheListWillDo) {
  Make(3, /*spares=*/1);
  Lose({1}, {0, 2, 3});  // which the spare replaces
  EXPECT_THAT(core_->absent(), IsEmpty());
  Lose({2}, {0, 3});
  EXPECT_THAT(core_->absent(), ElementsAre(1, 2));
  Looked(1);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  ASSERT_EQ(asked_.size(), 1U);
  EXPECT_THAT(asked_[0].hosts, ElementsAre(1));
}

// They are neither looked for nor waited for.
TEST_F(ScaleUpTest, HostsThatAreLeftOutDoNotCount) {
  Make(4);
  AttemptEnded end;
  end.verdict.kind = End::kWorker;
  end.verdict.exit_code = 7;
  end.bad_gpus = {{3, "GPU 0 reported Xid 79"}};
  end.dead_at = TimePoint::min();
  Feed(end);
  Next({0, 1, 2});
  ASSERT_THAT(core_->left_out(), ElementsAre("node3"));
  EXPECT_THAT(core_->absent(), IsEmpty());
  Lose({2}, {0, 1});
  EXPECT_THAT(core_->absent(), ElementsAre(2));
  Looked(3);
  After(minutes(5));
  EXPECT_EQ(looks_, 0);
  Looked(2);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  ASSERT_EQ(asked_.size(), 1U);
  EXPECT_EQ(asked_[0].why, "restarting with 3 nodes: node2 is back");
}

// Else it would cost all that was computed since the checkpoint, again and again.
TEST_F(ScaleUpTest, AHostThatDoesNotJoinIsWaitedForLongerEachTime) {
  Make(4);
  Lose({3}, {0, 1, 2});
  for (const Duration wait : {minutes(5), minutes(10), minutes(20)}) {
    Looked(3);
    EXPECT_EQ(core_->NextDeadline(), now_ + wait);
    After(wait);
    Feed(CheckpointLooked{true});
    EndsAsAsked();
    Next({0, 1, 2});
  }
  Looked(3);
  After(minutes(40));
  Feed(CheckpointLooked{true});
  EndsAsAsked();
  Next({0, 1, 2, 3});
  Lose({3}, {0, 1, 2});
  Looked(3);
  EXPECT_EQ(core_->NextDeadline(), now_ + minutes(5)) << "it has joined";
}

// It answers, and has no room: the job goes on without it, and it is waited for longer.
TEST_F(ScaleUpTest, AHostThatCannotTakeItsPartIsSetAside) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  EndsAsAsked();
  now_ = core_->NextDeadline();
  Feed(CampaignTick{});
  EXPECT_THAT(begun_.hosts, ElementsAre(0, 1, 2, 3));
  Ends(End::kRefused, kExitStartAgents);
  ASSERT_FALSE(verdict_);
  EXPECT_THAT(said_.back(), HasSubstr(", without node3: cause 200"));
  now_ = core_->NextDeadline();
  Feed(CampaignTick{});
  EXPECT_THAT(begun_.hosts, ElementsAre(0, 1, 2));
  Feed(AttemptRuns{{0, 1, 2}});
  EXPECT_THAT(core_->absent(), ElementsAre(3));
  Looked(3);
  EXPECT_EQ(core_->NextDeadline(), now_ + minutes(10));
}

TEST_F(ScaleUpTest, AHostThatWasSetAsideIsTriedAgainWhenTheOthersDoNotSuffice) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  EndsAsAsked();
  for (const std::vector<uint32_t>& hosts :
       {std::vector<uint32_t>{0, 1, 2, 3}, {0, 1, 2}, {0, 1, 2, 3}}) {
    now_ = core_->NextDeadline();
    Feed(CampaignTick{});
    EXPECT_EQ(begun_.hosts, hosts);
    Ends(End::kRefused, kExitStartAgents);
  }
}

TEST_F(ScaleUpTest, AStopWins) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(StopAsked{SIGINT});
  Feed(CheckpointLooked{true});
  After(minutes(5));
  EXPECT_THAT(asked_, IsEmpty());
  EXPECT_THAT(core_->absent(), IsEmpty());
  Ends(End::kSignal, 130);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, 130);
}

TEST_F(ScaleUpTest, AStopWinsWhileTheAttemptIsBeingEnded) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  ASSERT_TRUE(core_->scales_up());
  Feed(StopAsked{SIGINT});
  EXPECT_FALSE(verdict_);
  EndsAsAsked();
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, 130);
}

TEST_F(ScaleUpTest, AStopThroughAnAgentWinsWhileTheAttemptIsBeingEnded) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  AttemptEnded end;
  end.verdict.kind = End::kSignal;
  end.verdict.exit_code = 143;
  end.stopped = "node1: the job was stopped here by alice";
  end.dead_at = TimePoint::min();
  Feed(end);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, 143);
  EXPECT_EQ(verdict_->message, "node1: the job was stopped here by alice");
}

TEST_F(ScaleUpTest, WhatHappensFirstIsJudgedAsEver) {
  const auto ask = [this] {
    verdict_.reset();
    Make(4);
    Lose({3}, {0, 1, 2});
    Looked(3);
    After(minutes(5));
    Feed(CheckpointLooked{true});
    ASSERT_TRUE(core_->scales_up());
  };
  ask();
  Ends(End::kWorker, 7);
  EXPECT_EQ(core_->state(), Phase::kPause);
  EXPECT_EQ(core_->counted(), 1U);
  EXPECT_EQ(core_->ended().back().cause, "cause 7");
  EXPECT_FALSE(core_->scales_up());
  ask();
  Ends(End::kSuccess, 0, {}, /*done=*/true);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->kind, End::kSuccess);
  // Some of it may live.
  ask();
  Ends(End::kSignal, kExitCleanup);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitCleanup);
}

// Its ranks had ended by themselves before they heard of it.
TEST_F(ScaleUpTest, AJobThatIsDoneIsNotStartedAgain) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  EndsAsAsked(/*done=*/true);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->kind, End::kSuccess);
  EXPECT_EQ(core_->ended().back().exit_code, 0);
  EXPECT_EQ(core_->ended().back().cause, "");
}

TEST_F(ScaleUpTest, TheNextLauncherBeginsTheTimeAnew) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(4));
  v1::JournalState state = StateOf(*core_, now_, kUnixNow);
  Succeed(state);
  EXPECT_EQ(core_->NextDeadline(), kNever);
  Feed(AttemptRuns{{0, 1, 2}});
  EXPECT_THAT(core_->absent(), ElementsAre(3));
  Looked(3);
  EXPECT_EQ(core_->NextDeadline(), now_ + minutes(5));
  After(minutes(5));
  Feed(CheckpointLooked{true});
  EXPECT_EQ(asked_.size(), 1U);
}

// It may have told some workers to end: these have not failed.
TEST_F(ScaleUpTest, TheNextLauncherGoesOnWithTheRestart) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  v1::JournalState state = StateOf(*core_, now_, kUnixNow);
  state.mutable_scale_up()->set_attempt(1);
  state.mutable_scale_up()->set_why(asked_[0].why);
  state.mutable_scale_up()->add_hosts("node3");
  Succeed(state);
  EXPECT_TRUE(core_->scales_up());
  Feed(AttemptRuns{{0, 1, 2}});
  EXPECT_THAT(core_->absent(), IsEmpty());
  EndsAsAsked();
  EXPECT_EQ(core_->counted(), 0U);
  EXPECT_EQ(core_->ended().back().cause, "restarting with 4 nodes: node3 is back");
  Next({0, 1, 2, 3});
  EXPECT_EQ(begun_.attempt, 2U);
  EXPECT_THAT(begun_.doubtful, ElementsAre(false, false, false, false));
}

TEST_F(ScaleUpTest, TheJournalSaysTheSame) {
  Make(4);
  Lose({3}, {0, 1, 2});
  Looked(3);
  After(minutes(5));
  Feed(CheckpointLooked{true});
  EndsAsAsked();
  Next({0, 1, 2, 3});
  v1::JournalState state = StateOf(*core_, now_, kUnixNow);
  const std::vector<AttemptRecord> was = core_->ended();
  const auto goes_on = [this] {
    now_ += seconds(1);
    Ends(End::kWorker, 7);
    const Duration pause = core_->next_at() - now_;
    Next({0, 1, 2, 3});
    return std::pair(pause, begun_.doubtful);
  };
  const auto then = goes_on();
  Succeed(state);
  ASSERT_EQ(core_->ended().size(), was.size());
  for (size_t i = 0; i < was.size(); ++i) {
    EXPECT_EQ(core_->ended()[i].cause, was[i].cause);
    EXPECT_EQ(core_->ended()[i].back, was[i].back);
    EXPECT_EQ(core_->ended()[i].counted, was[i].counted);
  }
  EXPECT_EQ(core_->attempt(), 2U);
  EXPECT_EQ(core_->counted(), 0U);
  EXPECT_EQ(goes_on(), then);
}

// Random runs: one end is asked for at most in an attempt, and never of one that has all hosts.
TEST_F(ScaleUpTest, RandomRuns) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  options_.restart_window = Duration::zero();
  for (int run = 0; run < 500; ++run) {
    verdict_.reset();
    asked_.clear();
    const uint32_t most = 2 + below(4);
    Make(most, below(3));
    size_t asked = 0;
    for (int step = 0; step < 300 && !verdict_; ++step) {
      const bool absent = !core_->absent().empty();
      const size_t before = asked_.size();
      const uint32_t what = below(12);
      if (core_->state() == Phase::kPause) {
        std::vector<uint32_t> joined;
        for (uint32_t i = 0; i < options_.hosts.size(); ++i) {
          if (below(4) > 0 && joined.size() < most) joined.push_back(i);
        }
        Next(joined);
        asked = asked_.size();
      } else if (what < 6 && absent) {
        Looked(core_->absent()[below(static_cast<uint32_t>(core_->absent().size()))], below(4) > 0);
      } else if (what < 8) {
        After(minutes(below(20)));
      } else if (what < 10) {
        Feed(CheckpointLooked{below(3) == 0});
      } else if (core_->scales_up() && below(2) == 0) {
        EndsAsAsked();
      } else {
        Ends(End::kNode, kExitNodeLost, {below(most)});
      }
      ASSERT_LE(asked_.size(), asked + 1);
      ASSERT_TRUE(asked_.size() == before || absent);
      ASSERT_LE(core_->counted(), options_.max_restarts);
    }
  }
}

}  // namespace
}  // namespace dtrain::job
