// SPDX-License-Identifier: Apache-2.0
// Which attempt is followed by another, when, and on which hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
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
using End = Verdict::Kind;
using Phase = CampaignCore::State;

class CampaignTest : public testing::Test {
 public:
  // On hosts node0, node1, ...
  void Make(uint32_t hosts, uint32_t max_restarts, uint32_t least = 0) {
    options_.hosts.clear();
    for (uint32_t i = 0; i < hosts; ++i) options_.hosts.push_back(absl::StrCat("node", i));
    options_.least_hosts = least == 0 ? hosts : least;
    options_.max_restarts = max_restarts;
    core_.emplace(options_, now_);
    Take(core_->Begin());
  }
  void Feed(const CampaignEvent& event) { Take(core_->OnEvent(now_, event)); }
  void Take(std::vector<CampaignAction> actions) {
    for (CampaignAction& action : actions) {
      EXPECT_FALSE(verdict_) << "an action after the end";
      if (auto* begin = std::get_if<BeginAttempt>(&action)) begun_.push_back(std::move(*begin));
      if (auto* announce = std::get_if<Announce>(&action)) said_.push_back(announce->text);
      if (auto* end = std::get_if<EndCampaign>(&action)) verdict_ = end->verdict;
    }
  }
  void Runs(Duration duration) {
    Feed(AttemptRuns{});
    now_ += duration;
  }
  void Ends(End kind, int exit_code, std::vector<uint32_t> hosts = {},
            TimePoint dead_at = TimePoint::min()) {
    AttemptEnded end;
    end.verdict.kind = kind;
    end.verdict.exit_code = exit_code;
    end.verdict.message = "because";
    end.cause = absl::StrCat("cause ", exit_code);
    end.hosts = std::move(hosts);
    end.dead_at = dead_at;
    Feed(end);
  }
  // By a rank, on a host on which GPUs have reported that.
  void EndsWithBadGpus(std::vector<BadGpu> gpus, End kind = End::kWorker, int code = 7) {
    AttemptEnded end;
    end.verdict.kind = kind;
    end.verdict.exit_code = code;
    end.cause = "cause";
    end.bad_gpus = std::move(gpus);
    Feed(end);
  }
  // They are to go away, and have said so.
  void Leave(std::vector<uint32_t> hosts) {
    AttemptEnded end;
    end.verdict.kind = End::kNode;
    end.verdict.exit_code = kExitNodeLost;
    end.verdict.leaves = true;
    end.cause = "node1: this host leaves the job";
    end.hosts = std::move(hosts);
    Feed(end);
  }
  void WorkerFails(int code = 7) { Ends(End::kWorker, code); }
  // How long until the next attempt, which begins.
  Duration Wait() {
    const TimePoint begin = now_;
    EXPECT_EQ(core_->state(), Phase::kPause);
    now_ = core_->NextDeadline();
    EXPECT_NE(now_, kNever);
    Feed(CampaignTick{});
    return now_ - begin;
  }

  CampaignOptions options_;
  std::optional<CampaignCore> core_;
  TimePoint now_{seconds(1000)};
  std::vector<BeginAttempt> begun_;
  std::vector<std::string> said_;
  std::optional<Verdict> verdict_;
};

TEST_F(CampaignTest, WithoutRestartsAnEndIsTheEnd) {
  Make(2, 0);
  ASSERT_EQ(begun_.size(), 1U);
  EXPECT_THAT(begun_[0].hosts, ElementsAre(0, 1));
  Runs(seconds(100));
  WorkerFails(7);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, 7);
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), kNever);
}

// What is planned costs no restart, however often, and is nothing against the host: it is left out
// once, while it may still answer.
TEST_F(CampaignTest, AHostThatLeavesCostsNoRestart) {
  Make(4, 1, /*least=*/3);
  Runs(seconds(100));
  Leave({1});
  EXPECT_EQ(Wait(), seconds(1));
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 2, 3));
  Runs(seconds(100));
  WorkerFails();
  Wait();
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 1, 2, 3));
  Runs(seconds(100));
  Leave({1});
  Wait();
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 2, 3));
  EXPECT_EQ(core_->counted(), 1U);
  EXPECT_THAT(
      said_,
      ElementsAre("dtrain: node1: this host leaves the job; the job restarts without it in 1 s",
                  "dtrain: restart 1 of 1 in 1 s: cause 7",
                  "dtrain: node1: this host leaves the job; the job restarts without it in 1 s"));
}

// But a program that ends dtrain's own processes soon after its start is not restarted for ever.
TEST_F(CampaignTest, AHostThatLeavesSoonAfterTheStartCostsARestart) {
  Make(2, 1);
  Runs(seconds(3));
  Leave({1});
  Wait();
  Runs(seconds(3));
  Leave({1});
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitRestarts);
}

// One that is needed may come back, and is not asked while it may not yet have gone.
TEST_F(CampaignTest, AHostThatLeavesAndIsNeededIsAwaited) {
  Make(2, 1);
  Runs(seconds(100));
  Leave({1});
  EXPECT_EQ(Wait(), seconds(15));
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 1));
  EXPECT_THAT(said_, ElementsAre("dtrain: node1: this host leaves the job; the job restarts with "
                                 "it in 15 s"));
}

// An allocation ends, and its nodes are all told.
TEST_F(CampaignTest, HostsThatAllLeaveEndTheJob) {
  Make(2, 1);
  Feed(AttemptRuns{{0, 1}, {0, 1}});
  Leave({0, 1});
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitNodeLost);
}

// Others may stay where it is not known who has ranks.
TEST_F(CampaignTest, HostsThatLeaveAndMayNotBeAllAreAwaited) {
  Make(4, 1);
  Feed(AttemptRuns{{0, 1, 2, 3}, {}});
  now_ += seconds(100);
  Leave({1, 2});
  EXPECT_EQ(Wait(), seconds(15));
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 1, 2, 3));
}

