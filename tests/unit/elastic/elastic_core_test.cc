// SPDX-License-Identifier: Apache-2.0
// The life of an elastic job: each event in each state, and the cases of Horovod's own tests of its
// driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/unit/elastic/elastic_fixture.h"

namespace dtrain::elastic {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ElasticCoreTest : public ElasticFixture {
 public:
  void SetUp() override {
    options_.start = {.ranks = 2, .hosts = 1};
    options_.later = {.ranks = 2, .hosts = 1};
  }
  // Both hosts of round 1 ask for round 2, and a third one is to come.
  void FormWithNewcomer() {
    Start({"a", "b"});
    Hosts({{"a", 2}, {"b", 2}, {"c", 2}});
    Ask("a");
    Ask("b");
    ASSERT_EQ(core_->state(), State::kForm);
  }
  // `a` waits for its place in round 2, for which 4 ranks are needed.
  void GatherAfterFailure(std::optional<CoolDown> range = CoolDown{seconds(10), seconds(10)}) {
    options_.later.ranks = 4;
    Start({"a", "b"}, range);
    Exit(On("b"), 1, 7);
    Ask("a");
    ASSERT_EQ(core_->state(), State::kGather);
  }
};

// ---- gather ---------------------------------------------------------------------------------
TEST_F(ElasticCoreTest, WaitsForRanks) {
  options_.start.ranks = 4;
  Make();
  Hosts({{"a", 2}}, {{"b", "connection refused"}});
  EXPECT_EQ(core_->state(), State::kGather);
  EXPECT_THAT(begun_, IsEmpty());
  EXPECT_THAT(said_, ElementsAre("dtrain: 4 ranks are needed (-np), 2 are there: waiting up to "
                                 "600 s for hosts; missing: b (connection refused)"));
  Hosts({{"a", 2}});
  EXPECT_EQ(said_.size(), 1U);
  Hosts({{"a", 2}, {"b", 3}});
  ASSERT_EQ(begun_.size(), 2U);
  EXPECT_EQ(begun_[0].host, "a");
  EXPECT_EQ(begun_[0].run, RunId(0));
  EXPECT_EQ(begun_[0].first_number, 0U);
  EXPECT_EQ(begun_[1].run, RunId(1));
  EXPECT_EQ(begun_[1].first_number, 2U);
  EXPECT_EQ(begun_[1].seats.size(), 3U);
  EXPECT_EQ(begun_[1].seats[0].rank(), 2U);
  EXPECT_EQ(core_->state(), State::kForm);
}

TEST_F(ElasticCoreTest, WaitsWhileNoHostIsThere) {
  Make();
  Hosts({}, {{"a", "connection refused"}});
  EXPECT_EQ(core_->state(), State::kGather);
  EXPECT_EQ(core_->NextDeadline(), now_ + minutes(10));
  EXPECT_THAT(said_, ElementsAre("dtrain: 2 ranks are needed (-np), 0 are there: waiting up to "
                                 "600 s for hosts; missing: a (connection refused)"));
  At(minutes(9));
  EXPECT_FALSE(end_);
  Hosts({{"a", 2}});
  EXPECT_EQ(core_->state(), State::kForm);
}

TEST_F(ElasticCoreTest, WaitsForHosts) {
  options_.start = {.ranks = 2, .hosts = 2};
  options_.most.ranks = 12;
  Make();
  Hosts({{"a", 4}});
  EXPECT_EQ(core_->state(), State::kGather);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("2 hosts are needed, 1 is there")));
  Hosts({{"a", 4}, {"b", 8}});
  EXPECT_EQ(core_->state(), State::kForm);
  Wait("a");
  Wait("b");
  EXPECT_EQ(Round(), "a 0 1 2 3 | b 4 5 6 7 8 9 10 11");
}

TEST_F(ElasticCoreTest, UsesAtMostSoManyHosts) {
  options_.most.hosts = 2;
  Start({"a", "b"});
  Hosts({{"a", 2}, {"b", 2}, {"c", 2}});
  Feed(Registered{On("a"), 0, ""});
  EXPECT_THAT(notified_, IsEmpty());
  Exit(On("a"), 0, 1);
  Ask("b");
  Wait("c");
  EXPECT_EQ(Round(), "b 0 1 | c 2 3");
}

TEST_F(ElasticCoreTest, TooFewInTimeIsTheEnd) {
  options_.start.ranks = 4;
  Make();
  Hosts({{"a", 2}}, {{"b", "connection refused"}});
  EXPECT_EQ(core_->NextDeadline(), now_ + minutes(10));
  At(minutes(10) - seconds(1));
  EXPECT_FALSE(end_);
  At(seconds(1));
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.exit_code, kExitRendezvous);
  EXPECT_EQ(end_->verdict.message,
            "4 ranks are needed (-np), 2 are there after 600 s; missing: b (connection refused)");
}

TEST_F(ElasticCoreTest, TooFewLaterInTimeIsTheEnd) {
  GatherAfterFailure(CoolDown{minutes(30), minutes(30)});
  EXPECT_THAT(said_, ElementsAre("dtrain: b leaves the job: a rank exited with code 7; 4 ranks are "
                                 "needed (--min-np), 2 are there: waiting up to 600 s for hosts; "
                                 "missing: b (a rank exited with code 7)"));
  AllOver();
  At(minutes(10));
  EXPECT_EQ(core_->state(), State::kEnd);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kNode);
  EXPECT_EQ(end_->verdict.exit_code, kExitNodeLost);
  EXPECT_THAT(end_->verdict.message, HasSubstr("4 ranks are needed (--min-np), 2 are there after"));
}

