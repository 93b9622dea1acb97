// SPDX-License-Identifier: Apache-2.0
// The table of link_core.h, a test for each of its cells.
#include "tests/unit/link/link_core_fixture.h"

namespace dtrain::link {
namespace {

using LinkTable = LinkCoreFixture;
using State = LinkCore::State;
using Sequences = std::vector<uint64_t>;

// ---- Send
TEST_F(LinkTable, IdleSendKeeps) {
  GoTo(State::kIdle);
  ASSERT_TRUE(core_->Send(Bytes(5)).ok());
  EXPECT_EQ(core_->last(), 2u);
  EXPECT_EQ(core_->kept_bytes(), 6 + 2 * kKeepingOverhead);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(GivenSequences(), (Sequences{1, 2}));
}
TEST_F(LinkTable, UpSendKeepsUntilAcknowledged) {
  GoTo(State::kUp);
  ASSERT_TRUE(core_->Send(Bytes(5)).ok());
  EXPECT_EQ(GivenSequences(), Sequences{2});
  EXPECT_EQ(core_->kept_bytes(), 6 + 2 * kKeepingOverhead);
  ASSERT_TRUE(Take(Bare(1)).ok());
  EXPECT_EQ(core_->kept_bytes(), 5 + kKeepingOverhead);
  ASSERT_TRUE(Take(Bare(2)).ok());
  EXPECT_EQ(core_->kept_bytes(), 0u);
}
TEST_F(LinkTable, DownSendKeeps) {
  GoTo(State::kDown);
  ASSERT_TRUE(core_->Send(Bytes(5)).ok());
  EXPECT_EQ(core_->kept_bytes(), 6 + 2 * kKeepingOverhead);
}
TEST_F(LinkTable, LostSendRefuses) {
  GoTo(State::kLost);
  EXPECT_EQ(core_->Send(Bytes(5)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_->SendUnkept(0, Bytes(5)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_->kept_bytes(), 0u);
  EXPECT_EQ(core_->room(), 0u);
}
TEST_F(LinkTable, FullSendRefuses) {
  GoTo(State::kFull);
  EXPECT_EQ(core_->Send(Bytes(5)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_->SendUnkept(0, Bytes(5)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_->why().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(core_->kept_bytes(), 0u);
  EXPECT_EQ(core_->room(), 0u);
}

// ---- Next
TEST_F(LinkTable, NextGivesNothingUnlessUp) {
  for (State state : {State::kIdle, State::kDown, State::kLost, State::kFull}) {
    GoTo(state);
    core_->SendUnkept(0, Bytes(5)).IgnoreError();
    EXPECT_FALSE(core_->Next(now_).has_value()) << static_cast<int>(state);
    EXPECT_EQ(core_->NextDeadline(), kNever);
  }
}
TEST_F(LinkTable, UpNextGivesKeptFramesWhileTheWindowIsOpen) {
  GoTo(State::kUp);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(core_->Send(Bytes(10)).ok());
  // 25 bytes are under way; 34 each. The last begins below 200.
  EXPECT_EQ(GivenSequences(), (Sequences{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(core_->unacked_bytes(), 25u + 6 * 34);
  ASSERT_TRUE(Take(Bare(2)).ok());
  EXPECT_EQ(core_->unacked_bytes(), 5u * 34);
  EXPECT_EQ(GivenSequences(), Sequences{8});
}
TEST_F(LinkTable, UpNextGivesUnkeptFramesFirstAndOnce) {
  GoTo(State::kUp);
  ASSERT_TRUE(core_->Send(Bytes(3)).ok());
  ASSERT_TRUE(core_->SendUnkept(1, Bytes(7)).ok());
  std::optional<Frame> frame = core_->Next(now_);
  ASSERT_TRUE(frame);
  EXPECT_FALSE(frame->header.keep);
  EXPECT_EQ(frame->header.sequence, 0u);
  EXPECT_EQ(frame->header.size, 7u);
  EXPECT_EQ(frame->payload.size(), 7u);
  EXPECT_EQ(GivenSequences(), Sequences{2});
}

// ---- OnFrame
TEST_F(LinkTable, OnFrameIsBrokenUnlessUp) {
  for (State state : {State::kIdle, State::kDown}) {
    GoTo(state);
    ExpectBroken(Take(Bare(0)).status());
  }
  GoTo(State::kLost);
  const absl::Status why = core_->why();
  EXPECT_EQ(Take(Kept(1, "a")).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(core_->why(), why);
  GoTo(State::kFull);
  EXPECT_EQ(Take(Bare(0)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(core_->state(), State::kFull);
}
TEST_F(LinkTable, UpOnFrameDeliversAndAcknowledges) {
  GoTo(State::kUp);
  now_ += std::chrono::seconds(5);
  auto message = Take(Kept(1, "hello"));
  ASSERT_TRUE(message.ok() && message->has_value());
  EXPECT_EQ((*message)->view(), "hello");
  EXPECT_EQ(core_->received(), 1u);
  EXPECT_EQ(core_->last_heard(), now_);
  EXPECT_FALSE(core_->Next(now_)) << "an ack may wait for company";
  ASSERT_TRUE(core_->Send(Bytes(1)).ok());
  EXPECT_EQ(core_->Next(now_)->header.ack, 1u);
  auto state = Take(Unkept(6, 1));
  ASSERT_TRUE(state.ok() && state->has_value());
  EXPECT_EQ((*state)->size(), 6u);
  auto bare = Take(Bare(1));
  ASSERT_TRUE(bare.ok());
  EXPECT_FALSE(bare->has_value());
}
TEST_F(LinkTable, UpOnFramePutsPiecesTogether) {
  GoTo(State::kUp);
  auto first = Take(Kept(1, "0123456789", true));
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->has_value());
  ASSERT_TRUE(Take(Unkept(3)).ok());  // may come between
  auto whole = Take(Kept(2, "abc"));
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_EQ((*whole)->view(), "0123456789abc");
}

// ---- Open
TEST_F(LinkTable, IdleOpenIsUp) {
  GoTo(State::kIdle);
  EXPECT_TRUE(Open().ok());
  EXPECT_EQ(core_->state(), State::kUp);
}
TEST_F(LinkTable, IdleOpenByOneThatClaimsToHaveSomethingIsBroken) {
  GoTo(State::kIdle);
  ExpectBroken(Open(1));
}
TEST_F(LinkTable, IdleOpenByOneThatHasSomethingOfNobodyIsBroken) {
  GoTo(State::kIdle);
  ExpectBroken(core_->Open(now_, {kPeer, 0, 1}));
}
TEST_F(LinkTable, IdleOpenByOneThatKnewOurPredecessor) {
  options_.forgets = true;
  GoTo(State::kIdle);
  EXPECT_TRUE(core_->Open(now_, {kPeer, kSuccessor, 7}).ok());  // which it will forget
  EXPECT_EQ(GivenSequences(), Sequences{1});
  options_.forgets = false;
  GoTo(State::kIdle);
  ExpectBroken(core_->Open(now_, {kPeer, kSuccessor, 7}));
}
TEST_F(LinkTable, OpenWithoutAnEpochIsBroken) {
  GoTo(State::kIdle);
  ExpectBroken(Open(0, 0));
}
TEST_F(LinkTable, UpOpenIsBroken) {
  GoTo(State::kUp);
  ExpectBroken(Open());
}
TEST_F(LinkTable, DownOpenSendsAgainWhatThePeerLacks) {
  GoTo(State::kUp);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(core_->Send(Bytes(10)).ok());
  EXPECT_EQ(GivenSequences(), (Sequences{2, 3, 4, 5}));
  core_->Close();
  ASSERT_TRUE(core_->Send(Bytes(10)).ok());
  ASSERT_TRUE(Open(3).ok());
  EXPECT_EQ(core_->state(), State::kUp);
  EXPECT_EQ(core_->acked(), 3u);
  EXPECT_EQ(core_->unacked_bytes(), 0u);
  EXPECT_EQ(GivenSequences(), (Sequences{4, 5, 6}));
}
TEST_F(LinkTable, DownOpenByAPeerThatNeverHeardUsSendsAllAgain) {
  GoTo(State::kDown);
  ASSERT_TRUE(core_->Open(now_, {kPeer, 0, 0}).ok());
  EXPECT_EQ(GivenSequences(), Sequences{1});
}
TEST_F(LinkTable, DownOpenWithMoreThanWasSentIsBroken) {
  GoTo(State::kDown);
  ASSERT_TRUE(core_->Send(Bytes(10)).ok());  // kept, and not sent
  ExpectBroken(Open(2));
}
TEST_F(LinkTable, DownOpenWithLessThanWasAcknowledgedIsBroken) {
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Bare(1)).ok());
  core_->Close();
  ExpectBroken(Open(0));
}
TEST_F(LinkTable, DownOpenByAnotherPeerForgetsOrIsLost) {
  options_.forgets = true;
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Kept(1, "0123456789", true)).ok());
  ASSERT_TRUE(core_->SendUnkept(0, Bytes(3)).ok());
  core_->Close();
  EXPECT_EQ(Open(0, kSuccessor).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(core_->state(), State::kIdle);
  EXPECT_EQ(core_->kept_bytes(), 0u);
  EXPECT_EQ(core_->Owed().received, 0u);
  EXPECT_EQ(core_->Owed().of, 0u);
  ASSERT_TRUE(Open(0, kSuccessor).ok());
  EXPECT_EQ(GivenSequences(), Sequences{});
  ASSERT_TRUE(core_->Send(Bytes(3)).ok());
  EXPECT_EQ(GivenSequences(), Sequences{1});
  auto message = Take(Kept(1, "new", false, 1));
  ASSERT_TRUE(message.ok() && message->has_value());
  EXPECT_EQ((*message)->view(), "new");

  options_.forgets = false;
  GoTo(State::kDown);
  ExpectBroken(Open(0, kSuccessor));
}
TEST_F(LinkTable, DownOpenByAPeerThatHasNotHeardOfUsYetSendsAllAgain) {
  options_.forgets = true;
  Make();
  ASSERT_TRUE(core_->Send(Bytes(1)).ok());
  ASSERT_TRUE(core_->Open(now_, {kPeer, kSuccessor, 7}).ok());
  EXPECT_EQ(GivenSequences(), Sequences{1});
  core_->Close();  // before our answer came
  ASSERT_TRUE(core_->Open(now_, {kPeer, kSuccessor, 7}).ok());
  EXPECT_EQ(GivenSequences(), Sequences{1});
}
TEST_F(LinkTable, DownOpenByAPeerThatHasMetAnotherOfUsForgetsOrIsLost) {
  options_.forgets = true;
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Bare(1)).ok());
  core_->Close();
  EXPECT_EQ(core_->Open(now_, {kPeer, kSuccessor, 0}).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(core_->state(), State::kIdle);
  options_.forgets = false;
  GoTo(State::kDown);
  ExpectBroken(core_->Open(now_, {kPeer, kSuccessor, 0}));
}
TEST_F(LinkTable, LostAndFullOpenRefuse) {
  for (State state : {State::kLost, State::kFull}) {
    GoTo(state);
    EXPECT_EQ(Open().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(core_->state(), state);
  }
}

// ---- Close
TEST_F(LinkTable, CloseIsDownFromUpAndNothingElse) {
  for (State state : {State::kIdle, State::kDown, State::kLost, State::kFull}) {
    GoTo(state);
    core_->Close();
    EXPECT_EQ(core_->state(), state);
  }
  GoTo(State::kUp);
  core_->Close();
  EXPECT_EQ(core_->state(), State::kDown);
  EXPECT_EQ(core_->kept_bytes(), 1 + kKeepingOverhead);
}
TEST_F(LinkTable, AMessageInPiecesGoesOnAfterAClose) {
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Kept(1, "0123456789", true)).ok());
  core_->Close();
  EXPECT_EQ(core_->Owed().epoch, kUs);
  EXPECT_EQ(core_->Owed().of, kPeer);
  EXPECT_EQ(core_->Owed().received, 1u);
  ASSERT_TRUE(core_->Open(now_, {kPeer, kUs, 0}).ok());
  auto whole = Take(Kept(2, "ab"));
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_EQ((*whole)->view(), "0123456789ab");
}

// ---- time
TEST_F(LinkTable, UpAtADeadlineABareAckOrABeatIsGiven) {
  options_.beat = std::chrono::seconds(10);
  GoTo(State::kUp);
  const TimePoint begin = now_;
  EXPECT_EQ(core_->NextDeadline(), begin + options_.beat);
  now_ += std::chrono::milliseconds(100);
  ASSERT_TRUE(Take(Kept(1, "a")).ok());
  EXPECT_EQ(core_->NextDeadline(), now_ + kAckDelay);
  now_ += kAckDelay - Duration(1);
  EXPECT_FALSE(core_->Next(now_));
  now_ += Duration(1);
  std::optional<Frame> ack = core_->Next(now_);
  ASSERT_TRUE(ack);
  EXPECT_FALSE(ack->header.keep);
  EXPECT_EQ(ack->header.ack, 1u);
  EXPECT_EQ(ack->wire_size(), kHeaderBytes);
  EXPECT_FALSE(core_->Next(now_));
  EXPECT_EQ(core_->NextDeadline(), now_ + options_.beat);
  now_ += options_.beat;
  ASSERT_TRUE(core_->Next(now_));
  EXPECT_FALSE(core_->Next(now_));
}
TEST_F(LinkTable, WithoutABeatNothingIsDue) {
  GoTo(State::kUp);
  EXPECT_EQ(core_->NextDeadline(), kNever);
  now_ += std::chrono::hours(1000);
  EXPECT_FALSE(core_->Next(now_));
}

}  // namespace
}  // namespace dtrain::link
