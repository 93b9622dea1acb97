// SPDX-License-Identifier: Apache-2.0
// Ranks in an MPI world by PMIx: what their nodes exchange, and ranks that it waits for.
#include "job_fixture.h"

namespace dtrain::job {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

v1::PmixUp AskForJob() {
  v1::PmixUp up;
  up.mutable_ask();
  return up;
}

v1::PmixUp EnterFence(const std::string& data) {
  v1::PmixUp up;
  up.mutable_fence()->set_data(data);
  return up;
}

class PmixTest : public JobFixture {
 protected:
  std::string WarningsText() {
    std::string all;
    for (const std::string& text : Warnings()) absl::StrAppend(&all, text, "\n");
    return all;
  }
};

TEST_F(PmixTest, EveryPartServesItWhereItIsWanted) {
  Make(2);
  RunUntil(State::kStarting);
  EXPECT_FALSE(JobSentTo(1).back().start().pmix());
  options_.part.add_contracts(v1::CONTRACT_MPI);
  all_.clear();
  Make(2);
  RunUntil(State::kStarting);
  for (const v1::JobRequest& request : JobSentTo(1)) {
    EXPECT_TRUE(!request.has_start() || request.start().pmix());
  }
  EXPECT_TRUE(Sends(all_, 1, v1::JobRequest::kStart));
}

TEST_F(PmixTest, AServerHearsOfAllNodesAndTheirRanks) {
  Make(2);
  RunUntil(State::kRunning);
  const auto sent = JobSentTo(1, Pmix(1, AskForJob()));
  ASSERT_EQ(sent.size(), 1u);
  const v1::PmixJob& job = sent[0].pmix().job();
  ASSERT_EQ(job.nodes_size(), 2);
  EXPECT_EQ(job.nodes(0).host(), "node0");
  EXPECT_THAT(job.nodes(1).ranks(), testing::ElementsAre(2, 3));
  EXPECT_EQ(job.universe_size(), 4u);
}

TEST_F(PmixTest, AFenceGoesToAllNodesInOneMessage) {
  Make(2);
  RunUntil(State::kRunning);
  EXPECT_THAT(Pmix(1, EnterFence("b")), IsEmpty());
  const auto actions = Pmix(0, EnterFence("a"));
  for (uint32_t node : {0u, 1u}) {
    const auto sent = JobSentTo(node, actions);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].pmix().fence_done().data(), "ab");
  }
}

TEST_F(PmixTest, WhatAServerMustNotSayIsItsNodesFault) {
  Make(2);
  RunUntil(State::kRunning);
  JoinMpi(1, {0});
  EndAll();
  EXPECT_EQ(verdict().exit_code, 203);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("node1"), HasSubstr("speaks for rank 0")));
}

TEST_F(PmixTest, ANodeWhoseRanksHaveEndedTearsAFence) {
  Make(2);
  RunUntil(State::kRunning);
  JoinMpi(0, {0, 1});
  JoinMpi(1, {2, 3});
  Pmix(0, EnterFence("a"));
  Exit(2, 0);
  Exit(3, 0);
  const auto sent = JobSentTo(0, Over(1));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].pmix().fence_done().status(), -61);
}

TEST_F(PmixTest, RanksThatDoNotCallInitAreNamed) {
  Make(2);
  RunUntil(State::kRunning);
  JoinMpi(0, {0});
  Pass(seconds(5), {0, 1});
  JoinMpi(1, {3});
  EXPECT_THAT(WarningsText(), IsEmpty());
  Pass(seconds(5), {0, 1});
  EXPECT_THAT(WarningsText(),
              HasSubstr("2 of 4 ranks have called MPI_Init and wait for the others: rank 1 on "
                        "node0, rank 2 on node1. Every rank must call it"));
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(PmixTest, RanksThatAllCallItAreNotSpokenOf) {
  Make(2);
  RunUntil(State::kRunning);
  JoinMpi(0, {0, 1});
  JoinMpi(1, {2, 3});
  LeaveMpi(0, {0});
  Pass(seconds(60), {0, 1});
  EXPECT_THAT(WarningsText(), IsEmpty());
}

TEST_F(PmixTest, ARankThatUsesItAloneAndHasLeftIsNotSpokenOf) {
  Make(2);
  RunUntil(State::kRunning);
  JoinMpi(0, {0});
  LeaveMpi(0, {0});
  Pass(seconds(60), {0, 1});
  EXPECT_THAT(WarningsText(), Not(HasSubstr("MPI_Init")));
}

TEST_F(PmixTest, ARankThatHasEndedWithoutInitEndsTheJobThatWaitsForIt) {
  options_.exit_timeout = seconds(30);
  Make(2);
  RunUntil(State::kRunning);
  Exit(3, 0);
  Pass(seconds(20), {0, 1});
  JoinMpi(0, {0, 1});
  Pass(seconds(29), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(1), {0, 1});
  ASSERT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("wait in MPI_Init for rank 3 on node1"),
                                       HasSubstr("30 s ago (--exit-timeout)")));
}