TEST_F(ElasticCoreTest, GatherAHostThatIsBackIsUsedAgain) {
  GatherAfterFailure();
  EXPECT_EQ(core_->NextDeadline(), now_ + seconds(10));
  At(seconds(10));  // but its run is not over
  EXPECT_EQ(core_->state(), State::kGather);
  AllOver();
  EXPECT_EQ(core_->state(), State::kForm);
  EXPECT_EQ(begun_.back().host, "b");
  EXPECT_EQ(begun_.back().first_number, 4U);
  EXPECT_EQ(said_.back(), "dtrain: b joins the job; round 2 has 4 ranks on 2 hosts (reset 1)");
  Wait("b");
  EXPECT_EQ(Round(), "a 0 1 | b 2 3");
}

TEST_F(ElasticCoreTest, GatherASurvivorThatFailsIsNoneAnyMore) {
  GatherAfterFailure();
  Exit(On("a"), 0, 9);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kWorker);
  EXPECT_EQ(end_->verdict.exit_code, 7);  // of b, which was first
  EXPECT_EQ(end_->host, "b");
  EXPECT_THAT(end_->verdict.message, HasSubstr("the state is lost"));
}

TEST_F(ElasticCoreTest, GatherASurvivorThatExitsIsNotBlamed) {
  Start({"a", "b", "c"}, CoolDown{minutes(1), minutes(1)});
  options_.later.ranks = 5;
  options_.most_resets.reset();
  Make(CoolDown{minutes(1), minutes(1)});
  Hosts({{"a", 2}, {"b", 2}, {"c", 2}});
  for (const char* host : {"a", "b", "c"}) Wait(host);
  Exit(On("c"), 0, 7);
  Ask("a");
  Ask("b");
  AllOver();
  ASSERT_EQ(core_->state(), State::kGather);
  Exit(On("b"), 0);
  EXPECT_THAT(ended_, ElementsAre(testing::Field(&EndRun::run, On("b"))));
  AllOver();
  EXPECT_EQ(core_->state(), State::kGather);
  At(minutes(1));
  EXPECT_EQ(core_->state(), State::kForm);  // b at once, c after its cool-down
  EXPECT_EQ(begun_.size(), 5U);
  Wait("b");
  Wait("c");
  EXPECT_EQ(Round(), "a 0 1 | b 2 3 | c 4 5");
}

TEST_F(ElasticCoreTest, GatherALostSurvivor) {
  options_.later.ranks = 5;
  Start({"a", "b", "c"}, CoolDown{seconds(1), seconds(1)});
  Exit(On("c"), 0, 7);
  Ask("a");
  Ask("b");
  AllOver();
  Lost("b", seconds(30));
  EXPECT_EQ(core_->state(), State::kGather);
  EXPECT_EQ(book_->NextDeadline(), now_ + seconds(1));
  At(seconds(1));
  EXPECT_EQ(book_->NextDeadline(), now_ + seconds(29));  // its workers may live
  At(seconds(29));
  EXPECT_EQ(core_->state(), State::kForm);
}

TEST_F(ElasticCoreTest, GatherIgnoresWhatRunsSay) {
  GatherAfterFailure();
  Feed(SeatAsked{On("a"), 0});
  Feed(SeatAsked{On("a"), 77});
  Feed(DoorWaits{On("a"), 2});
  Feed(Registered{On("a"), 1, ""});
  Feed(NoticeDone{On("a"), 1, ""});
  Feed(WorkerEnded{RunId(77), 0, 1, ""});
  EXPECT_EQ(core_->state(), State::kGather);
}

TEST_F(ElasticCoreTest, NoOtherHostIsWaitedForIfNoneCanCome) {
  options_.fixed_hosts = {"a", "b"};
  options_.later.ranks = 4;
  Start({"a", "b"});
  Exit(On("b"), 1, 7);
  AllOver();
  Ask("a");
  EXPECT_EQ(core_->state(), State::kEnd);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kWorker);
  EXPECT_EQ(end_->verdict.exit_code, 7);
  EXPECT_THAT(end_->verdict.message,
              HasSubstr("4 ranks are needed (--min-np), 2 are there, and no other host can come"));
}

TEST_F(ElasticCoreTest, AFixedHostThatIsNotThereMayCome) {
  options_.fixed_hosts = {"a", "b", "c"};
  options_.later.ranks = 4;
  Start({"a", "b"});
  Exit(On("b"), 1, 7);
  Ask("a");
  EXPECT_EQ(core_->state(), State::kGather);
}

TEST_F(ElasticCoreTest, TooFewFixedHostsAtTheStart) {
  options_.fixed_hosts = {"a"};
  options_.start.ranks = 4;
  Make();
  Hosts({{"a", 2}});
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.exit_code, kExitRendezvous);
}

// ---- form -----------------------------------------------------------------------------------
TEST_F(ElasticCoreTest, FormWaitsForAll) {
  Make();
  Hosts({{"a", 2}, {"b", 2}});
  Wait("a");
  Wait(On("b"), 1);
  EXPECT_EQ(core_->state(), State::kForm);
  Wait(On("b"), 0);
  Wait(On("b"), 2);
  EXPECT_EQ(core_->state(), State::kOpen);
  EXPECT_EQ(core_->round(), 1U);
  EXPECT_EQ(Round(), "a 0 1 | b 2 3");
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(ElasticCoreTest, FormDoesNotLookAtNewHosts) {
  FormWithNewcomer();
  Hosts({{"a", 2}, {"c", 2}, {"d", 2}});
  EXPECT_EQ(core_->state(), State::kForm);
  Wait("c");
  EXPECT_EQ(Round(), "a 0 1 | b 2 3 | c 4 5");
}

TEST_F(ElasticCoreTest, FormANewcomerMayExitBeforeTheRound) {
  Make();
  Hosts({{"a", 2}, {"b", 2}});
  Wait("a");
  Wait(On("b"), 1);
  Exit(On("b"), 0);
  EXPECT_EQ(core_->state(), State::kOpen);
  Exit(On("b"), 1);
  Exit("a");
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kSuccess);
}