// But one that is alone may be rebooted.
TEST_F(CampaignTest, TheOnlyHostThatLeavesIsAwaited) {
  Make(1, 1);
  Feed(AttemptRuns{{0}, {0}});
  Leave({0});
  EXPECT_EQ(Wait(), seconds(15));
}

TEST_F(CampaignTest, WithoutRestartsAHostThatLeavesEndsTheJob) {
  Make(4, 0, /*least=*/3);
  Runs(seconds(100));
  Leave({1});
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitNodeLost);
}

// A job of weeks does not end of what it has long survived.
TEST_F(CampaignTest, ARestartCountsForADay) {
  Make(2, 2);
  for (int failures = 0; failures < 10; ++failures) {
    Runs(std::chrono::hours(13));
    WorkerFails();
    ASSERT_FALSE(verdict_) << failures;
    Wait();
  }
  EXPECT_THAT(said_.back(), HasSubstr("restart 2 of 2 in"));
  EXPECT_EQ(core_->counted(), 10U);
  Runs(seconds(1));
  WorkerFails();
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitRestarts);
}

TEST_F(CampaignTest, WithoutAWindowARestartCountsForEver) {
  options_.restart_window = Duration::zero();
  Make(2, 1);
  Runs(std::chrono::hours(1000));
  WorkerFails();
  Wait();
  Runs(std::chrono::hours(1000));
  WorkerFails();
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitRestarts);
}

TEST_F(CampaignTest, CodesThatTheUserNamesAreNotTriedAgain) {
  options_.never_on = {{2, 2}, {64, 78}};
  for (const int code : {2, 64, 78}) {
    verdict_.reset();
    Make(2, 3);
    Runs(seconds(3));
    WorkerFails(code);
    ASSERT_TRUE(verdict_) << code;
    EXPECT_EQ(verdict_->exit_code, code);
  }
  for (const int code : {1, 3, 63, 79}) {
    verdict_.reset();
    Make(2, 3);
    Runs(seconds(3));
    WorkerFails(code);
    EXPECT_FALSE(verdict_) << code;
  }
}

// With --reset-limit the verdict has another code.
TEST_F(CampaignTest, ACodeThatWasReplacedIsJudgedAsItWas) {
  options_.never_on = {{7, 7}};
  for (const int code : {7, 8}) {
    verdict_.reset();
    Make(2, 3);
    Runs(seconds(3));
    AttemptEnded end;
    end.verdict.kind = End::kWorker;
    end.verdict.exit_code = kExitRestarts;
    end.verdict.rank_code = code;
    Feed(end);
    ASSERT_EQ(verdict_.has_value(), code == 7);
    if (verdict_) {
      EXPECT_EQ(verdict_->exit_code, kExitRestarts);
    }
  }
}

TEST_F(CampaignTest, SaysWhyItDoesNotRestart) {
  struct Row {
    End kind;
    int code;
    std::string why;
  };
  const Row rows[] = {
      {End::kWorker, 3, "exit code 3 is in --no-restart-on"},
      {End::kWorker, kExitNotFound, "exit code 127 means that a program cannot be found"},
      {End::kWorker, kExitNotExecutable, "exit code 126 means that a program cannot be executed"},
      {End::kWorker, 7, "--restart-on does not name failure"},
      {End::kStalled, kExitStalled, "--restart-on does not name stall"},
      {End::kNode, kExitNodeLost, "--restart-on does not name node"},
      {End::kNode, kExitCleanup, "not all of its processes and GPUs could be freed"},
      {End::kSignal, kExitTerminated, ""},
  };
  options_.never_on = {{2, 3}};
  options_.on_failure = options_.on_stall = options_.on_node = false;
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat("verdict ", static_cast<int>(row.kind), ", code ", row.code));
    for (const uint32_t max_restarts : {0U, 5U}) {
      for (const bool is_stopped : {false, true}) {
        verdict_.reset();
        said_.clear();
        Make(2, max_restarts);
        Runs(seconds(3));
        if (is_stopped) Feed(StopAsked{SIGINT});
        Ends(row.kind, row.code);
        ASSERT_TRUE(verdict_);
        if (max_restarts == 0 || is_stopped || row.why.empty()) {
          EXPECT_THAT(said_, IsEmpty());
        } else {
          EXPECT_THAT(said_, ElementsAre(absl::StrCat("dtrain: not restarted: ", row.why)));
        }
      }
    }
  }
}

