// SPDX-License-Identifier: Apache-2.0
// F11, L9: what the records of a journal come to.
#include "launcher/journal/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/journal/job_story.h"

namespace dtrain::journal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string WhyNot(const std::vector<JournalRecord>& before, const JournalRecord& record) {
  JournalState state = StateAfter(before);
  const JournalState unchanged = state;
  const absl::Status applied = Apply(record, state);
  EXPECT_EQ(applied.code(), absl::StatusCode::kInvalidArgument) << applied;
  EXPECT_TRUE(Same(state, unchanged)) << state.DebugString();
  return std::string(applied.message());
}

// How a job comes into each phase.
const std::map<JournalState::Phase, std::vector<JournalRecord>>& Ways() {
  static const auto* ways = new std::map<JournalState::Phase, std::vector<JournalRecord>>{
      {JournalState::PHASE_NEW, {}},
      {JournalState::PHASE_ACCEPTED, {AcceptedRecord(), Generation(1)}},
      {JournalState::PHASE_BEGUN, {AcceptedRecord(), Generation(1), Begins(0, 1)}},
      {JournalState::PHASE_RUNS, {AcceptedRecord(), Generation(1), Begins(0, 1), Runs(0)}},
      {JournalState::PHASE_RESTARTING,
       {AcceptedRecord(), Generation(1), Begins(0, 1), Runs(0), Restart(0)}},
      {JournalState::PHASE_CONCLUDED,
       {AcceptedRecord(), Generation(1), Begins(0, 1), Runs(0), Verdict(), HookBegins()}},
      {JournalState::PHASE_ENDED,
       {AcceptedRecord(), Generation(1), Begins(0, 1), Runs(0), Verdict(), Ended()}},
  };
  return *ways;
}

// Each record in each phase: `new accepted begun runs restarting concluded ended`.
TEST(JournalReplay, FollowsTheTable) {
  const std::vector<std::pair<JournalRecord, std::string>> table = {
      {AcceptedRecord(), "y------"}, {Generation(2), "-yyyyy-"},
      {Begins(0, 1), "-y-----"},     {Begins(1, 1), "----y--"},
      {Runs(0), "--y----"},          {Exit(0, 0, 0), "--yyyy-"},
      {Lost(0, 0), "--yyyy-"},       {Stop(), "-yyyyy-"},
      {Limit(), "-yyyyy-"},          {Restart(0), "--yy---"},
      {Safe(0, 0, 1), "--yyyy-"},    {Verdict(), "-yyyy--"},
      {ScalesUp(0), "---y---"},      {HookBegins(), "-----y-"},
      {HookEnds(), "-----y-"},       {Lacks("a", 1, "full"), "-yyyyy-"},
      {Ended(), "-----y-"},          {Header("j", "b"), "-------"},
      {JournalRecord(), "-------"},
  };
  for (const auto& [record, row] : table) {
    for (const auto& [phase, way] : Ways()) {
      SCOPED_TRACE(testing::Message() << record.DebugString() << JournalState::Phase_Name(phase));
      JournalState state = StateAfter(way);
      ASSERT_EQ(state.phase(), phase);
      if (row[phase] == 'y') {
        ExpectApplies(record, state);
      } else {
        EXPECT_THAT(WhyNot(way, record), HasSubstr("out of order: "));
      }
    }
  }
}

TEST(JournalReplay, AScaleUpIsOfItsAttempt) {
  const std::vector<JournalRecord> runs = Ways().at(JournalState::PHASE_RUNS);
  JournalState state = StateAfter(runs);
  ExpectApplies(ScalesUp(0), state);
  EXPECT_EQ(state.phase(), JournalState::PHASE_RUNS);
  EXPECT_THAT(state.scale_up().hosts(), ElementsAre("b"));
  JournalState restored;
  ExpectApplies(Snapshot(state), restored);
  EXPECT_TRUE(Same(state, restored));
  ExpectApplies(Restart(0), state);
  EXPECT_FALSE(state.has_scale_up());
  EXPECT_THAT(WhyNot(runs, ScalesUp(1)), HasSubstr("of attempt 1, and the last one is 0"));
}

TEST(JournalReplay, AtEachRecordASnapshotMakesTheSameState) {
  JournalState state;
  for (const JournalRecord& record : Story()) {
    ExpectApplies(record, state);
    JournalState restored;
    ExpectApplies(Snapshot(state), restored);
    EXPECT_TRUE(Same(state, restored));
    const auto read = Read(Written({Snapshot(state)}));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(Same(state, read->state));
  }
}

// F11: whoever comes after a crash, at whatever record, finds one attempt.
TEST(JournalReplay, AtEachRecordOneAttemptIsTheLast) {
  JournalState state;
  for (const JournalRecord& record : Story()) {
    ExpectApplies(record, state);
    if (!state.has_attempt()) continue;
    const uint32_t attempt = state.attempt().attempt();
    JournalState next = state;
    const uint32_t after = state.has_runs() ? attempt + 1 : attempt;
    EXPECT_FALSE(
        Apply(Begins(state.has_runs() ? attempt : attempt + 1, state.launcher().generation()), next)
            .ok());
    EXPECT_EQ(Apply(Begins(after, state.launcher().generation()), next).ok(),
              state.phase() == JournalState::PHASE_RESTARTING);
  }
}