TEST_F(ElasticCoreTest, FormAllMayExitBeforeTheRound) {
  Make();
  Hosts({{"a", 2}, {"b", 2}});
  Exit("b");
  AllOver();
  Exit("a");
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kSuccess);
  EXPECT_EQ(opened_.size(), 1U);
}

TEST_F(ElasticCoreTest, FormAWorkerThatFailsBeforeRound1EndsTheJob) {
  Make(CoolDown{seconds(1), seconds(1)});
  Hosts({{"a", 2}, {"b", 2}, {"c", 2}});
  Lost("c");
  AllOver();
  Exit(On("b"), 1, 3);
  EXPECT_EQ(core_->state(), State::kEnd);
  Over(On("b"), Kind::kWorker, 3);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kWorker);
  EXPECT_EQ(end_->verdict.exit_code, 3);
  EXPECT_EQ(end_->host, "b");
  EXPECT_EQ(end_->dead_at, now_ + seconds(30));
}

TEST_F(ElasticCoreTest, FormAHostThatIsLostBeforeRound1IsLeftOut) {
  Make();
  Hosts({{"a", 2}, {"b", 2}, {"c", 2}});
  Wait("b");
  Lost("a");
  // The others begin again: their ranks are in their environment.
  EXPECT_EQ(core_->state(), State::kGather);
  EXPECT_EQ(ended_.size(), 2U);
  EXPECT_EQ(core_->NextDeadline(), kNever);
  AllOver();
  EXPECT_EQ(core_->state(), State::kForm);
  EXPECT_THAT(
      said_,
      ElementsAre("dtrain: a leaves the job: over with 202; round 1 has 4 ranks on 2 hosts"));
  Wait("b");
  Wait("c");
  EXPECT_EQ(Round(), "b 0 1 | c 2 3");
  EXPECT_EQ(begun_.back().first_number, 8U);
  EXPECT_EQ(core_->resets(), 0U);
}

TEST_F(ElasticCoreTest, FormAHostLostBeforeRound1LeavesTooFew) {
  options_.start.ranks = 4;
  Make(CoolDown{seconds(60), seconds(60)});
  Hosts({{"a", 2}, {"b", 2}});
  Lost("a");
  EXPECT_EQ(core_->state(), State::kGather);
  EXPECT_THAT(ended_, IsEmpty());
  Wait("b");
  At(seconds(60));  // it comes after b now
  AllOver();
  EXPECT_EQ(core_->state(), State::kForm);
  Wait("b");
  Wait("a");
  EXPECT_EQ(Round(), "b 0 1 | a 2 3");
}

TEST_F(ElasticCoreTest, FormAFailureOfAWorkerWhileRound1IsGatheredEndsTheJob) {
  options_.start.ranks = 4;
  Make(CoolDown{seconds(60), seconds(60)});
  Hosts({{"a", 2}, {"b", 2}});
  Lost("a");
  Exit(On("b"), 0, 4);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kWorker);
  EXPECT_EQ(end_->host, "b");
}

TEST_F(ElasticCoreTest, FormANewcomerThatFailsIsLeftOut) {
  FormWithNewcomer();
  Wait(On("c"), 1);
  Exit(On("c"), 1, 5);
  EXPECT_EQ(core_->state(), State::kOpen);
  EXPECT_EQ(Round(), "a 0 1 | b 2 3");
  EXPECT_EQ(core_->resets(), 1U);
  EXPECT_TRUE(book_->IsDeniedForEver("c"));
  EXPECT_EQ(said_.back(),
            "dtrain: c leaves the job: a rank exited with code 5; round 2 has 4 ranks on 2 hosts "
            "(reset 1)");
}

TEST_F(ElasticCoreTest, FormANewcomerThatIsLostIsLeftOut) {
  FormWithNewcomer();
  Lost("c");
  EXPECT_EQ(Round(), "a 0 1 | b 2 3");
}

TEST_F(ElasticCoreTest, FormASurvivorThatFailsIsLeftOut) {
  FormWithNewcomer();
  Wait("c");
  ASSERT_EQ(core_->state(), State::kOpen);
  Hosts({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}});
  for (const char* host : {"a", "b", "c"}) Ask(host);
  ASSERT_EQ(core_->state(), State::kForm);
  Exit(On("a"), 0, 5);
  EXPECT_EQ(core_->state(), State::kGather);  // d begins again
  AllOver();
  Wait("d");
  EXPECT_EQ(Round(), "b 0 1 | c 2 3 | d 4 5");
  EXPECT_EQ(core_->resets(), 2U);
}

TEST_F(ElasticCoreTest, FormASurvivorThatExitsIsNotBlamed) {
  FormWithNewcomer();
  Exit(On("b"), 0);
  EXPECT_EQ(ended_.front().run, On("b"));
  AllOver();
  EXPECT_FALSE(book_->IsDeniedForEver("b"));
  EXPECT_EQ(core_->state(), State::kForm);  // b does not wait for its own end: c did
  EXPECT_EQ(core_->resets(), 1U);
}

TEST_F(ElasticCoreTest, FormWithoutSurvivorsIsTheEnd) {
  FormWithNewcomer();
  Exit(On("a"), 0, 5);
  Exit(On("b"), 0, 6);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->host, "a");
  EXPECT_THAT(end_->verdict.message, HasSubstr("the state is lost"));
}

