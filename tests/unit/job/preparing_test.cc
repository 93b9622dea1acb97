// SPDX-License-Identifier: Apache-2.0
// Nodes that fetch an image before they can start.
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using ::testing::HasSubstr;

class PreparingTest : public JobFixture {
 public:
  void Begin() {
    options_.start_timeout = seconds(10);
    Make(2);
    RunUntil(State::kStarting);
  }
  void Preparing(uint32_t node, const std::string& what) {
    v1::JobEvent event;
    event.mutable_preparing()->set_what(what);
    Message(node, event);
  }
};

TEST_F(PreparingTest, TheStartsTimeStandsStillAndBeginsAgainWithTheLast) {
  Begin();
  Preparing(0, "the image x (podman fetches it)");
  Preparing(1, "the image x (podman fetches it)");
  EXPECT_EQ(core_->nodes()[0].waiting_for, "the image x (podman fetches it)");
  Pass(seconds(1000), {0, 1});
  EXPECT_EQ(core_->state(), State::kStarting);
  Preparing(0, "");
  EXPECT_EQ(core_->nodes()[0].waiting_for, "its workers to start");
  Pass(seconds(1000), {0, 1});
  EXPECT_EQ(core_->state(), State::kStarting) << "the other node fetches still";
  Preparing(1, "");
  Pass(seconds(9), {0, 1});
  EXPECT_EQ(core_->state(), State::kStarting);
  Pass(seconds(2), {0, 1});
  EXPECT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().kind, Verdict::Kind::kStartTimeout);
}

TEST_F(PreparingTest, ANodeThatHasStartedPreparesNoMore) {
  Begin();
  Preparing(0, "an image");
  Started(0);
  Pass(seconds(9), {0, 1});
  EXPECT_EQ(core_->state(), State::kStarting);
  Preparing(0, "another");
  EXPECT_EQ(core_->state(), State::kStopping);
  EXPECT_THAT(verdict().kind, Verdict::Kind::kNode);
}

TEST_F(PreparingTest, TheJobsTimeLimitRuns) {
  options_.time_limit = seconds(100);
  Begin();
  Preparing(0, "an image");
  Pass(seconds(101), {0, 1});
  EXPECT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().kind, Verdict::Kind::kTimeLimit);
}

TEST_F(PreparingTest, ItIsNoWordOfARunningNode) {
  Begin();
  Started(0);
  Started(1);
  ASSERT_EQ(core_->state(), State::kRunning);
  Preparing(1, "an image");
  EXPECT_EQ(core_->state(), State::kStopping);
}

}  // namespace
}  // namespace dtrain::job
