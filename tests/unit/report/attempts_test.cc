// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/attempts.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/progress.h"
#include "launcher/report/result_json.h"
#include "tests/unit/report/facts_fixture.h"

namespace dtrain::report {
namespace {

class AttemptsTest : public FactsTest {
 protected:
  void Make(uint32_t max_restarts) {
    options_.hosts = {"node1", "node2"};
    options_.least_hosts = 2;
    options_.max_restarts = max_restarts;
    campaign_.emplace(options_, now_);
    campaign_->Begin();
  }
  // Ended after `ran`; the next, if any, has begun.
  void Attempt(Duration ran, int code = 7) {
    campaign_->OnEvent(now_, job::AttemptRuns{});
    now_ += ran;
    job::AttemptEnded end;
    end.verdict.kind = code == 0 ? job::Verdict::Kind::kSuccess : job::Verdict::Kind::kWorker;
    end.verdict.exit_code = code;
    end.cause = absl::StrCat("rank 2 on node2 exited with code ", code);
    for (const job::CampaignAction& action : campaign_->OnEvent(now_, end)) {
      if (const auto* over = std::get_if<job::EndCampaign>(&action)) verdict_ = over->verdict;
    }
    if (campaign_->state() != job::CampaignCore::State::kPause) return;
    now_ = campaign_->NextDeadline();
    campaign_->OnEvent(now_, job::CampaignTick{});
  }
  JobFacts Facts() const {
    return {state_, nodes_, ranks_, phases_, verdict_, secondary_deaths_, warnings_, &*campaign_};
  }

  job::CampaignOptions options_;
  std::optional<job::CampaignCore> campaign_;
  TimePoint now_ = At(0);
};

TEST_F(AttemptsTest, AGpuIsPartOfTheCause) {
  verdict_.kind = job::Verdict::Kind::kWorker;
  verdict_.rank = Rank(2);
  End(2).set_exit_code(7);
  gpus_.push_back({NodeId(1), 3, "reported Xid 79", job::XidKind::kHardware});
  EXPECT_EQ(CauseLine(FactsTest::Facts()),
            "rank 2 on node2 exited with code 7; GPU 3 on node2 reported Xid 79");
}

TEST_F(AttemptsTest, TheCauseOfAFailureIsItsRank) {
  verdict_.kind = job::Verdict::Kind::kWorker;
  verdict_.rank = Rank(2);
  End(2).set_exit_code(7);
  EXPECT_EQ(CauseLine(FactsTest::Facts()), "rank 2 on node2 exited with code 7");
  ranks_[2].exit.set_exit_code(0);
  ranks_[2].exit.set_signal(9);
  EXPECT_EQ(CauseLine(FactsTest::Facts()), "rank 2 on node2 was killed by signal 9 (SIGKILL)");
}

TEST_F(AttemptsTest, TheCauseOfAnythingElseIsOneLineOfItsMessage) {
  verdict_.kind = job::Verdict::Kind::kNode;
  verdict_.message = "node2: gone\nand more";
  EXPECT_EQ(CauseLine(FactsTest::Facts()), "node2: gone");
  verdict_.message = "several nodes failed:\n  node1: gone\n  node2: lost";
  EXPECT_EQ(CauseLine(FactsTest::Facts()), "several nodes failed: node1: gone, ...");
  verdict_.message = "could not start:\n  node1: gone";
  EXPECT_EQ(CauseLine(FactsTest::Facts()), "could not start: node1: gone");
  verdict_.message.clear();
  EXPECT_EQ(CauseLine(FactsTest::Facts()), "");
}

TEST_F(AttemptsTest, WhenNoRestartsAreLeftTheReportHasThemAll) {
  Make(1);
  verdict_.rank = Rank(2);
  Attempt(std::chrono::seconds(12));
  Attempt(std::chrono::milliseconds(250));
  ASSERT_EQ(verdict_.exit_code, kExitRestarts);
  EXPECT_THAT(FailureReport(Facts()),
              testing::HasSubstr("dtrain: no restarts left (--max-restarts 1):\n"
                                 "  attempt 0, ran 12.0 s: rank 2 on node2 exited with code 7\n"
                                 "  attempt 1, ran 0.25 s: rank 2 on node2 exited with code 7\n"
                                 "dtrain: exit code 208"));
  const auto json = nlohmann::json::parse(ResultJson(Facts(), "dtrain-1", now_));
  ASSERT_EQ(json["attempts"].size(), 2U);
  EXPECT_EQ(json["attempts"][1]["ran_s"], 0.25);
}

// --reset-limit, or a program: restarts are left.
TEST_F(AttemptsTest, AnEndWithThatCodeNeedNotBeTheEndOfRestarts) {
  options_.never_on = {{kExitRestarts, kExitRestarts}};
  Make(3);
  verdict_.rank = Rank(2);
  Attempt(std::chrono::seconds(12));
  Attempt(std::chrono::seconds(12), kExitRestarts);
  ASSERT_EQ(verdict_.exit_code, kExitRestarts);
  const std::string report = FailureReport(Facts());
  EXPECT_THAT(report, testing::Not(testing::HasSubstr("no restarts left")));
  EXPECT_THAT(report, testing::HasSubstr("dtrain: 2 attempts:\n  attempt 0, ran 12.0 s: "));
}

TEST_F(AttemptsTest, OfManyTheFirstAndTheLastAreShown) {
  options_.min_uptime = std::chrono::seconds(1);
  Make(100);
  for (int i = 0; i < 30; ++i) Attempt(std::chrono::seconds(2));
  Attempt(std::chrono::seconds(2), 0);
  const std::string lines = AttemptLines(campaign_->ended());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 21);
  EXPECT_THAT(lines, testing::HasSubstr("  attempt 9, "));
  EXPECT_THAT(lines, testing::HasSubstr("\n  ... 11 more\n  attempt 21, "));
  EXPECT_THAT(lines, testing::EndsWith("  attempt 30, ran 2.00 s: succeeded\n"));
}

TEST_F(AttemptsTest, TheLiveLineNamesALaterAttempt) {
  Make(3);
  Phase(job::State::kStopping, 0);
  EXPECT_EQ(ProgressLine(Facts(), At(500), 120), "stop 0/4 0.50 s");
  Attempt(std::chrono::seconds(12));
  EXPECT_EQ(ProgressLine(Facts(), At(500), 120), "attempt 1: stop 0/4 0.50 s");
}

TEST_F(AttemptsTest, OneAttemptIsNotWorthAList) {
  Make(0);
  verdict_.rank = Rank(2);
  Attempt(std::chrono::seconds(12));
  EXPECT_EQ(verdict_.exit_code, 7);
  EXPECT_THAT(FailureReport(Facts()), testing::Not(testing::HasSubstr("attempt")));
}

}  // namespace
}  // namespace dtrain::report