TEST_F(ElasticCoreTest, FormRanksThatDoNotComeToRound1AreTheEnd) {
  Make();
  Hosts({{"a", 2}, {"b", 2}});
  Wait("a");
  Wait(On("b"), 1);
  At(minutes(10));
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.exit_code, kExitRendezvous);
  EXPECT_EQ(end_->verdict.message,
            "b: 1 of 2 ranks has not called hvd.init() within 600 s; is it an elastic Horovod "
            "script?");
}

TEST_F(ElasticCoreTest, FormRanksThatDoNotComeLaterAreLeftOut) {
  FormWithNewcomer();
  At(minutes(10));
  EXPECT_EQ(core_->state(), State::kOpen);
  EXPECT_EQ(ended_.back().run, On("c"));
  EXPECT_EQ(Round(), "a 0 1 | b 2 3");
  EXPECT_TRUE(book_->IsDeniedForEver("c"));
}

TEST_F(ElasticCoreTest, FormWhatIsNotTheNewcomersIsIgnored) {
  FormWithNewcomer();
  Feed(SeatAsked{On("c"), 0});
  Feed(DoorWaits{On("a"), 2});
  Feed(Registered{On("c"), 5, ""});
  EXPECT_EQ(core_->state(), State::kForm);
  Feed(Registered{On("a"), 0, ""});
  Hosts({{"a", 2}, {"b", 2}});
  EXPECT_THAT(notified_, IsEmpty());
  Wait("c");
  EXPECT_EQ(notified_.size(), 1U);  // it is compared when the round has begun
}

// ---- open -----------------------------------------------------------------------------------
TEST_F(ElasticCoreTest, OpenTheFirstSuccessEndsNothing) {
  Start({"a", "b"});
  Exit(On("a"), 0);
  EXPECT_EQ(core_->state(), State::kOpen);
  Exit(On("a"), 1);
  AllOver();
  EXPECT_EQ(core_->state(), State::kOpen);
  Exit("b");
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kSuccess);
  EXPECT_EQ(end_->verdict.exit_code, 0);
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(ElasticCoreTest, OpenASuccessWithAllOthersWaitingIsTheEnd) {
  Start({"a", "b"});
  Exit(On("a"), 0);
  Ask(On("a"), 1);
  Ask("b");
  EXPECT_EQ(core_->state(), State::kEnd);
  EXPECT_EQ(ended_.size(), 2U);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kSuccess);
  // As Horovod has it (its issue 3852): the user must hear that the work may not be complete.
  EXPECT_THAT(said_, ElementsAre("dtrain: warning: rank 0 on a ended with 0 while 3 of 4 ranks "
                                 "waited for the next round: the job ends as successful, though "
                                 "they had not finished"));
}

TEST_F(ElasticCoreTest, OpenASuccessDoesNotHideAFailure) {
  Start({"a", "b"});
  Exit("a");
  AllOver();
  Exit(On("b"), 1, 9);
  Over(On("b"), Kind::kWorker, 9);
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kWorker);
  EXPECT_EQ(end_->verdict.exit_code, 9);
}

TEST_F(ElasticCoreTest, OpenARunThatIsOverHasSucceededWithAllItsWorkers) {
  Start({"a", "b"});
  Over(On("a"), Kind::kSuccess, 0);
  Over(On("b"), Kind::kSuccess, 0);
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kSuccess);
}

TEST_F(ElasticCoreTest, OpenAHostFails) {
  Start({"a", "b"});
  const RunId b = On("b");
  Exit(b, 1, 7);
  AllOver();
  EXPECT_EQ(core_->state(), State::kOpen);
  Ask(On("a"), 0);
  EXPECT_EQ(core_->state(), State::kOpen);
  Ask(On("a"), 1);
  EXPECT_EQ(Round(), "a 0 1");
  EXPECT_EQ(core_->round(), 2U);
  EXPECT_EQ(core_->resets(), 1U);
  EXPECT_THAT(said_, ElementsAre("dtrain: b leaves the job: a rank exited with code 7; round 2 has "
                                 "2 ranks on 1 host (reset 1)"));
  EXPECT_EQ(core_->runs().Find(b), nullptr);
}

TEST_F(ElasticCoreTest, OpenAWaitingWorkerMayFail) {
  Start({"a", "b"});
  Ask("b");
  Exit(On("b"), 0, 7);
  Ask("a");
  EXPECT_EQ(Round(), "a 0 1");
}

TEST_F(ElasticCoreTest, OpenAWaitingWorkerThatExitsDoesNotEndTheJob) {
  Start({"a", "b"});
  Ask("b");
  Exit(On("b"), 0);
  Ask("a");
  EXPECT_EQ(core_->state(), State::kOpen);
  EXPECT_EQ(Round(), "a 0 1");
  Feed(Registered{On("a"), 0, ""});
  EXPECT_THAT(notified_, IsEmpty());
  AllOver();  // it may come back
  EXPECT_EQ(notified_.size(), 1U);
  Ask("a");
  Wait("b");
  EXPECT_EQ(Round(), "a 0 1 | b 2 3");
}

TEST_F(ElasticCoreTest, OpenAHostIsLost) {
  Start({"a", "b"}, CoolDown{seconds(1), seconds(1)});
  Lost("b", seconds(45));
  Ask("a");
  EXPECT_EQ(Round(), "a 0 1");
  EXPECT_EQ(core_->NextDeadline(), now_ + seconds(45));
}

TEST_F(ElasticCoreTest, OpenAllFail) {
  Start({"a", "b"});
  Exit(On("b"), 1, 7);
  Exit(On("a"), 0, 8);
  EXPECT_EQ(core_->state(), State::kEnd);
  EXPECT_THAT(ended_, IsEmpty());
  Over(On("a"), Kind::kWorker, 8);
  Over(On("b"), Kind::kWorker, 7);
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kWorker);
  EXPECT_EQ(end_->verdict.exit_code, 7);
  EXPECT_EQ(end_->verdict.rank, Rank(2));  // its run says local rank 0
  EXPECT_EQ(end_->host, "b");
  EXPECT_EQ(end_->cause, "b: over with 7");
}