// Its call is reported by the PMIx server, its end by the shepherd.
TEST_F(PmixTest, ARankWhoseInitIsReportedAfterItsEndIsNotMissing) {
  options_.exit_timeout = seconds(30);
  Make(2);
  RunUntil(State::kRunning);
  JoinMpi(0, {0, 1});
  Exit(3, 0);
  JoinMpi(1, {3});
  Pass(seconds(60), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(PmixTest, AnExitTimeoutThatWasGivenSaysWhatTheyWaitFor) {
  options_.exit_timeout = seconds(2);
  options_.exit_timeout_ends_job = true;
  Make(2);
  RunUntil(State::kRunning);
  Exit(1, 0);
  Pass(milliseconds(500), {0, 1});
  JoinMpi(0, {0});
  Pass(seconds(2), {0, 1});
  EndAll();
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message, HasSubstr("wait in MPI_Init for rank 1 on node0"));
}

class UnfinishedTest : public PmixTest {
 protected:
  void EndInside(uint32_t rank) { End(rank, v1::WorkerExit::WORLD_INSIDE); }
  void EndFinished(uint32_t rank) { End(rank, v1::WorkerExit::WORLD_LEFT); }
  void Fail(uint32_t rank, int code, const std::string& words) {
    v1::WorkerExit exit = ExitOf(rank, code);
    exit.set_stderr_tail(words);
    Exit(std::move(exit));
  }

 private:
  void End(uint32_t rank, v1::WorkerExit::World world) {
    v1::WorkerExit exit = ExitOf(rank, 0);
    exit.set_world(world);
    Exit(std::move(exit));
  }
};

TEST_F(UnfinishedTest, ARankThatEndsInsideTheWorldEndsTheJobSoon) {
  Make(2);
  RunUntil(State::kRunning);
  EndInside(3);
  Pass(milliseconds(1900), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(milliseconds(200), {0, 1});
  ASSERT_EQ(core_->state(), State::kStopping);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message,
              AllOf(HasSubstr("rank 3 on node1 ended with 0"), HasSubstr("without MPI_Finalize"),
                    HasSubstr("3 of 4 ranks still run")));
}

TEST_F(UnfinishedTest, ATimeThatWasGivenIsKept) {
  options_.exit_timeout = seconds(20);
  options_.exit_timeout_ends_job = true;
  Make(2);
  RunUntil(State::kRunning);
  EndInside(3);
  Pass(seconds(19), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  Pass(seconds(1), {0, 1});
  EndAll();
  EXPECT_THAT(verdict().message, HasSubstr("without MPI_Finalize"));
}

TEST_F(UnfinishedTest, ZeroIsForEver) {
  options_.exit_timeout = Duration::zero();
  Make(2);
  RunUntil(State::kRunning);
  EndInside(3);
  Pass(seconds(100), {0, 1});
  EXPECT_EQ(core_->state(), State::kRunning);
  for (uint32_t rank : {0u, 1u, 2u}) EndFinished(rank);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 0);
  EXPECT_THAT(WarningsText(), HasSubstr("without MPI_Finalize"));
}

TEST_F(UnfinishedTest, OneAmongRanksThatFinishIsNoSuccess) {
  Make(2);
  RunUntil(State::kRunning);
  EndInside(3);
  for (uint32_t rank : {0u, 1u, 2u}) EndFinished(rank);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message, HasSubstr("rank 3 on node1 ended with 0"));
}

TEST_F(UnfinishedTest, ThatAllRanksSkipItIsToldOnly) {
  Make(2);
  RunUntil(State::kRunning);
  for (uint32_t rank : {0u, 1u, 2u, 3u}) EndInside(rank);
  EndAll();
  EXPECT_EQ(verdict().exit_code, 0);
  EXPECT_THAT(WarningsText(), HasSubstr("without MPI_Finalize"));
}

TEST_F(UnfinishedTest, ACodeOfARanksOwnWins) {
  Make(2);
  RunUntil(State::kRunning);
  EndInside(3);
  Fail(0, 7, "bad input\n");
  EndAll();
  EXPECT_EQ(verdict().exit_code, 7);
}

// Last words are short, and a crash may follow.
TEST_F(UnfinishedTest, AFailureOfMpiIsKnownByItsTraceToo) {
  Make(2);
  RunUntil(State::kRunning);
  EndInside(3);
  Fail(0, 15, "|  4  /lib/libmpich.so.12(MPIR_Err_return_comm+0x98)\n");
  EndAll();
  EXPECT_EQ(verdict().exit_code, 205);
}

TEST_F(UnfinishedTest, AFailureOfMpiAfterThatIsItsConsequence) {
  Make(2);
  RunUntil(State::kRunning);
  EndInside(3);
  Fail(0, 15, "Fatal error in internal_Finalize: Other MPI error\n");
  EndAll();
  EXPECT_EQ(verdict().exit_code, 205);
  EXPECT_THAT(verdict().message, AllOf(HasSubstr("rank 3 on node1 ended with 0"),
                                       HasSubstr("MPI failed on rank 0 on node0 after that")));
}

}  // namespace
}  // namespace dtrain::job