// At first it is the program's. After hours, or a restart, it may be a file system that is not
// there.
TEST_F(CampaignTest, AMistakeIsNotRepeatedIfTheProgramNeverGotGoing) {
  AttemptEnded end;
  end.verdict.kind = End::kWorker;
  end.verdict.exit_code = 1;
  end.verdict.mistake = "ModuleNotFoundError";
  for (const Duration ran : {seconds(1), seconds(59), seconds(60), seconds(100'000)}) {
    for (const bool first : {true, false}) {
      verdict_.reset();
      said_.clear();
      Make(2, 5);
      if (!first) {
        Runs(seconds(1));
        WorkerFails(7);
        Wait();
      }
      Runs(ran);
      Feed(end);
      const bool is_over = first && ran < options_.min_uptime;
      EXPECT_EQ(verdict_.has_value(), is_over);
      EXPECT_EQ(
          said_.back() == "dtrain: not restarted: a restart does not mend \"ModuleNotFoundError\"",
          is_over);
    }
  }
}

// Else two attempts would share GPUs and files.
TEST_F(CampaignTest, BesideWhatIsLeftBehindNothingBeginsWhateverFailed) {
  for (const End kind : {End::kWorker, End::kStalled, End::kNode, End::kLauncher}) {
    SCOPED_TRACE(static_cast<int>(kind));
    verdict_.reset();
    Make(3, 5, /*least=*/2);
    if (kind != End::kLauncher) Runs(seconds(100));
    AttemptEnded end;
    end.verdict.kind = kind;
    end.verdict.exit_code = kExitCleanup;
    end.verdict.left_behind = true;
    Feed(end);
    ASSERT_TRUE(verdict_);
    EXPECT_EQ(verdict_->exit_code, kExitCleanup);
  }
  // A program may have such a code of its own.
  verdict_.reset();
  Make(3, 5, /*least=*/2);
  Runs(seconds(100));
  WorkerFails(kExitCleanup);
  EXPECT_FALSE(verdict_);
}

// It is lost while it says goodbye: the work was complete.
TEST_F(CampaignTest, AHostThatIsLostAfterAllRanksHaveSucceededRestartsNothing) {
  Make(2, 5);
  Runs(seconds(100));
  AttemptEnded end;
  end.verdict.kind = End::kNode;
  end.verdict.exit_code = kExitNodeLost;
  end.hosts = {1};
  end.done = true;
  Feed(end);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitNodeLost);
  EXPECT_THAT(said_, ElementsAre("dtrain: not restarted: all ranks had ended with 0"));
}

// Its shutdown may send SIGTERM to the ranks, too, before we do: they have saved, not finished.
TEST_F(CampaignTest, AHostThatLeavesRestartsTheJobThoughAllRanksEndedWith0) {
  Make(2, 5);
  Runs(seconds(100));
  AttemptEnded end;
  end.verdict.kind = End::kNode;
  end.verdict.exit_code = kExitNodeLost;
  end.verdict.leaves = true;
  end.hosts = {1};
  end.done = true;
  Feed(end);
  EXPECT_FALSE(verdict_);
  EXPECT_EQ(core_->state(), Phase::kPause);
}

TEST_F(CampaignTest, RestartsUntilNoneAreLeft) {
  Make(2, 2);
  Runs(seconds(3));
  WorkerFails();
  EXPECT_EQ(Wait(), seconds(1));
  Runs(seconds(3));
  WorkerFails();
  EXPECT_EQ(Wait(), seconds(2));
  ASSERT_EQ(begun_.size(), 3U);
  EXPECT_EQ(begun_[2].attempt, 2U);
  Runs(seconds(3));
  WorkerFails();
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitRestarts);
  EXPECT_EQ(core_->ended().size(), 3U);
  EXPECT_THAT(said_, ElementsAre("dtrain: restart 1 of 2 in 1 s: cause 7",
                                 "dtrain: restart 2 of 2 in 2 s: cause 7"));
}

TEST_F(CampaignTest, SucceedsAfterARestart) {
  Make(2, 2);
  Runs(seconds(3));
  WorkerFails();
  Wait();
  Runs(seconds(3));
  Ends(End::kSuccess, 0);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, 0);
  EXPECT_EQ(core_->ended()[1].cause, "");
}

TEST_F(CampaignTest, TheBackoffGrowsToItsLimitAndALongAttemptResetsIt) {
  options_.backoff = seconds(1);
  options_.longest_backoff = seconds(5);
  Make(1, 100);
  std::vector<Duration> waits;
  for (const Duration uptime :
       {seconds(1), seconds(1), seconds(1), seconds(59), seconds(60), seconds(1)}) {
    Runs(uptime);
    WorkerFails();
    waits.push_back(Wait());
  }
  EXPECT_THAT(waits,
              ElementsAre(seconds(1), seconds(2), seconds(4), seconds(5), seconds(1), seconds(2)));
}

// A row for each verdict: whether it is followed by another attempt when it ran, when the first
// attempt did not get to run, and when a later one did not.
TEST_F(CampaignTest, WhatIsTriedAgain) {
  struct Row {
    End kind;
    int code;
    bool after_running, after_first, after_later;
  };
  const Row rows[] = {
      {End::kSuccess, 0, false, false, false},
      {End::kSignal, 130, false, false, false},
      {End::kTimeLimit, kExitTimeLimit, false, false, false},
      {End::kRefused, kExitUsage, false, false, true},
      {End::kStartTimeout, kExitRendezvous, false, false, true},
      {End::kStalled, kExitStalled, true, true, true},
      {End::kWorker, 7, true, true, true},
      {End::kWorker, kExitNotExecutable, false, false, false},
      {End::kWorker, kExitNotFound, false, false, false},
      {End::kNode, kExitNodeLost, true, false, true},
      {End::kNode, kExitAgentLost, true, false, true},
      {End::kNode, kExitStartAgents, false, false, true},
      {End::kNode, kExitRendezvous, false, false, true},
      {End::kNode, kExitCleanup, false, false, false},
      {End::kNode, kExitNotAuthorised, false, false, false},
      {End::kNode, kExitState, false, false, false},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat("verdict ", static_cast<int>(row.kind), ", code ", row.code));
    const auto is_tried_again = [&] {
      Ends(row.kind, row.code, {0});
      const bool again = core_->state() == Phase::kPause;
      EXPECT_NE(again, verdict_.has_value());
      if (verdict_) {
        EXPECT_EQ(verdict_->exit_code, row.code);
      }
      verdict_.reset();
      return again;
    };
    Make(2, 5);
    Runs(seconds(3));
    EXPECT_EQ(is_tried_again(), row.after_running && row.kind != End::kSuccess);
    Make(2, 5);
    EXPECT_EQ(is_tried_again(), row.after_first);
    Make(2, 5);
    Runs(seconds(3));
    WorkerFails();
    Wait();
    EXPECT_EQ(is_tried_again(), row.after_later);
  }
}

TEST_F(CampaignTest, RestartOnSaysWhichEndsAreTriedAgain) {
  struct Row {
    End kind;
    int code;
    bool CampaignOptions::*on;
  };
  for (const Row& row : {Row{End::kWorker, 7, &CampaignOptions::on_failure},
                         Row{End::kNode, kExitNodeLost, &CampaignOptions::on_node},
                         Row{End::kStalled, kExitStalled, &CampaignOptions::on_stall}}) {
    options_.*row.on = false;
    Make(2, 5);
    Runs(seconds(3));
    Ends(row.kind, row.code);
    ASSERT_TRUE(verdict_);
    EXPECT_EQ(verdict_->exit_code, row.code);
    verdict_.reset();
    options_.*row.on = true;
  }
}