TEST_F(ElasticCoreTest, OpenFailuresOfFormerRoundsDoNotCount) {
  Start({"a", "b", "c"});
  Exit(On("c"), 1, 7);
  Ask("a");
  Ask("b");
  AllOver();
  Exit(On("b"), 1, 8);
  Exit(On("a"), 1, 9);
  Over(On("b"), Kind::kNode, kExitAgentLost);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kNode);  // why its ranks failed
  EXPECT_EQ(end_->verdict.exit_code, kExitAgentLost);
  EXPECT_EQ(end_->host, "b");
}

TEST_F(ElasticCoreTest, OpenWhatOnlyTheUserCanMendEndsTheJob) {
  for (const int code :
       {kExitNotExecutable, kExitNotFound, kExitNotAuthorised, /*by an agent*/ kExitTerminated}) {
    Start({"a", "b"});
    Over(On("b"), Kind::kNode, code);
    EXPECT_EQ(core_->state(), State::kEnd);
    AllOver();
    ASSERT_TRUE(end_);
    EXPECT_EQ(end_->verdict.exit_code, code);
  }
}

TEST_F(ElasticCoreTest, OpenNoHostOfTheRoundIsListedAnyMore) {
  Start({"a", "b"});
  Hosts({{"c", 2}});
  Ask("a");
  EXPECT_EQ(core_->state(), State::kOpen);
  Ask("b");
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kNode);
  EXPECT_EQ(end_->verdict.exit_code, kExitNodeLost);
  EXPECT_THAT(end_->verdict.message, HasSubstr("the state is lost"));
}

TEST_F(ElasticCoreTest, AListThatIsEmptyForAMomentEndsNothing) {
  Start({"a", "b"});
  Hosts({});
  Ask("a");
  Ask("b");
  EXPECT_EQ(core_->state(), State::kGather);
  EXPECT_THAT(ended_, IsEmpty());
  Hosts({{"b", 2}, {"a", 2}});
  EXPECT_EQ(Round(), "b 0 1 | a 2 3");
}

TEST_F(ElasticCoreTest, ResetsAreLimited) {
  options_.most_resets = 1;
  Start({"a", "b", "c"});
  Exit(On("c"), 0, 1);
  Ask("a");
  Ask("b");
  EXPECT_EQ(core_->round(), 2U);
  Exit(On("b"), 0, 5);
  Ask("a");
  Over(On("b"), Kind::kWorker, 5);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.exit_code, kExitRestarts);
  EXPECT_EQ(end_->verdict.kind, Kind::kWorker);
  EXPECT_EQ(end_->verdict.rank_code, 5);  // for --no-restart-on
  EXPECT_EQ(end_->verdict.message, "no resets left (--reset-limit 1)");
  EXPECT_EQ(end_->cause, "b: over with 5");
}

TEST_F(ElasticCoreTest, AddedHostsCostAResetToo) {
  options_.most_resets = 0;
  Start({"a", "b"});
  Ask("a");
  Ask("b");
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.exit_code, kExitRestarts);
  EXPECT_EQ(end_->verdict.kind, Kind::kRefused);
}

TEST_F(ElasticCoreTest, OpenIgnoresWhatDoesNotBelongToIt) {
  Start({"a", "b"});
  Feed(SeatAsked{On("a"), 2});
  Feed(SeatAsked{RunId(7), 0});
  Feed(DoorWaits{On("a"), 2});
  Feed(WorkerEnded{On("a"), 2, 1, ""});
  Feed(RunOver{RunId(7), {}, "", {}});
  Feed(NoticeDone{On("a"), 1, "no"});
  EXPECT_EQ(core_->state(), State::kOpen);
  Ask("b");
  Ask("b");
  EXPECT_EQ(core_->state(), State::kOpen);
  Exit(On("a"), 0);
  Feed(SeatAsked{On("a"), 0});  // nobody can
  Ask(On("a"), 1);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kSuccess);
}

TEST_F(ElasticCoreTest, OpenSaysWhoHasNotComeBack) {
  Start({"a", "b"});
  Exit(On("b"), 1, 7);
  AllOver();
  Ask(On("a"), 0);
  EXPECT_EQ(core_->NextDeadline(), now_ + seconds(60));
  At(seconds(59));
  EXPECT_THAT(said_, IsEmpty());
  At(seconds(1));
  EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr("1 of 4 ranks has neither ended nor come back"),
                                       HasSubstr("in the 60 s since b failed (over with 7): rank 1 "
                                                 "on a"))));
  EXPECT_EQ(core_->NextDeadline(), kNever);
  At(seconds(60));
  EXPECT_EQ(said_.size(), 1U);
}

// ---- notices --------------------------------------------------------------------------------
TEST_F(ElasticCoreTest, Rank0IsToldOfAddedHosts) {
  Start({"a"});
  Hosts({{"a", 2}, {"b", 2}});
  EXPECT_THAT(notified_, IsEmpty());  // nobody listens
  Feed(Registered{On("a"), 1, ""});
  EXPECT_THAT(notified_, IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), kNever);
  Feed(Registered{On("a"), 0, ""});
  ASSERT_EQ(notified_.size(), 1U);
  EXPECT_EQ(notified_[0].run, On("a"));
  EXPECT_EQ(notified_[0].timestamp, 1U);
  EXPECT_EQ(notified_[0].change, kHostsAdded);
  EXPECT_EQ(core_->NextDeadline(), kNever);  // it is on its way
}

