// SPDX-License-Identifier: Apache-2.0
// Hosts that have joined and get no rank, of a job that may restart on them.
#include "common/base/exit_code.h"
#include "common/base/node_rank.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = v1::SessionRequest::KindCase;

// The last of three nodes is a spare. Agents keep books: a rank takes a core of four.
class SparesTest : public JobFixture {
 public:
  SparesTest() {
    options_.keep_spares = true;
    options_.plan.nodes = 2;
    options_.plan.ranks = 4;
  }
  void Join(const std::string& held_on_spare = "") {
    Make(3);
    for (uint32_t i = 0; i < 3; ++i) {
      v1::Inventory inventory = Inventory(i);
      inventory.set_reserves(true);
      if (i == 2 && !held_on_spare.empty()) {
        inventory.add_held_cores()->set_cpulist(held_on_spare);
        inventory.mutable_held_cores(0)->set_holder("job a of alice");
      }
      Feed(NodeConnected{NodeId(i)});
      Welcome(i, inventory);
    }
  }
  std::vector<Action> Reserved(uint32_t node, const std::string& refused = "") {
    v1::SessionEvent event;
    event.mutable_reserved()->set_refused(refused);
    return Message(node, event);
  }
  void Run() {
    Join();
    for (uint32_t node : {0, 1}) Probed(node);
    for (uint32_t node : {0, 1}) Reserved(node);
    PortsHeld(0);
    for (uint32_t node : {0, 1}) Started(node);
    ASSERT_EQ(core_->state(), State::kRunning);
  }
  void EndRanks() {
    for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0);
    for (uint32_t node : {0, 1}) {
      Over(node);
      Drained(node);
    }
  }
  // The job runs as if the spare had never been there.
  void ExpectSuccess() {
    EXPECT_EQ(core_->state(), State::kRunning);
    EndRanks();
    EXPECT_TRUE(finished_);
    EXPECT_EQ(verdict().exit_code, 0);
  }
};

TEST_F(SparesTest, IsHeldUntilTheEnd) {
  Run();
  EXPECT_TRUE(core_->nodes()[2].spare);
  EXPECT_TRUE(Sends(all_, 2, Kind::kReserve));
  for (uint32_t node = 0; node < 3; ++node) {
    for (const v1::SessionRequest& request : SentTo(node)) {
      if (!request.has_reserve()) continue;
      EXPECT_EQ(request.reserve().node_rank(), node == 2 ? kNoNodeRank : node);
    }
  }
  EXPECT_FALSE(Sends(all_, 2, Kind::kProbe));
  EXPECT_THAT(JobSentTo(2), IsEmpty());
  // Nothing waits for its answer, which may come late.
  EXPECT_THAT(Warnings(), IsEmpty());
  Reserved(2);
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(60), {0, 1, 2});
  EXPECT_FALSE(core_->nodes()[2].gone);
  EndRanks();
  EXPECT_TRUE(Sends(all_, 2, Kind::kGoodbye));
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, 0);
}

TEST_F(SparesTest, IsLetGoAsSoonAsTheJobEnds) {
  Run();
  const auto actions = Exit(3, 1);
  EXPECT_TRUE(Sends(actions, 2, Kind::kGoodbye));
  EXPECT_TRUE(core_->nodes()[2].let_go);
}

TEST_F(SparesTest, WithoutThemNothingIsKept) {
  options_.keep_spares = false;
  Join();
  EXPECT_TRUE(Sends(all_, 2, Kind::kGoodbye));
  EXPECT_FALSE(Sends(all_, 2, Kind::kReserve));
}

TEST_F(SparesTest, ALostOneIsAWarning) {
  Run();
  Closed(2);
  EXPECT_THAT(Warnings(), ElementsAre("node2, a spare, is lost: reset; it is tried again at the "
                                      "next restart"));
  EXPECT_TRUE(core_->nodes()[2].gone);
  EXPECT_FALSE(core_->nodes()[2].let_go);
  ExpectSuccess();
}

TEST_F(SparesTest, ASilentOneIsAWarning) {
  Run();
  Pass(seconds(20), {0, 1});
  EXPECT_THAT(Warnings(), Contains(HasSubstr("node2, a spare, is lost: no message from it for")));
  ExpectSuccess();
}