TEST(JournalReplay, ASnapshotComesFirst) {
  const JournalState state = StateAfter(Story());
  EXPECT_THAT(WhyNot({AcceptedRecord()}, Snapshot(state)), HasSubstr("a snapshot"));
  EXPECT_THAT(WhyNot({}, Snapshot(JournalState())), HasSubstr("no possible state"));
  JournalState strange;
  strange.set_phase(static_cast<JournalState::Phase>(77));
  EXPECT_THAT(WhyNot({}, Snapshot(strange)), HasSubstr("no possible state"));
  strange.set_phase(JournalState::PHASE_RUNS);
  EXPECT_THAT(WhyNot({}, Snapshot(strange)), HasSubstr("no possible state"));
}

TEST(JournalReplay, GenerationsOnlyGrow) {
  const std::vector<JournalRecord> before = {AcceptedRecord(), Generation(4)};
  EXPECT_THAT(WhyNot(before, Generation(4)), HasSubstr("generation 4 after 4"));
  EXPECT_THAT(WhyNot(before, Generation(3)), HasSubstr("generation 3 after 4"));
  EXPECT_THAT(WhyNot(before, Begins(0, 3)), HasSubstr("generation 3 begins an attempt"));
  EXPECT_EQ(StateAfter({AcceptedRecord(), Generation(4), Generation(9)}).launcher().generation(),
            9);
}

TEST(JournalReplay, AttemptsAreCounted) {
  EXPECT_THAT(WhyNot({AcceptedRecord(), Generation(1)}, Begins(1, 1)),
              HasSubstr("attempt 1 begins instead of 0"));
  const auto& restarting = Ways().at(JournalState::PHASE_RESTARTING);
  EXPECT_THAT(WhyNot(restarting, Begins(0, 1)), HasSubstr("attempt 0 begins instead of 1"));
  EXPECT_THAT(WhyNot(restarting, Begins(2, 1)), HasSubstr("attempt 2 begins instead of 1"));
  EXPECT_THAT(WhyNot(restarting, Lost(1, 0)), HasSubstr("attempt 1, and the last one is 0"));
}

TEST(JournalReplay, AnAttemptThatNeverRanIsMadeAgain) {
  std::vector<JournalRecord> before = Ways().at(JournalState::PHASE_BEGUN);
  before.push_back(Restart(0, {}, true));
  EXPECT_THAT(WhyNot(before, Begins(1, 1)), HasSubstr("attempt 1 begins instead of 0"));
  JournalState state = StateAfter(before);
  ExpectApplies(Begins(0, 1), state);
  EXPECT_THAT(WhyNot(Ways().at(JournalState::PHASE_RUNS), Restart(0, {}, true)),
              HasSubstr("an attempt that ran"));
}

TEST(JournalReplay, AnAttemptKnowsNothingOfTheOneBefore) {
  const JournalState state =
      StateAfter({AcceptedRecord(), Generation(1), Begins(0, 1), Runs(0), Exit(0, 1, 3, 7),
                  Safe(0, 0, 10), Safe(0, 1, 10, true), Restart(0, {"b"}), Begins(1, 1, {"a"}, 2)});
  EXPECT_FALSE(state.has_runs());
  EXPECT_EQ(state.nodes_size() + state.exits_size() + state.logs_safe_size(), 0);
  ASSERT_EQ(state.restarts_size(), 1);
  EXPECT_THAT(state.restarts(0).left_out(), ElementsAre("b"));
}

// A node may say it again, to the next launcher.
TEST(JournalReplay, OfFactsOfAKindTheFirstCounts) {
  JournalState state = StateAfter({AcceptedRecord(), Generation(1), Begins(0, 1), Exit(0, 1, 3, 7),
                                   Failure(0, 1, "first"), Finished(0, 1)});
  const JournalState before = state;
  ExpectApplies(Exit(0, 1, 3, 1), state);
  ExpectApplies(Failure(0, 1, "second"), state);
  ExpectApplies(Finished(0, 1), state);
  EXPECT_TRUE(Same(state, before));
  ExpectApplies(Exit(0, 0, 1, 5), state);
  ExpectApplies(Finished(0, 0), state);
  ASSERT_EQ(state.exits_size(), 2);
  EXPECT_EQ(state.exits(0).exit_code(), 5);
  EXPECT_EQ(state.exits(1).exit_code(), 7);
  ASSERT_EQ(state.nodes_size(), 2);
  EXPECT_EQ(state.nodes(0).node(), 0);
  EXPECT_EQ(state.nodes(1).failure().message(), "first");
}