TEST_F(ElasticCoreTest, ItIsToldAgainUntilItIsBack) {
  Start({"a"});
  Feed(Registered{On("a"), 0, ""});
  Hosts({{"a", 2}, {"b", 2}});
  for (const int pause : {10, 20, 40, 60, 60}) {
    Feed(NoticeDone{On("a"), 1, ""});
    EXPECT_EQ(core_->NextDeadline(), now_ + seconds(pause));
    At(seconds(pause - 1));
    const size_t before = notified_.size();
    At(seconds(1));
    ASSERT_EQ(notified_.size(), before + 1);
    EXPECT_EQ(notified_.back().timestamp, 1U);
  }
  Feed(NoticeDone{On("a"), 1, ""});
  Ask(On("a"), 0);
  EXPECT_EQ(core_->NextDeadline(), kNever);
  Ask(On("a"), 1);
  Wait("b");
  Hosts({{"a", 2}});
  EXPECT_EQ(notified_.back().timestamp, 2U);  // another round, another number
  EXPECT_EQ(notified_.back().change, kHostsAdded | kHostsRemoved);
  Feed(NoticeDone{On("a"), 1, ""});  // late
  EXPECT_EQ(core_->NextDeadline(), kNever);
}

TEST_F(ElasticCoreTest, ItIsNotToldAgainIfNothingWouldChange) {
  Start({"a"});
  Feed(Registered{On("a"), 0, ""});
  Hosts({{"a", 2}, {"b", 2}});
  Hosts({{"a", 2}});
  Feed(NoticeDone{On("a"), 1, ""});
  EXPECT_EQ(core_->NextDeadline(), kNever);
  Hosts({{"a", 2}, {"c", 2}});
  EXPECT_EQ(core_->NextDeadline(), now_ + seconds(10));
  At(seconds(10));
  EXPECT_EQ(notified_.size(), 2U);
  EXPECT_EQ(notified_[1].timestamp, 1U);
}

TEST_F(ElasticCoreTest, ANoticeThatFailsIsTriedAgain) {
  Start({"a"});
  Feed(Registered{On("a"), 0, ""});
  Hosts({{"a", 2}, {"b", 2}});
  for (int i = 1; i <= 4; ++i) {
    EXPECT_EQ(notified_.size(), static_cast<size_t>(i));
    Feed(NoticeDone{On("a"), 1, "connection refused"});
    EXPECT_EQ(said_.size(), i < 3 ? 0U : 1U);
    EXPECT_EQ(core_->NextDeadline(), now_ + seconds(5));
    At(seconds(5));
  }
  EXPECT_EQ(said_[0],
            "dtrain: changes of hosts reach the job only when a collective fails: connection "
            "refused");
}

TEST_F(ElasticCoreTest, ARegistrationThatIsNotUnderstoodIsSaidOnce) {
  Start({"a", "b"});
  Feed(Registered{On("a"), 0, "unknown opcode"});
  Feed(Registered{On("b"), 0, "unknown opcode"});
  EXPECT_THAT(said_, ElementsAre(HasSubstr("only when a collective fails: unknown opcode")));
  Hosts({{"a", 2}});
  EXPECT_THAT(notified_, IsEmpty());
}

TEST_F(ElasticCoreTest, NobodyIsToldAfterAFailure) {
  Start({"a", "b"}, CoolDown{seconds(10), seconds(10)});
  Feed(Registered{On("a"), 0, ""});
  Exit(On("b"), 0, 1);
  AllOver();
  Hosts({{"a", 2}, {"b", 2}, {"c", 2}});
  At(seconds(10));
  EXPECT_THAT(notified_, IsEmpty());
}

TEST_F(ElasticCoreTest, AHostWithMoreSlotsIsNoChangeWhileItLives) {
  Start({"a"});
  Feed(Registered{On("a"), 0, ""});
  Hosts({{"a", 4}});
  EXPECT_THAT(notified_, IsEmpty());
  Hosts({{"a", 1}});
  EXPECT_THAT(notified_, IsEmpty());
}

TEST_F(ElasticCoreTest, TooFewHostsAreAChangeToo) {
  options_.later.ranks = 4;
  Start({"a", "b"});
  Feed(Registered{On("a"), 0, ""});
  Hosts({{"b", 2}});
  ASSERT_EQ(notified_.size(), 1U);
  EXPECT_EQ(notified_[0].change, kHostsAdded | kHostsRemoved);
  Hosts({{"b", 2}, {"c", 12}});
  Feed(NoticeDone{On("a"), 1, ""});
  At(seconds(10));
  EXPECT_EQ(notified_.size(), 2U);
}

// ---- the end --------------------------------------------------------------------------------
TEST_F(ElasticCoreTest, AStopEndsEachState) {
  for (int state = 0; state < 3; ++state) {
    if (state == 0) Make();
    if (state == 1) FormWithNewcomer();
    if (state == 2) Start({"a", "b"});
    Feed(StopAsked{SIGUSR1});
    EXPECT_NE(core_->state(), State::kEnd);
    ended_.clear();
    Feed(StopAsked{SIGTERM});
    Feed(StopAsked{SIGINT});
    EXPECT_THAT(ended_, IsEmpty());  // each run has the signal itself
    for (const auto& [id, real] : std::map<RunId, Real>(real_)) {
      Feed(Tick{});
      Feed(HostsFound{{{"a", 2}}, {}});
      Feed(WorkerEnded{id, 0, 1, ""});
      Over(id, Kind::kSignal, 143);
    }
    ASSERT_TRUE(end_) << state;
    EXPECT_EQ(end_->verdict.kind, Kind::kSignal);
    EXPECT_EQ(end_->verdict.exit_code, kExitTerminated);
    EXPECT_EQ(end_->verdict.signal, SIGTERM);
    EXPECT_EQ(end_->cause, "ended by SIGTERM");
  }
}