TEST_F(CampaignTest, WaitsUntilTheWorkersOfALostNodeHaveEnded) {
  Make(2, 5);
  Runs(seconds(100));
  Ends(End::kNode, kExitNodeLost, {1}, now_ + seconds(12));
  EXPECT_EQ(Wait(), seconds(12));
  EXPECT_THAT(begun_[1].hosts, ElementsAre(0, 1));
  EXPECT_THAT(begun_[1].doubtful, ElementsAre(false, true));
}

TEST_F(CampaignTest, AHostThatWasLostAndHasRunSinceIsAwaitedAsAllOthers) {
  Make(2, 5);
  Runs(seconds(100));
  Ends(End::kNode, kExitNodeLost, {1});
  Wait();
  EXPECT_THAT(begun_.back().doubtful, ElementsAre(false, true));
  Feed(AttemptRuns{{0, 1}, {0, 1}});
  now_ += minutes(60);
  WorkerFails();
  Wait();
  EXPECT_THAT(begun_.back().doubtful, ElementsAre(false, false));
}

TEST_F(CampaignTest, ALossThatOthersMakeUpForCostsNoRestart) {
  options_.spares = true;
  Make(3, 0, /*least=*/2);
  Runs(seconds(100));
  Ends(End::kNode, kExitNodeLost, {1});
  EXPECT_EQ(Wait(), seconds(1));
  EXPECT_EQ(core_->counted(), 0U);
  EXPECT_THAT(
      said_,
      ElementsAre("dtrain: restart, not counted as other hosts can take over, in 1 s: cause 202"));
  // Without any to make up for it the budget counts, and there is none.
  Runs(seconds(100));
  Ends(End::kNode, kExitNodeLost, {0, 2});
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitNodeLost);
}

TEST_F(CampaignTest, AHostOfTwoEndsInTenMinutesIsLeftOut) {
  Make(3, 9, /*least=*/2);
  for (int i = 0; i < 2; ++i) {
    Runs(seconds(100));
    Ends(End::kNode, kExitNodeLost, {1});
    Wait();
  }
  EXPECT_THAT(begun_[1].hosts, ElementsAre(0, 1, 2));
  EXPECT_THAT(begun_[2].hosts, ElementsAre(0, 2));
  EXPECT_THAT(said_, testing::Contains("dtrain: node1 is left out while others suffice: 2 "
                                       "attempts within 600 s ended by its fault"));
  // A host that the job needs is never left out.
  for (int i = 0; i < 2; ++i) {
    Runs(seconds(100));
    Ends(End::kWorker, 7, {0});
    Wait();
  }
  EXPECT_THAT(begun_[4].hosts, ElementsAre(0, 2));
}

// A program may fail on any host.
TEST_F(CampaignTest, AHostWhoseRanksFailIsNotLeftOut) {
  Make(2, 9, /*least=*/1);
  for (int i = 0; i < 4; ++i) {
    Runs(seconds(100));
    Ends(End::kWorker, 7, {0});
    Wait();
    EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 1));
  }
  EXPECT_THAT(core_->left_out(), IsEmpty());
}

// The job needs one of them, and the other is gone.
TEST_F(CampaignTest, AHostThatWasLeftOutIsTheLastChoice) {
  Make(2, 9, /*least=*/1);
  for (int i = 0; i < 2; ++i) {
    Runs(seconds(100));
    Ends(End::kNode, kExitNodeLost, {0});
    Wait();
  }
  EXPECT_THAT(begun_.back().hosts, ElementsAre(1));
  Runs(seconds(100));
  Ends(End::kNode, kExitNodeLost, {1});
  Wait();
  EXPECT_THAT(begun_.back().hosts, ElementsAre(1));
  Ends(End::kNode, kExitStartAgents, {1});  // it is not there
  EXPECT_THAT(said_.back(), testing::HasSubstr(", with node0 again: "));
  Wait();
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 1));
  EXPECT_THAT(begun_.back().doubtful, ElementsAre(true, true));
}

// Else a host that fails again and again restarts the job for ever, for the other one that is gone.
TEST_F(CampaignTest, TheLossOfTheLastChoiceCostsARestart) {
  Make(2, 2, /*least=*/1);
  for (const uint32_t host : {0U, 0U, 1U}) {
    Runs(seconds(100));
    Ends(End::kNode, kExitNodeLost, {host});
    Wait();
  }
  for (int i = 0; i < 2; ++i) {
    Ends(End::kNode, kExitStartAgents, {1});  // it is not there: node0 again
    Wait();
    Runs(seconds(100));
    Ends(End::kNode, kExitNodeLost, {0});
    if (i > 0) continue;
    EXPECT_THAT(said_.back(), testing::HasSubstr("restart 2 of 2"));
    Wait();
  }
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitRestarts);
}

TEST_F(CampaignTest, AHostOfThreeEndsIsLeftOutHoweverFarApart) {
  Make(2, 9, /*least=*/1);
  for (int i = 0; i < 3; ++i) {
    Runs(minutes(60));
    Ends(End::kNode, kExitNodeLost, {1});
    Wait();
  }
  EXPECT_THAT(begun_[2].hosts, ElementsAre(0, 1));
  EXPECT_THAT(begun_[3].hosts, ElementsAre(0));
}

// The others do not wait for it as they would for one that nothing is known of.
TEST_F(CampaignTest, ALostSpareIsDoubtfulAndNothingElse) {
  Make(3, 2, /*least=*/2);
  for (int i = 0; i < 2; ++i) {
    Runs(seconds(1));
    AttemptEnded end;
    end.verdict.kind = End::kWorker;
    end.verdict.exit_code = 7;
    end.lost_spares = {2};
    Feed(end);
    Wait();
    EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 1, 2));
    EXPECT_THAT(begun_.back().doubtful, ElementsAre(false, false, true));
  }
  EXPECT_THAT(core_->left_out(), IsEmpty());
}