// They grow.
TEST(JournalReplay, OfTheErrorsOfGpusTheLastCount) {
  JournalState state = StateAfter(Ways().at(JournalState::PHASE_RUNS));
  for (const uint32_t xid : {31, 79}) {
    JournalRecord record;
    v1::NodeFact& fact = *record.mutable_node_fact();
    fact.set_node(1);
    fact.mutable_gpus()->add_gpus()->add_xids(xid);
    ExpectApplies(record, state);
  }
  ASSERT_EQ(state.nodes_size(), 1);
  ASSERT_EQ(state.nodes(0).gpus().gpus_size(), 1);
  EXPECT_THAT(state.nodes(0).gpus().gpus(0).xids(), ElementsAre(79));
}

TEST(JournalReplay, FactsAreOfTheJob) {
  const auto& runs = Ways().at(JournalState::PHASE_RUNS);
  EXPECT_THAT(WhyNot(runs, Exit(0, 2, 0)), HasSubstr("node 2 of 2"));
  EXPECT_THAT(WhyNot(runs, Exit(0, 0, 4)), HasSubstr("rank 4 of 4"));
  EXPECT_THAT(WhyNot(runs, Safe(0, 4, 1)), HasSubstr("rank 4 of 4"));
}

TEST(JournalReplay, OutputIsNotLessSafeThanItWas) {
  std::vector<JournalRecord> before = Ways().at(JournalState::PHASE_RUNS);
  before.push_back(Safe(0, 1, 40, true));
  before.push_back(Safe(0, 1, 100));
  EXPECT_THAT(WhyNot(before, Safe(0, 1, 99)), HasSubstr("up to byte 99, and was up to byte 100"));
  // None of a record counts when one does not.
  JournalRecord both = Safe(0, 2, 7);
  both.mutable_logs_safe()->mutable_positions()->MergeFrom(Safe(0, 1, 1).logs_safe().positions());
  WhyNot(before, both);
  JournalState state = StateAfter(before);
  ExpectApplies(Safe(0, 1, 100), state);
  ASSERT_EQ(state.logs_safe_size(), 2);
  EXPECT_EQ(state.logs_safe(0).offset(), 100);
  EXPECT_EQ(state.logs_safe(1).offset(), 40);
}

// Also in the attempts after that, and for each launcher that comes.
TEST(JournalReplay, WhatLogFilesLackIsOfTheJob) {
  std::vector<JournalRecord> records = Ways().at(JournalState::PHASE_RUNS);
  records.insert(records.end(), {Lacks("b", 7, "no space"), Lacks("a", 1, "torn"),
                                 Lacks("b", 9, "torn"), Restart(0), Generation(2), Begins(1, 2)});
  const v1::OutputLost lost = StateAfter(records).output_lost();
  EXPECT_EQ(lost.why(), "no space");
  ASSERT_EQ(lost.files_size(), 2);
  EXPECT_EQ(lost.files(0).name(), "a");
  EXPECT_EQ(lost.files(1).bytes(), 9);
}

// L9
TEST(JournalReplay, OfStopAndRestartTheFirstCounts) {
  for (const JournalRecord& end : {Stop(), Limit()}) {
    std::vector<JournalRecord> told = Ways().at(JournalState::PHASE_RUNS);
    told.push_back(end);
    EXPECT_THAT(WhyNot(told, Restart(0)), HasSubstr("and the job was told to end"));
    std::vector<JournalRecord> restarting = Ways().at(JournalState::PHASE_RESTARTING);
    restarting.push_back(end);
    EXPECT_THAT(WhyNot(restarting, Begins(1, 1)), HasSubstr("and the job was told to end"));
    JournalState state = StateAfter(restarting);
    ExpectApplies(Verdict(130), state);
  }
}

TEST(JournalReplay, OfStopAndTimeLimitTheFirstCounts) {
  std::vector<JournalRecord> records = Ways().at(JournalState::PHASE_RUNS);
  records.insert(records.end(), {Stop("alice"), Limit(), Stop("bob")});
  const JournalState stopped = StateAfter(records);
  EXPECT_EQ(stopped.stop().by(), "alice");
  EXPECT_FALSE(stopped.has_time_limit());
  records = Ways().at(JournalState::PHASE_RUNS);
  records.insert(records.end(), {Limit(), Stop("alice")});
  const JournalState late = StateAfter(records);
  EXPECT_FALSE(late.has_stop());
  EXPECT_TRUE(late.has_time_limit());
}

TEST(JournalReplay, AHookThatWasNotSeenToEndBeginsAgain) {
  std::vector<JournalRecord> records = Ways().at(JournalState::PHASE_CONCLUDED);
  records.push_back(HookBegins());
  records.push_back(HookEnds(3));
  const JournalState state = StateAfter(records);
  EXPECT_EQ(state.hooks_begun(), 2);
  EXPECT_EQ(state.hook().exit_code(), 3);
  EXPECT_THAT(WhyNot(records, HookBegins()), HasSubstr("again after its end"));
  EXPECT_THAT(WhyNot(records, HookEnds()), HasSubstr("over already"));
  std::vector<JournalRecord> none = Ways().at(JournalState::PHASE_RUNS);
  none.push_back(Verdict());
  EXPECT_THAT(WhyNot(none, HookEnds()), HasSubstr("not started"));
}

}  // namespace
}  // namespace dtrain::journal
