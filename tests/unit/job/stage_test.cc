// SPDX-License-Identifier: Apache-2.0
// Code that all nodes must have before one of them starts.
#include <memory>

#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

class StageTest : public JobFixture {
 public:
  void Begin() {
    options_.start_timeout = seconds(10);
    auto stage = std::make_shared<v1::JobRequest>();
    stage->mutable_stage()->set_sha256("hash");
    options_.stage = stage;
    Make(2);
    RunUntil(State::kStarting);
  }
  std::vector<Action> Staged(uint32_t node, const std::string& sha256 = "hash") {
    v1::JobEvent event;
    event.mutable_staged()->set_sha256(sha256);
    return Message(node, event);
  }
  static int Starts(const std::vector<Action>& actions) {
    int starts = 0;
    for (const Action& action : actions) {
      const auto* to = std::get_if<ToShepherd>(&action);
      starts += to != nullptr && to->request.has_start() ? 1 : 0;
    }
    return starts;
  }
};

TEST_F(StageTest, NoneStartsBeforeAllHaveIt) {
  Begin();
  EXPECT_EQ(core_->nodes()[0].waiting_for, "its code");
  Pass(seconds(1000), {0, 1});
  EXPECT_EQ(core_->state(), State::kStarting) << "the time for the start does not run yet";
  EXPECT_EQ(Starts(Staged(1)), 0);
  EXPECT_EQ(core_->nodes()[1].waiting_for, "");
  EXPECT_EQ(Starts(Staged(0)), 2);
  EXPECT_EQ(core_->nodes()[1].waiting_for, "its workers to start");
  Started(0);
  Started(1);
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(StageTest, OtherCodeIsNoCode) {
  Begin();
  Staged(0, "other");
  EXPECT_EQ(core_->state(), State::kStopping);
}

TEST_F(StageTest, StagedTwice) {
  Begin();
  Staged(0);
  Staged(0);
  EXPECT_EQ(core_->state(), State::kStopping);
}

TEST_F(StageTest, StartedBeforeItsStart) {
  Begin();
  Started(0);
  EXPECT_EQ(core_->state(), State::kStopping);
}

TEST_F(StageTest, ANodeThatCannotTakeItEndsTheLaunch) {
  Begin();
  v1::JobEvent event;
  event.mutable_failure()->set_kind(v1::NodeFailure::KIND_STATE);
  event.mutable_failure()->set_exit_code(200);
  event.mutable_failure()->set_message("cannot stage the code: train.py: no space");
  Message(1, event);
  EXPECT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 200);
}

}  // namespace
}  // namespace dtrain::job