TEST_F(CampaignTest, AHostWithABadGpuIsLeftOutAtOnce) {
  Make(4, 2, /*least=*/3);
  Runs(seconds(100));
  EndsWithBadGpus({{2, "GPU 3 reported Xid 79 (GPU has fallen off the bus)"}});
  EXPECT_THAT(said_,
              ElementsAre("dtrain: node2 is left out while others suffice: GPU 3 reported Xid "
                          "79 (GPU has fallen off the bus)",
                          "dtrain: restart 1 of 2 in 1 s: cause"));
  Wait();
  EXPECT_THAT(begun_[1].hosts, ElementsAre(0, 1, 3));
  // For good.
  Runs(seconds(100));
  WorkerFails();
  Wait();
  EXPECT_THAT(begun_[2].hosts, ElementsAre(0, 1, 3));
}

TEST_F(CampaignTest, AHostWithABadGpuStaysIfTheJobNeedsIt) {
  Make(4, 2, /*least=*/3);
  Runs(seconds(100));
  EndsWithBadGpus({{1, "GPU 0 had 2 uncorrected ECC errors"}, {2, "GPU 3 reported Xid 79"}});
  EXPECT_THAT(core_->left_out(), ElementsAre("node1"));
  EXPECT_THAT(said_, testing::Contains("dtrain: node2 stays in the job, which has no host in its "
                                       "place: GPU 3 reported Xid 79"));
  Wait();
  EXPECT_THAT(begun_[1].hosts, ElementsAre(0, 2, 3));
}

TEST_F(CampaignTest, TheBadGpusOfAHostAreToldInOneLine) {
  Make(2, 1, /*least=*/1);
  Runs(seconds(100));
  EndsWithBadGpus({{1, "a"}, {1, "b"}, {1, "c"}, {1, "d"}, {1, "e"}});
  EXPECT_THAT(said_, testing::Contains("dtrain: node1 is left out while others suffice: a; b; "
                                       "c; and 2 more"));
}

TEST_F(CampaignTest, ABadGpuEndsNoJobThatIsOver) {
  Make(2, 0, /*least=*/1);
  Runs(seconds(100));
  EndsWithBadGpus({{1, "a"}});
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, 7);
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(CampaignTest, ABadGpuCountsForAnAttemptThatNeverRan) {
  Make(3, 2, /*least=*/2);
  Runs(seconds(100));
  WorkerFails();
  Wait();
  EndsWithBadGpus({{1, "a"}}, End::kNode, kExitStartAgents);
  Wait();
  EXPECT_EQ(begun_.back().attempt, 1U);
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 2));
}

TEST_F(CampaignTest, ARestartWaitsForItsHosts) {
  options_.join_timeout = seconds(30);
  Make(2, 1);
  Runs(seconds(100));
  Ends(End::kNode, kExitNodeLost, {1});
  EXPECT_EQ(Wait(), seconds(1));
  for (int i = 0; i < 4; ++i) {
    now_ += seconds(1);
    Ends(End::kNode, kExitStartAgents, {1});
    EXPECT_EQ(Wait(), seconds(5));
    EXPECT_EQ(begun_.back().attempt, 1U);  // still the same
  }
  EXPECT_EQ(core_->counted(), 1U);
  now_ += seconds(1);
  Ends(End::kNode, kExitStartAgents, {1});
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitNodeLost);
  EXPECT_EQ(verdict_->message, "no restart within 30 s (--join-timeout): because");
}

TEST_F(CampaignTest, AStopBetweenAttemptsEndsIt) {
  Make(2, 9);
  Runs(seconds(3));
  WorkerFails();
  Feed(StopAsked{SIGUSR1});  // is not for us
  EXPECT_FALSE(verdict_);
  Feed(StopAsked{SIGTERM});
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitTerminated);
  EXPECT_EQ(verdict_->kind, End::kSignal);
}

TEST_F(CampaignTest, AStopWhileAnAttemptEndsWinsOverItsRestart) {
  Make(2, 9);
  Runs(seconds(3));
  Feed(StopAsked{SIGINT});
  EXPECT_FALSE(verdict_);
  WorkerFails();  // it had failed before
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitInterrupted);
}

TEST_F(CampaignTest, AStopDoesNotHideWhatIsLeftBehind) {
  Make(2, 9);
  Runs(seconds(3));
  Feed(StopAsked{SIGINT});
  Ends(End::kNode, kExitCleanup);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitCleanup);
}

TEST_F(CampaignTest, AStopByAnAgentWhileAnAttemptEndsWinsOverItsRestart) {
  for (const bool succeeds : {false, true}) {
    verdict_.reset();
    said_.clear();
    Make(2, 9);
    Runs(seconds(3));
    AttemptEnded end;
    end.verdict.kind = succeeds ? End::kSuccess : End::kWorker;
    end.verdict.exit_code = succeeds ? 0 : 7;
    end.stopped = "node1: the job was stopped here by bob";
    Feed(end);
    ASSERT_TRUE(verdict_);
    EXPECT_EQ(verdict_->exit_code, succeeds ? 0 : kExitTerminated);
    EXPECT_EQ(verdict_->message, succeeds ? "" : end.stopped);
    EXPECT_THAT(said_, IsEmpty());
  }
}

TEST_F(CampaignTest, TheTimeLimitIsOfAllAttempts) {
  options_.time_limit = seconds(10);
  Make(2, 9);
  EXPECT_EQ(begun_[0].time_limit, seconds(10));
  Runs(seconds(3));
  WorkerFails();
  Wait();
  EXPECT_EQ(begun_[1].time_limit, seconds(6));
  Runs(seconds(5));
  WorkerFails();
  EXPECT_EQ(core_->NextDeadline(), now_ + seconds(1));
  now_ += seconds(1);
  Feed(CampaignTick{});
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitTimeLimit);
}