TEST_F(SparesTest, OneThatIsLostBeforeTheStartHoldsNothingUp) {
  Join();
  Probed(0);
  Closed(2);
  Probed(1);
  for (uint32_t node : {0, 1}) Reserved(node);
  PortsHeld(0);
  for (uint32_t node : {0, 1}) Started(node);
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("node2, a spare, is lost: reset")));
  ExpectSuccess();
}

TEST_F(SparesTest, OneThatBreaksARuleIsLost) {
  Run();
  v1::SessionEvent event;
  event.mutable_ports_held();
  Message(2, event);
  EXPECT_THAT(Warnings(),
              ElementsAre(HasSubstr("node2, a spare, is lost: its agent sent PortsHeld")));
  ExpectSuccess();
}

// It has no place in the plan by which its words could be counted.
TEST_F(SparesTest, ItsShepherdSaysNothingOfTheJob) {
  std::vector<v1::JobEvent> events(7);
  events[0].mutable_fence_enter();
  events[1].mutable_pmix()->mutable_joined()->add_ranks(0);
  events[2].mutable_started();
  events[3].mutable_preparing()->set_what("fetches an image");
  events[4].mutable_exit();
  events[5].mutable_finished();
  events[6].mutable_retold();
  for (const v1::JobEvent& event : events) {
    for (const bool is_starting : {false, true}) {
      now_ = start_;
      finished_ = false;
      all_.clear();
      Join();
      for (uint32_t node : {0, 1}) Probed(node);
      for (uint32_t node : {0, 1}) Reserved(node);
      PortsHeld(0);
      if (is_starting) Message(2, event);
      for (uint32_t node : {0, 1}) Started(node);
      ASSERT_EQ(core_->state(), State::kRunning) << event.ShortDebugString();
      if (!is_starting) Message(2, event);
      EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("node2, a spare, is lost: its agent sent ")));
      EXPECT_TRUE(Sends(all_, 2, Kind::kGoodbye));
      EXPECT_TRUE(core_->nodes()[2].gone);
      EXPECT_FALSE(core_->nodes()[2].let_go);
      ExpectSuccess();
    }
  }
}

TEST_F(SparesTest, AnswersOnce) {
  Run();
  Reserved(2, "GPU 0: held by job a of alice");
  Reserved(2, "GPU 0: held by job a of alice");
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("nothing is reserved on node2"),
                                      HasSubstr("Reserved unasked")));
  ExpectSuccess();
}

TEST_F(SparesTest, OneThatOthersHaveIsToldOf) {
  Join("0-3");
  for (uint32_t node : {0, 1}) Probed(node);
  for (uint32_t node : {0, 1}) Reserved(node);
  PortsHeld(0);
  for (uint32_t node : {0, 1}) Started(node);
  EXPECT_FALSE(Sends(all_, 2, Kind::kReserve));
  EXPECT_THAT(Warnings(),
              ElementsAre(HasSubstr("nothing is reserved on node2, which is a spare: ")));
  ExpectSuccess();
}

TEST_F(SparesTest, OneThatOthersHaveTakenMeanwhileIsToldOf) {
  Run();
  Reserved(2, "GPU 0: held by job a of alice");
  EXPECT_THAT(
      Warnings(),
      ElementsAre("nothing is reserved on node2, which is a spare: GPU 0: held by job a of alice"));
  ExpectSuccess();
}

TEST_F(SparesTest, TheJobCanBeStoppedThere) {
  Run();
  Failure(2, v1::NodeFailure::KIND_UNSPECIFIED, kExitTerminated, "the job was stopped here by bob");
  EXPECT_EQ(core_->state(), State::kStopping);
  for (uint32_t rank = 0; rank < 4; ++rank) Exit(rank, 0, 15, /*told=*/true);
  for (uint32_t node : {0, 1}) {
    Over(node);
    Drained(node);
  }
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, kExitTerminated);
}

TEST_F(SparesTest, BeforeTheStartTheJobCanBeStoppedThereToo) {
  Join();
  Failure(2, v1::NodeFailure::KIND_UNSPECIFIED, kExitTerminated, "the job was stopped here by bob");
  Pass(seconds(4), {0, 1, 2});
  EXPECT_TRUE(finished_);
  EXPECT_EQ(verdict().exit_code, kExitTerminated);
}

}  // namespace
}  // namespace dtrain::job