// By the agent of a host whose run ends already: the others' are ended.
TEST_F(ElasticCoreTest, AStopThereEndsEachState) {
  for (int state = 0; state < 3; ++state) {
    if (state == 0) Make();
    if (state == 1) FormWithNewcomer();
    if (state == 2) Start({"a", "b"});
    Feed(StoppedThere{"b: stopped here by bob"});
    Feed(StoppedThere{"a: stopped here by eve"});
    EXPECT_EQ(ended_.size(), real_.size());
    AllOver();
    ASSERT_TRUE(end_) << state;
    EXPECT_EQ(end_->verdict.kind, Kind::kNode);
    EXPECT_EQ(end_->verdict.exit_code, kExitTerminated);
    EXPECT_EQ(end_->verdict.message, "b: stopped here by bob");
  }
}

TEST_F(ElasticCoreTest, TheTimeLimitEndsEachState) {
  options_.time_limit = seconds(100);
  for (int state = 0; state < 3; ++state) {
    if (state == 0) Make();
    if (state == 1) FormWithNewcomer();
    if (state == 2) Start({"a", "b"});
    EXPECT_EQ(core_->NextDeadline(), now_ + seconds(100));
    At(seconds(100));
    EXPECT_EQ(ended_.size(), real_.size());
    for (const EndRun& each : ended_) EXPECT_TRUE(each.cancels);
    AllOver();
    ASSERT_TRUE(end_) << state;
    EXPECT_EQ(end_->verdict.exit_code, kExitTimeLimit);
    EXPECT_EQ(end_->verdict.message, "the time limit of 100 s (--timeout) was reached");
  }
}

// Else a second Ctrl-C would be needed for them.
TEST_F(ElasticCoreTest, TheTimeLimitCancelsRunsThatAreEnding) {
  options_.time_limit = seconds(100);
  Start({"a", "b", "c"});
  Exit(On("b"), 0, 1);  // its JobCore ends the other rank
  Exit("c");
  At(seconds(100));
  ASSERT_EQ(ended_.size(), 3U);
  for (const EndRun& each : ended_) EXPECT_TRUE(each.cancels);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.exit_code, kExitTimeLimit);
}

TEST_F(ElasticCoreTest, TheTimeLimitCancelsARunThatWasToldToEnd) {
  options_.time_limit = seconds(100);
  Start({"a", "b"});
  Hosts({{"a", 2}});
  Ask("a");
  Ask("b");
  ASSERT_EQ(ended_.size(), 1U);
  EXPECT_FALSE(ended_[0].cancels);
  At(seconds(100));
  ASSERT_EQ(ended_.size(), 3U);
  EXPECT_TRUE(ended_[1].cancels && ended_[2].cancels);
  AllOver();
  ASSERT_TRUE(end_);
}

TEST_F(ElasticCoreTest, NothingChangesTheEnd) {
  Start({"a", "b"});
  Exit("a");
  Exit(On("b"), 0);
  Ask(On("b"), 1);
  ASSERT_EQ(core_->state(), State::kEnd);
  Exit(On("b"), 1, 1);
  Feed(StopAsked{SIGINT});
  Over(On("b"), Kind::kWorker, 1);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kSuccess);
}

TEST_F(ElasticCoreTest, ProcessesLeftBehindReplaceAnyCode) {
  Start({"a", "b"});
  Exit(On("b"), 1, 7);
  Over(On("b"), Kind::kWorker, kExitCleanup, TimePoint::min(), "b: process 7 cannot be ended");
  Ask("a");
  Exit("a");
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.exit_code, kExitCleanup);
  EXPECT_EQ(end_->verdict.kind, Kind::kNode);
  EXPECT_TRUE(end_->verdict.left_behind);
  EXPECT_EQ(end_->verdict.message, "b: process 7 cannot be ended");
}

TEST_F(ElasticCoreTest, AHostWithProcessesLeftBehindIsNotUsedAgain) {
  Start({"a", "b"}, CoolDown{seconds(5), seconds(5)});
  Exit(On("b"), 1, 7);
  Over(On("b"), Kind::kWorker, kExitCleanup, TimePoint::min(), "b: process 7 cannot be ended");
  EXPECT_THAT(said_, ElementsAre("dtrain: b is not used again: not all of its processes could be "
                                 "ended"));
  At(minutes(1));
  Ask("a");
  EXPECT_EQ(Round(), "a 0 1");
  EXPECT_TRUE(book_->IsDeniedForEver("b"));
}

TEST_F(ElasticCoreTest, ARanksOwnCodeIsNoProcessLeftBehind) {
  Start({"a", "b"});
  Exit(On("b"), 1, kExitCleanup);
  Over(On("b"), Kind::kWorker, kExitCleanup);
  Ask("a");
  Exit("a");
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.kind, Kind::kSuccess);
  EXPECT_FALSE(end_->verdict.left_behind);
}

TEST_F(ElasticCoreTest, ProcessesLeftBehindAreToldOnce) {
  Start({"a"});
  Over(On("a"), Kind::kNode, kExitCleanup, TimePoint::min(), "a: process 7 cannot be ended");
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.exit_code, kExitCleanup);
  EXPECT_EQ(end_->verdict.message, "a: process 7 cannot be ended");
}