// Random runs: one attempt at a time, numbers that grow, never more restarts than allowed, never
// fewer hosts than needed, and an end.
TEST_F(CampaignTest, RandomRunsEnd) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (int run = 0; run < 2000; ++run) {
    verdict_.reset();
    begun_.clear();
    said_.clear();
    options_ = {};
    options_.spares = below(2) == 0;
    options_.join_timeout = seconds(1 + below(100));
    if (below(4) == 0) options_.time_limit = seconds(1 + below(500));
    const uint32_t hosts = 1 + below(5);
    const uint32_t least = 1 + below(hosts);
    Make(hosts, below(6), least);
    for (int step = 0; !verdict_; ++step) {
      ASSERT_LT(step, 1000);
      ASSERT_EQ(core_->state() == Phase::kPause, core_->NextDeadline() != kNever);
      ASSERT_LE(core_->counted(), options_.max_restarts);
      ASSERT_GE(begun_.back().hosts.size(), least);
      ASSERT_EQ(begun_.back().hosts.size(), begun_.back().doubtful.size());
      if (begun_.size() > 1) {
        ASSERT_LE(begun_[begun_.size() - 2].attempt, begun_.back().attempt);
      }
      const size_t begun = begun_.size();
      const uint32_t what = below(20);
      if (what == 0) {
        Feed(StopAsked{SIGTERM});
      } else if (what < 8) {
        now_ += milliseconds(below(100'000));
        Feed(CampaignTick{});
      } else if (what < 12) {
        Feed(AttemptRuns{});
      } else {
        static constexpr std::pair<End, int> kEnds[] = {{End::kWorker, 1},
                                                        {End::kNode, kExitNodeLost},
                                                        {End::kNode, kExitAgentLost},
                                                        {End::kNode, kExitStartAgents},
                                                        {End::kStalled, kExitStalled},
                                                        {End::kRefused, kExitUsage}};
        const auto [kind, code] = kEnds[below(std::size(kEnds))];
        if (below(3) == 0) {
          EndsWithBadGpus({{below(hosts), "a"}, {below(hosts), "b"}}, kind, code);
        } else {
          Ends(kind, code, {below(hosts)}, now_ + seconds(below(30)));
        }
        ASSERT_EQ(begun_.size(), begun) << "an attempt began as the one before it ended";
      }
    }
  }
}

// ---- the next launcher ----------------------------------------------------------------------

// What the journal says of a campaign, as its launcher dies now.
CampaignPast PastOfCore(const CampaignCore& core, TimePoint begin, TimePoint now,
                        std::optional<TimePoint> runs_since, int stop) {
  CampaignPast past;
  past.ended = core.ended();
  past.attempt = core.attempt();
  past.begun = core.state() == Phase::kAttempt;
  past.runs = runs_since.has_value();
  if (past.runs) past.ran = now - *runs_since;
  past.pauses = !past.begun;
  if (past.pauses) past.wait = std::max<Duration>(core.next_at() - now, Duration::zero());
  past.age = now - begin;
  past.stop_signal = stop;
  for (const std::string& host : core.left_out()) {
    past.left_out.push_back(static_cast<uint32_t>(std::stoul(host.substr(4))));
  }
  return past;
}

TEST_F(CampaignTest, TheNextLauncherWaitsTheRestOfThePause) {
  Make(2, 3);
  Runs(seconds(100));
  WorkerFails();
  const TimePoint next = core_->next_at();
  now_ += milliseconds(400);
  core_.emplace(options_, PastOfCore(*core_, TimePoint(seconds(1000)), now_, {}, 0), now_);
  Take(core_->Begin());
  EXPECT_EQ(core_->state(), Phase::kPause);
  EXPECT_EQ(core_->next_at(), next);
  EXPECT_EQ(core_->counted(), 1);
  Wait();
  EXPECT_EQ(begun_.back().attempt, 1);
}

// The clock was ahead when the pause was written down, or is now.
TEST_F(CampaignTest, AClockThatWasSetMakesNoPauseLonger) {
  const std::chrono::nanoseconds decided(int64_t{1'790'000'000} * 1'000'000'000);
  v1::JournalState state;
  state.set_phase(v1::JournalState::PHASE_RESTARTING);
  v1::RestartDecided& restart = *state.add_restarts();
  restart.set_unix_nanos(decided.count());
  restart.set_not_before_unix_nanos((decided + seconds(8)).count());
  const auto wait_after = [&](std::chrono::nanoseconds time) {
    return PastOf(state, hosts::HostList(), now_, (decided + time).count()).wait;
  };
  EXPECT_EQ(wait_after(seconds(3)), seconds(5));
  EXPECT_EQ(wait_after(-std::chrono::hours(24 * 35)), seconds(8));
  EXPECT_EQ(wait_after(std::chrono::hours(24 * 35)), seconds(0));
}

TEST_F(CampaignTest, AnAttemptThatHasBegunIsNotBegunByTheNextLauncher) {
  Make(2, 3);
  core_.emplace(options_, PastOfCore(*core_, now_, now_, {}, 0), now_);
  EXPECT_THAT(core_->Begin(), IsEmpty());
  Ends(End::kLauncher, kExitAgentLost, {}, now_ + seconds(7));
  EXPECT_EQ(Wait(), seconds(7)) << "some of it may live so long";
  EXPECT_EQ(begun_.back().attempt, 0);
  EXPECT_EQ(core_->counted(), 0);
}

TEST_F(CampaignTest, WithoutRestartsTooAnAttemptThatNeverRanBeginsAgain) {
  Make(2, 0);
  core_.emplace(options_, PastOfCore(*core_, now_, now_, {}, 0), now_);
  core_->Begin();
  Ends(End::kLauncher, kExitAgentLost);
  Wait();
  EXPECT_EQ(begun_.size(), 2);
}

TEST_F(CampaignTest, TheNextLauncherObeysAStop) {
  Make(2, 3);
  Runs(seconds(1));
  WorkerFails();
  core_.emplace(options_, PastOfCore(*core_, now_, now_, {}, SIGTERM), now_);
  Take(core_->Begin());
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, 143);
}

TEST_F(CampaignTest, TheNextLauncherKnowsByWhoseFaultAttemptsEnded) {
  Make(3, 5, 2);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(core_->left_out(), IsEmpty());
    core_.emplace(options_, PastOfCore(*core_, TimePoint(seconds(1000)), now_, now_, 0), now_);
    core_->Begin();
    now_ += seconds(10);
    Ends(End::kNode, kExitAgentLost, {1});
    const auto began = now_;
    Wait();
    // Both were shorter than --min-uptime.
    EXPECT_EQ(now_ - began, seconds(1 + attempt));
  }
  EXPECT_THAT(core_->left_out(), ElementsAre("node1"));
}

