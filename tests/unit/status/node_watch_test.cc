// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/node_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launcher/status/node_json.h"

namespace dtrain::status {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

v1::NodeReport Resident() {
  v1::NodeReport report;
  report.set_started_unix_nanos(5);
  report.add_jobs()->set_job_id("dtrain-1");
  return report;
}

class NodeWatchTest : public testing::Test {
 protected:
  // Asks, and gets that answer after 10 ms: whether the connection is to be given up.
  bool Ask(absl::StatusOr<v1::NodeReport> answer) {
    EXPECT_TRUE(watch_.OnLook(now_));
    now_ += milliseconds(10);
    return watch_.OnAnswer(now_, std::move(answer));
  }
  // Until it would ask again.
  Duration Pause() const {
    Duration pause{};
    NodeWatch watch = watch_;
    while (!watch.OnLook(now_ + pause)) pause += milliseconds(1);
    return pause;
  }
  // What it shows, in a word.
  std::string State() const { return watch_.View(now_)["state"]; }

  TimePoint now_ = TimePoint(seconds(1000));
  NodeWatch watch_{"gpu7"};
};

TEST_F(NodeWatchTest, AsksOnceASecondHoweverManyLook) {
  EXPECT_FALSE(watch_.knows());
  EXPECT_TRUE(watch_.OnLook(now_));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(watch_.OnLook(now_ + seconds(i)));  // no answer yet
  EXPECT_TRUE(watch_.is_asking());
  EXPECT_FALSE(watch_.OnAnswer(now_ + milliseconds(10), Resident()));
  EXPECT_FALSE(watch_.is_asking());
  EXPECT_FALSE(watch_.OnLook(now_ + milliseconds(999)));
  EXPECT_TRUE(watch_.OnLook(now_ + milliseconds(1000)));
  EXPECT_FALSE(watch_.OnLook(now_ + milliseconds(1000)));
}

TEST_F(NodeWatchTest, ShowsWhatItHasHeardAndHowOldThatIs) {
  EXPECT_FALSE(Ask(Resident()));
  EXPECT_EQ(State(), "ok");
  EXPECT_EQ(watch_.View(now_)["host"], "gpu7");
  EXPECT_EQ(watch_.View(now_ + milliseconds(2500))["age_s"], 2.5);
  EXPECT_FALSE(watch_.View(now_).contains("no_answer"));
}

TEST_F(NodeWatchTest, AfterFailuresItAsksMoreAndMoreSeldom) {
  now_ += Pause();
  EXPECT_FALSE(Ask(Resident()));
  now_ += Pause();
  for (const int pause : {1, 2, 4, 8, 15, 15, 15}) {
    EXPECT_TRUE(Ask(absl::UnavailableError("no route")));
    EXPECT_EQ(Pause(), seconds(pause));
    const auto view = watch_.View(now_);
    EXPECT_EQ(view["state"], "ok") << "what was last heard";
    EXPECT_EQ(view["no_answer"]["why"], "no route");
    EXPECT_EQ(view["no_answer"]["retry_s"], pause);
    now_ += Pause();
  }
  EXPECT_EQ(watch_.View(now_ + seconds(9))["no_answer"]["retry_s"], 0.0);
  EXPECT_FALSE(Ask(Resident()));
  EXPECT_FALSE(watch_.View(now_).contains("no_answer"));
  EXPECT_LT(Pause(), seconds(1));
}

TEST_F(NodeWatchTest, FailuresWithoutAnyAnswerSayWhy) {
  EXPECT_TRUE(Ask(absl::UnavailableError("no route")));
  EXPECT_FALSE(watch_.knows());
  EXPECT_EQ(watch_.failure().message(), "no route");
}

// Its jobs run on, of which whoever else answers knows nothing.
TEST_F(NodeWatchTest, AResidentAgentThatIsGoneIsSilent) {
  EXPECT_FALSE(Ask(Resident()));
  now_ += Pause();
  EXPECT_TRUE(Ask(v1::NodeReport()));
  EXPECT_EQ(State(), "ok");
  EXPECT_EQ(watch_.View(now_)["jobs"].size(), 1u);
  EXPECT_EQ(watch_.View(now_)["no_answer"]["why"], "the resident agent there no longer answers");
  EXPECT_EQ(Pause(), seconds(1));
}

TEST_F(NodeWatchTest, WhereThereWasNoResidentAgentItLooksForOneNowAndThen) {
  const TimePoint begin = now_;
  int given_up = 0;
  while (now_ - begin < seconds(50)) {
    given_up += Ask(v1::NodeReport()) ? 1 : 0;
    EXPECT_EQ(State(), "no agent");
    now_ += Pause();
  }
  EXPECT_EQ(given_up, 3);
  EXPECT_FALSE(Ask(Resident()));
  EXPECT_EQ(State(), "ok");
}

TEST(NodeJson, SaysInAWordHowTheNodeIs) {
  EXPECT_EQ(NodeJson("n", Resident())["state"], "ok");
  EXPECT_FALSE(NodeJson("n", Resident()).contains("why"));
  v1::NodeReport report = Resident();
  report.set_quarantine("process 7");
  EXPECT_EQ(NodeJson("n", report)["state"], "quarantined");
  EXPECT_EQ(NodeJson("n", report)["why"], "process 7");
  EXPECT_EQ(NodeJson("n", v1::NodeReport())["state"], "no agent");
  const auto silent = NodeJson("n", absl::UnavailableError("no route"));
  EXPECT_EQ(silent,
            (nlohmann::ordered_json{{"host", "n"}, {"state", "unreachable"}, {"why", "no route"}}));
}

}  // namespace
}  // namespace dtrain::status