TEST_F(ElasticCoreTest, AHostLostWhileItEndsWasNotSafe) {
  Start({"a", "b"}, CoolDown{seconds(5), seconds(5)});
  Hosts({{"a", 2}});
  Ask("a");
  Ask("b");
  EXPECT_EQ(Round(), "a 0 1");
  Over(On("b"), Kind::kNode, kExitNodeLost, now_ + seconds(30));
  Hosts({{"a", 2}, {"b", 2}});
  EXPECT_EQ(book_->NextDeadline(), now_ + seconds(30));
  At(seconds(29));
  Lost("a");  // all that ran
  AllOver();
  Start({"a", "b"});
  Hosts({{"a", 2}});
  Ask("a");
  Ask("b");
  Lost("b");
  EXPECT_TRUE(book_->IsDeniedForEver("b"));
}

TEST_F(ElasticCoreTest, AHostThatFailsAndIsLostThenIsNotUsedBeforeItsWorkersHaveEnded) {
  Start({"a", "b"}, CoolDown{seconds(5), seconds(5)});
  Exit(On("b"), 0, 1);
  Lost("b", seconds(30));
  EXPECT_EQ(book_->NextDeadline(), now_ + seconds(30));
}

TEST_F(ElasticCoreTest, AnotherAttemptGoesOnCounting) {
  Start({"a", "b"});
  Exit(On("b"), 1, 7);
  Exit(On("a"), 1, 7);
  AllOver();
  ASSERT_TRUE(end_);
  MakeNext();
  Hosts({{"a", 2}, {"b", 2}, {"c", 2}});
  ASSERT_EQ(begun_.size(), 3U);  // also those that were out for ever
  EXPECT_EQ(begun_[0].host, "c");
  EXPECT_EQ(begun_[0].run, RunId(2));
  EXPECT_EQ(begun_[0].first_number, 4U);
}

TEST_F(ElasticCoreTest, AnotherAttemptUsesTheHostsOfTheOneBefore) {
  Start({"a", "b"}, CoolDown{seconds(5), seconds(5)});
  Exit(On("b"), 1, 7);
  Exit(On("a"), 1, 7);
  AllOver();
  MakeNext();
  At(seconds(5));
  EXPECT_THAT(begun_, IsEmpty());  // they may be gone
  Hosts({{"a", 2}, {"b", 2}});
  EXPECT_EQ(begun_.size(), 2U);
}

// ---- cases of Horovod's tests ---------------------------------------------------------------
TEST_F(ElasticCoreTest, HorovodHostsAddedAndRemoved) {
  options_.most.ranks = 4;
  Start({"a"});
  Feed(Registered{On("a"), 0, ""});
  Hosts({{"a", 2}, {"b", 2}});
  Ask("a");
  Wait("b");
  EXPECT_EQ(Round(), "a 0 1 | b 2 3");
  const RunId b = On("b");
  Hosts({{"b", 2}});
  EXPECT_EQ(notified_.size(), 2U);
  Ask("a");
  Ask("b");
  EXPECT_EQ(Round(), "b 0 1");
  EXPECT_EQ(core_->round(), 3U);
  EXPECT_EQ(On("b"), b);
  EXPECT_EQ(ended_.back().run, On("a"));  // by TERM, not as "removed"
  EXPECT_EQ(said_.back(),
            "dtrain: a leaves the job: the host is not listed any more; round 3 has 2 ranks on 1 "
            "host (reset 2)");
}

TEST_F(ElasticCoreTest, HorovodSingleRankFailure) {
  Start({"a", "b"});
  Exit(On("a"), 0, 1);
  Ask("b");
  EXPECT_EQ(Round(), "b 0 1");
  EXPECT_EQ(core_->round(), 2U);
}

TEST_F(ElasticCoreTest, HorovodAllHostsDenied) {
  Start({"a", "b"});
  Ask(On("a"), 1);
  Ask(On("b"), 1);
  Exit(On("a"), 0, 1);
  Exit(On("b"), 0, 1);
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->verdict.exit_code, 1);
}

TEST_F(ElasticCoreTest, HorovodMinimumOfHostsInTime) {
  options_.start.ranks = options_.later.ranks = 4;
  options_.join_timeout = seconds(1);
  Start({"a", "b"});
  Exit(On("a"), 0, 1);
  AllOver();
  Ask("b");
  At(seconds(1));
  AllOver();
  ASSERT_TRUE(end_);
  EXPECT_NE(end_->verdict.exit_code, 0);
}

TEST_F(ElasticCoreTest, HorovodResetLimit) {
  for (const uint32_t limit : {1U, 2U}) {
    options_.most.ranks = 4;
    options_.most_resets = limit;
    Start({"a"});
    Hosts({{"a", 2}, {"b", 2}});
    Ask("a");
    Wait("b");
    Hosts({{"b", 2}});
    Ask("a");
    Ask("b");
    if (limit == 2) Exit("b");
    AllOver();
    ASSERT_TRUE(end_);
    EXPECT_EQ(end_->verdict.exit_code, limit == 1 ? kExitRestarts : 0);
  }
}

TEST_F(ElasticCoreTest, HorovodHostsComeBackWithGrowingPauses) {
  Start({"a", "b"}, CoolDown{seconds(1), seconds(10)});
  Feed(Registered{On("a"), 0, ""});
  Exit(On("b"), 1, 1);
  AllOver();
  Ask("a");
  const Duration first = core_->NextDeadline() - now_;
  EXPECT_GE(first, seconds(2));
  EXPECT_LT(first, seconds(3));
  ToDeadline();
  EXPECT_EQ(notified_.size(), 1U);
  Ask("a");
  Wait("b");
  EXPECT_EQ(Round(), "a 0 1 | b 2 3");
  Exit(On("b"), 1, 1);
  AllOver();
  Ask("a");
  EXPECT_GE(core_->NextDeadline() - now_, seconds(4));
}

}  // namespace
}  // namespace dtrain::elastic