// Such as that with which Slurm asks for a checkpoint.
TEST_F(CampaignTest, ASignalForWorkersBetweenAttemptsIsNotDroppedSilently) {
  Make(2, 3);
  Runs(seconds(100));
  Feed(StopAsked{SIGUSR1});
  EXPECT_THAT(said_, IsEmpty());
  WorkerFails();
  said_.clear();
  Feed(StopAsked{SIGUSR1});
  EXPECT_THAT(said_, ElementsAre(HasSubstr("SIGUSR1 is ignored: no worker is running now")));
  Wait();
  EXPECT_EQ(begun_.size(), 2U);
}

// Else the restart would leave it out unless it joins within 2 s of the others.
TEST_F(CampaignTest, TheNextLauncherDoesNotDoubtAHostThatHasRunSince) {
  Make(2, 5, 1);
  Runs(seconds(100));
  Ends(End::kNode, kExitNodeLost, {1});
  Wait();
  EXPECT_THAT(begun_.back().doubtful, ElementsAre(false, true));
  Feed(AttemptRuns{{0, 1}, {0, 1}});
  now_ += seconds(100);
  WorkerFails();
  CampaignPast past = PastOfCore(*core_, TimePoint(seconds(1000)), now_, {}, 0);
  past.seats = {0, 1};
  core_.emplace(options_, past, now_);
  Take(core_->Begin());
  Wait();
  EXPECT_THAT(begun_.back().doubtful, ElementsAre(false, false));
}

// A job that is detached while it runs: its journal is made of the campaign itself.
TEST_F(CampaignTest, AJournalThatIsWrittenLateSaysTheSame) {
  Make(4, 5, 2);
  for (int attempt = 0; attempt < 2; ++attempt) {
    Runs(seconds(10));
    Ends(End::kNode, kExitAgentLost, {1}, now_ + seconds(3));
    Wait();
  }
  Runs(seconds(100));
  ASSERT_THAT(core_->left_out(), ElementsAre("node1"));
  const int64_t unix_now = int64_t{1'790'000'000} * 1'000'000'000;
  v1::JournalState state = StateOf(*core_, now_, unix_now);
  EXPECT_EQ(state.phase(), v1::JournalState::PHASE_RUNS);
  EXPECT_EQ(state.attempt().attempt(), 2);
  state.mutable_accepted()->mutable_by()->set_unix_nanos(unix_now - int64_t{500} * 1'000'000'000);
  hosts::HostList hosts;
  for (const std::string& host : options_.hosts) hosts.entries.emplace_back().host = host;
  // Read a minute later.
  const CampaignPast past =
      PastOf(state, hosts, now_ + seconds(60), unix_now + int64_t{60} * 1'000'000'000);
  EXPECT_TRUE(past.begun && past.runs && !past.pauses);
  EXPECT_EQ(past.attempt, 2);
  EXPECT_EQ(past.ran, seconds(160));
  EXPECT_EQ(past.age, seconds(560));
  EXPECT_THAT(past.left_out, ElementsAre(1));
  ASSERT_EQ(past.ended.size(), core_->ended().size());
  for (size_t i = 0; i < past.ended.size(); ++i) {
    const AttemptRecord& is = past.ended[i];
    const AttemptRecord& was = core_->ended()[i];
    EXPECT_EQ(is.attempt, was.attempt);
    EXPECT_EQ(is.cause, was.cause);
    EXPECT_EQ(is.exit_code, was.exit_code);
    EXPECT_EQ(is.ran, was.ran);
    EXPECT_EQ(is.counted, was.counted);
    EXPECT_EQ(is.hosts, was.hosts);
    EXPECT_EQ(is.lost, was.lost);
    EXPECT_EQ(is.ended, was.ended);
  }
}

// A launcher may die between any two events: with the next one all goes on as with one that never
// died.
TEST_F(CampaignTest, RandomRunsSurviveTheirLaunchers) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (int run = 0; run < 40'000; ++run) {
    verdict_.reset();
    begun_.clear();
    said_.clear();
    options_ = {};
    options_.spares = below(2) == 0;
    const uint32_t hosts = 1 + below(5);
    Make(hosts, below(6), 1 + below(hosts));
    const TimePoint begin = now_;
    CampaignCore undying(options_, now_);
    undying.Begin();
    std::optional<TimePoint> runs_since;
    int stop = 0;
    for (int step = 0; !verdict_; ++step) {
      ASSERT_LT(step, 1000);
      if (below(2) == 0) {
        core_.emplace(options_, PastOfCore(*core_, begin, now_, runs_since, stop), now_);
        Take(core_->Begin());
        if (verdict_) break;  // a stop that the last one has not obeyed yet
      }
      const size_t attempts = begun_.size();
      std::optional<CampaignEvent> event;
      const uint32_t what = below(20);
      if (what == 0) {
        stop = SIGTERM;
        event = StopAsked{SIGTERM};
      } else if (what < 8) {
        now_ += milliseconds(below(100'000));
        event = CampaignTick{};
      } else if (what < 14) {
        if (core_->state() == Phase::kAttempt && !runs_since) runs_since = now_;
        event = AttemptRuns{};
      } else if (core_->state() == Phase::kAttempt) {
        static constexpr std::pair<End, int> kEnds[] = {
            {End::kWorker, 1}, {End::kNode, kExitNodeLost}, {End::kStalled, kExitStalled}};
        const auto [kind, code] = kEnds[below(std::size(kEnds))];
        AttemptEnded end;
        end.verdict.kind = runs_since ? kind : End::kLauncher;
        end.verdict.exit_code = runs_since ? code : kExitAgentLost;
        if (runs_since) end.hosts = {below(hosts)};
        end.dead_at = now_ + seconds(below(30));
        runs_since.reset();
        event = end;
      }
      if (!event) continue;
      Feed(*event);
      const std::vector<CampaignAction> expected = undying.OnEvent(now_, *event);
      ASSERT_EQ(core_->state(), undying.state());
      ASSERT_EQ(core_->attempt(), undying.attempt());
      ASSERT_EQ(core_->counted(), undying.counted());
      ASSERT_EQ(core_->left_out(), undying.left_out());
      ASSERT_EQ(core_->NextDeadline(), undying.NextDeadline());
      for (const CampaignAction& action : expected) {
        if (const auto* began = std::get_if<BeginAttempt>(&action)) {
          ASSERT_EQ(begun_.size(), attempts + 1);
          ASSERT_EQ(begun_.back().hosts, began->hosts);
          ASSERT_EQ(begun_.back().doubtful, began->doubtful);
        } else if (const auto* ended = std::get_if<EndCampaign>(&action)) {
          ASSERT_TRUE(verdict_);
          ASSERT_EQ(verdict_->exit_code, ended->verdict.exit_code);
        }
      }
    }
  }
}

// One rank may end before others have started; that it has run is said all the same.
TEST_F(CampaignTest, AnAttemptWhoseRanksHaveRunWasStarted) {
  Make(2, 3);
  AttemptEnded end;
  end.verdict.kind = End::kWorker;
  end.verdict.exit_code = 7;
  end.ran = milliseconds(100);
  Feed(end);
  EXPECT_EQ(core_->ended().back().ran, milliseconds(100));
}

// ---- hosts that are gone before the workers ran ----
class AbsentHostsTest : public CampaignTest {
 public:
  void GoneBefore(std::vector<uint32_t> hosts, bool joined = true,
                  int exit_code = kExitStartAgents) {
    AttemptEnded end;
    end.verdict.kind = End::kNode;
    end.verdict.exit_code = exit_code;
    end.verdict.absent = true;
    end.verdict.message = end.cause = "gone";
    end.hosts = std::move(hosts);
    end.joined = joined;
    end.dead_at = TimePoint::min();
    Feed(end);
  }
};

TEST_F(AbsentHostsTest, OthersTakeTheirPlacesUncounted) {
  Make(4, 0, /*least=*/2);
  GoneBefore({1});
  EXPECT_FALSE(verdict_);
  EXPECT_THAT(said_.back(), HasSubstr("the start begins again without that host"));
  EXPECT_EQ(Wait(), Duration::zero());
  EXPECT_EQ(begun_.back().attempt, 0u);
  // If it is there again it may come, but is not waited for.
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(begun_.back().doubtful, ElementsAre(false, true, false, false));
  // The second time it is not asked.
  GoneBefore({1});
  Wait();
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 2, 3));
  Feed(AttemptRuns{});
  EXPECT_EQ(core_->counted(), 0u);
  EXPECT_THAT(core_->ended(), IsEmpty());
}

TEST_F(AbsentHostsTest, ThoseThatNeverCameAreNotAskedAgain) {
  Make(4, 0, /*least=*/2);
  GoneBefore({1, 3}, /*joined=*/false);
  Wait();
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 2));
  GoneBefore({0}, /*joined=*/false);
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitStartAgents);
}

TEST_F(AbsentHostsTest, OneThatTheJobNeedsIsAwaitedOnce) {
  Make(2, 0);
  GoneBefore({1});
  EXPECT_THAT(said_.back(), HasSubstr("and waits for that host"));
  Wait();
  EXPECT_THAT(begun_.back().hosts, ElementsAre(0, 1));
  EXPECT_THAT(begun_.back().doubtful, ElementsAre(false, false));
  GoneBefore({1});
  ASSERT_TRUE(verdict_);
}

TEST_F(AbsentHostsTest, OnceTheJobRunsItIsALostNode) {
  Make(4, 0, /*least=*/2);
  Feed(AttemptRuns{});
  GoneBefore({1}, true, kExitNodeLost);
  ASSERT_TRUE(verdict_);
}

TEST_F(AbsentHostsTest, AStopIsObeyed) {
  Make(4, 0, /*least=*/2);
  Feed(StopAsked{SIGINT});
  GoneBefore({1});
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, kExitSignalBase + SIGINT);
}

// ---- workers that may live where nobody is heard ----
TEST_F(CampaignTest, ARestartAsksForWorkersInsteadOfWaiting) {
  Make(3, 1, /*least=*/3);
  Runs(minutes(2));
  AttemptEnded end;
  end.verdict.kind = End::kNode;
  end.verdict.exit_code = kExitNodeLost;
  end.cause = "lost";
  end.hosts = {1};
  end.dead_at = now_ + seconds(45);
  end.unheard = {{1, end.dead_at, "boot1"}};
  Feed(end);
  EXPECT_EQ(Wait(), seconds(1));
  ASSERT_EQ(begun_.back().unheard.size(), 1u);
  EXPECT_EQ(begun_.back().unheard[0].dead_at, end.dead_at);
}

TEST_F(CampaignTest, WhereNobodyAsksARestartWaits) {
  Make(3, 1, /*least=*/3);
  Runs(minutes(2));
  Ends(End::kNode, kExitNodeLost, {1}, now_ + seconds(45));
  EXPECT_EQ(Wait(), seconds(45));
}

TEST_F(CampaignTest, ARestartKeepsTheNodeRanks) {
  Make(3, 1);
  Feed(AttemptRuns{{0, 1, 2}, {0, 2}});
  WorkerFails();
  Wait();
  EXPECT_THAT(begun_.back().seats, ElementsAre(0, 2));
}

}  // namespace
}  // namespace dtrain::job
