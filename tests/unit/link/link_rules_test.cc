// SPDX-License-Identifier: Apache-2.0
// What a peer must not do, and what happens at each cap.
#include <algorithm>
#include <set>

#include "tests/unit/link/link_core_fixture.h"

namespace dtrain::link {
namespace {

using LinkRules = LinkCoreFixture;
using State = LinkCore::State;

TEST_F(LinkRules, AnAckOfWhatWasNotSentIsBroken) {
  GoTo(State::kUp);
  ASSERT_TRUE(core_->Send(Bytes(1)).ok());  // kept, and not sent
  ExpectBroken(Take(Bare(2)).status());
}
TEST_F(LinkRules, AnAckThatFallsIsBroken) {
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Bare(1)).ok());
  ASSERT_TRUE(Take(Bare(1)).ok());
  ExpectBroken(Take(Bare(0)).status());
}
TEST_F(LinkRules, AnAckOnAKeptAndOnAnUnkeptFrameCounts) {
  GoTo(State::kUp);
  ASSERT_TRUE(core_->Send(Bytes(1)).ok());
  ASSERT_EQ(GivenSequences(), std::vector<uint64_t>{2});
  ASSERT_TRUE(Take(Kept(1, "a", false, 1)).ok());
  EXPECT_EQ(core_->acked(), 1u);
  ASSERT_TRUE(Take(Unkept(1, 2)).ok());
  EXPECT_EQ(core_->acked(), 2u);
}
TEST_F(LinkRules, AGapIsBroken) {
  GoTo(State::kUp);
  ExpectBroken(Take(Kept(2, "b")).status());
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Kept(1, "a")).ok());
  ExpectBroken(Take(Kept(3, "c")).status());
}
TEST_F(LinkRules, AGapAfterOpenIsBroken) {
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Kept(1, "a")).ok());
  core_->Close();
  ASSERT_TRUE(Open().ok());
  ExpectBroken(Take(Kept(3, "c")).status());
}
TEST_F(LinkRules, ARepetitionWithinAConnectionIsBroken) {
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Kept(1, "a")).ok());
  ExpectBroken(Take(Kept(1, "a")).status());
}
TEST_F(LinkRules, ARepetitionAfterOpenIsSeenAndThenThereIsNone) {
  GoTo(State::kUp);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(Take(Kept(i, "a")).ok());
  core_->Close();
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 2; i <= 3; ++i) {
    auto seen = Take(Kept(i, "a"));
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_FALSE(seen->has_value());
  }
  EXPECT_EQ(core_->received(), 3u);
  auto next = Take(Kept(4, "d"));
  EXPECT_TRUE(next.ok() && next->has_value());
  ExpectBroken(Take(Kept(4, "d")).status());
}
TEST_F(LinkRules, AFrameOfAnotherChannelIsBroken) {
  GoTo(State::kUp);
  Frame frame = Bare(0);
  frame.header.channel = Channel::kLogs;
  ExpectBroken(Take(frame).status());
}
TEST_F(LinkRules, AKeptFrameWithoutANumberIsBroken) {
  GoTo(State::kUp);
  ExpectBroken(Take(Kept(0, "a")).status());
}
TEST_F(LinkRules, WhatIsKeptButNotNumberedNeverReachesTheOwnerTwice) {
  GoTo(State::kUp);
  auto message = Take(Kept(1, ""));
  ASSERT_TRUE(message.ok() && message->has_value()) << "a message may have no bytes";
  EXPECT_EQ((*message)->size(), 0u);
}

// ---- caps
TEST_F(LinkRules, AMessageOfTheMostBytesIsSentAndOneMoreIsRefused) {
  GoTo(State::kUp);
  EXPECT_TRUE(core_->Send(Bytes(100)).ok());
  const size_t kept = core_->kept_bytes();
  EXPECT_EQ(core_->Send(Bytes(101)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->kept_bytes(), kept);
  EXPECT_EQ(core_->state(), State::kUp);
}
TEST_F(LinkRules, AMessageOfTheMostBytesIsTakenAndOneMoreIsBroken) {
  for (size_t last : {10, 11}) {
    GoTo(State::kUp);
    uint64_t sequence = 0;
    for (int i = 0; i < 9; ++i) {
      ASSERT_TRUE(Take(Kept(++sequence, std::string(10, 'a'), true)).ok());
    }
    auto whole = Take(Kept(++sequence, std::string(last, 'a')));
    if (last == 10) {
      ASSERT_TRUE(whole.ok() && whole->has_value());
      EXPECT_EQ((*whole)->size(), 100u);
    } else {
      ExpectBroken(whole.status());
    }
  }
  GoTo(State::kUp);
  ExpectBroken(Take(Kept(1, std::string(101, 'a'))).status());
}
TEST_F(LinkRules, APeerThatDoesNotWaitForAcksIsBrokenBeyondItsWindow) {
  options_.in.message = 4 << 20;
  GoTo(State::kUp);
  const size_t most = options_.in.window + kHeaderBytes + kMostPayload;
  size_t sent = 0;
  uint64_t sequence = 0;
  const std::string payload(1000, 'a');
  while (sent + kHeaderBytes + payload.size() <= most) {
    ASSERT_TRUE(Take(Kept(++sequence, payload)).ok()) << sent;
    sent += kHeaderBytes + payload.size();
  }
  ExpectBroken(Take(Kept(++sequence, payload)).status());
}
TEST_F(LinkRules, APeerThatWaitsForAcksMayGoOnForEver) {
  options_.in.message = 4 << 20;
  GoTo(State::kUp);
  uint64_t sequence = 0;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(Take(Kept(++sequence, std::string(1000, 'a'))).ok()) << i;
    GivenSequences();
  }
}
TEST_F(LinkRules, WhatIsKeptEndsAtItsCap) {
  Make();
  size_t sent = 0;
  absl::Status status;
  while (sent < 100 && (status = core_->Send(Bytes(100))).ok()) ++sent;
  EXPECT_EQ(sent, 2000 / (100 + kKeepingOverhead));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("8 messages of 1824 bytes"), absl::string_view::npos) << status;
  EXPECT_EQ(core_->state(), State::kFull);
}
TEST_F(LinkRules, EmptyMessagesFillWhatIsKept) {
  Make();
  size_t sent = 0;
  while (sent < 100 && core_->Send(SharedBytes()).ok()) ++sent;
  EXPECT_EQ(sent, 2000 / kKeepingOverhead);
}
TEST_F(LinkRules, NoMoreFramesAreUnderWayThanARelayTakes) {
  options_.out = kToLauncher;
  GoTo(State::kUp);  // the first is under way
  for (uint64_t i = 0; i < kMostUnacked + 10; ++i) ASSERT_TRUE(core_->Send(Bytes(1)).ok());
  EXPECT_EQ(GivenSequences().size(), kMostUnacked - 1);
  ASSERT_TRUE(Take(Bare(2)).ok());
  EXPECT_EQ(GivenSequences(), (std::vector<uint64_t>{kMostUnacked + 1, kMostUnacked + 2}));
}
TEST_F(LinkRules, RoomSaysWhatCanStillBeKept) {
  options_.out.kept = 2100;
  GoTo(State::kUp);
  size_t sent = 0;
  for (;; ++sent) {
    const size_t room = core_->room();
    if (room < 100) break;
    ASSERT_TRUE(core_->Send(Bytes(100)).ok());
  }
  EXPECT_GT(sent, 0u);
  ASSERT_EQ(core_->room(), 19u);
  ASSERT_TRUE(core_->Send(Bytes(core_->room())).ok());
  EXPECT_EQ(core_->room(), 0u);
  EXPECT_EQ(core_->state(), State::kUp);
  // With acks there is room again.
  GivenSequences();
  ASSERT_TRUE(Take(Bare(core_->given())).ok());
  EXPECT_GT(core_->room(), 0u);
}
TEST_F(LinkRules, AMessageIsKeptUntilItsLastPieceIsAcknowledged) {
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Bare(1)).ok());
  ASSERT_TRUE(core_->Send(Bytes(25)).ok());
  EXPECT_EQ(GivenSequences(), (std::vector<uint64_t>{2, 3, 4}));
  ASSERT_TRUE(Take(Bare(3)).ok());
  EXPECT_EQ(core_->kept_bytes(), 25 + kKeepingOverhead);
  EXPECT_EQ(core_->unacked_bytes(), kHeaderBytes + 5);
  ASSERT_TRUE(Take(Bare(4)).ok());
  EXPECT_EQ(core_->kept_bytes(), 0u);
  EXPECT_EQ(core_->unacked_bytes(), 0u);
}

// ---- acks: whatever else flows
TEST_F(LinkRules, AnAckIsGivenAfter64Frames) {
  GoTo(State::kUp);
  for (uint64_t i = 1; i < kAckFrames; ++i) {
    ASSERT_TRUE(Take(Kept(i, "a")).ok());
    ASSERT_FALSE(core_->Next(now_)) << i;
  }
  ASSERT_TRUE(Take(Kept(kAckFrames, "a")).ok());
  EXPECT_LE(core_->NextDeadline(), now_);
  std::optional<Frame> ack = core_->Next(now_);
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->header.ack, kAckFrames);
  EXPECT_FALSE(core_->Next(now_));
}
TEST_F(LinkRules, AnAckIsGivenAfter256KiB) {
  options_.in.message = 4 << 20;
  GoTo(State::kUp);
  const std::string payload(kAckBytes / 4 - kHeaderBytes, 'a');
  for (uint64_t i = 1; i < 4; ++i) {
    ASSERT_TRUE(Take(Kept(i, payload)).ok());
    ASSERT_FALSE(core_->Next(now_)) << i;
  }
  ASSERT_TRUE(Take(Kept(4, payload)).ok());
  EXPECT_EQ(core_->Next(now_)->header.ack, 4u);
}
TEST_F(LinkRules, AnAckIsGivenWhileOurWindowIsClosed) {
  GoTo(State::kUp);
  while (core_->unacked_bytes() < options_.out.window) {
    ASSERT_TRUE(core_->Send(Bytes(10)).ok());
    GivenSequences();
  }
  ASSERT_TRUE(core_->Send(Bytes(10)).ok());
  for (uint64_t i = 1; i <= kAckFrames; ++i) ASSERT_TRUE(Take(Kept(i, "a")).ok());
  std::optional<Frame> ack = core_->Next(now_);
  ASSERT_TRUE(ack);
  EXPECT_FALSE(ack->header.keep);
  EXPECT_EQ(ack->header.ack, kAckFrames);
}
TEST_F(LinkRules, UnkeptFramesOweNoAck) {
  GoTo(State::kUp);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Take(Unkept(1000)).ok());
  EXPECT_EQ(core_->NextDeadline(), kNever);
  EXPECT_FALSE(core_->Next(now_));
}
TEST_F(LinkRules, ARepetitionIsAcknowledgedAgain) {
  GoTo(State::kUp);
  ASSERT_TRUE(Take(Kept(1, "a")).ok());
  core_->Close();
  ASSERT_TRUE(Open().ok());
  GivenSequences();
  EXPECT_EQ(core_->NextDeadline(), kNever) << "the peer was told with Owed";
  ASSERT_TRUE(Take(Kept(1, "a")).ok());
  EXPECT_EQ(core_->NextDeadline(), now_ + kAckDelay);
}
// Nobody beats, and time stands still: acks come with nothing but the messages themselves.
TEST_F(LinkRules, AMillionEventsKeepNoMoreThanTheWindow) {
  LinkCore::Options options;
  options.epoch = 1;
  options.out = kToLauncher;
  options.in = kToShepherd;
  LinkCore shepherd(options);
  options.epoch = 2;
  std::swap(options.out, options.in);
  LinkCore launcher(options);
  ASSERT_TRUE(shepherd.Open({}, {2, 0, 0}).ok());
  ASSERT_TRUE(launcher.Open({}, {1, 0, 0}).ok());
  const SharedBytes event(std::string(50, 'e'));
  size_t most = 0, taken = 0, acks = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    ASSERT_TRUE(shepherd.Send(event).ok());
    most = std::max(most, shepherd.kept_bytes());
    std::optional<Frame> frame = shepherd.Next({});
    ASSERT_TRUE(frame);
    auto message = launcher.OnFrame({}, *frame);
    ASSERT_TRUE(message.ok()) << message.status();
    taken += message->has_value();
    while (std::optional<Frame> ack = launcher.Next({})) {
      ASSERT_TRUE(shepherd.OnFrame({}, *ack).ok());
      ++acks;
    }
  }
  EXPECT_EQ(taken, 1'000'000u);
  EXPECT_EQ(acks, 1'000'000u / kAckFrames);
  EXPECT_LE(most, kToLauncher.window);
  EXPECT_LE(most, (kAckFrames + 1) * (event.size() + kKeepingOverhead));
}

// ---- unkept frames
TEST_F(LinkRules, TheNewestOfAKindReplacesTheOlder) {
  GoTo(State::kUp);
  auto none = core_->SendUnkept(2, SharedBytes("old"));
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  ASSERT_FALSE((*core_->SendUnkept(1, SharedBytes("other"))).has_value());
  auto replaced = core_->SendUnkept(2, SharedBytes("new"));
  ASSERT_TRUE(replaced.ok() && replaced->has_value());
  EXPECT_EQ((*replaced)->view(), "old");
  EXPECT_TRUE(core_->waits(1) && core_->waits(2) && !core_->waits(0));
  EXPECT_EQ(core_->Next(now_)->payload.view(), "new");  // in its place
  EXPECT_FALSE(core_->waits(2));
  EXPECT_EQ(core_->Next(now_)->payload.view(), "other");
  EXPECT_FALSE(core_->Next(now_));
}
TEST_F(LinkRules, TheNewestOfAKindWaitsForAConnection) {
  GoTo(State::kDown);
  ASSERT_TRUE(core_->SendUnkept(0, SharedBytes("old")).ok());
  ASSERT_TRUE(core_->SendUnkept(0, SharedBytes("new")).ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(core_->Next(now_)->payload.view(), "new");
}
TEST_F(LinkRules, WhatIsWithdrawnIsNotSent) {
  GoTo(State::kDown);
  ASSERT_TRUE(core_->SendUnkept(0, SharedBytes("of the last connection")).ok());
  core_->Withdraw(0);
  EXPECT_FALSE(core_->waits(0));
  ASSERT_TRUE(Open().ok());
  while (auto frame = core_->Next(now_)) EXPECT_TRUE(frame->header.keep);
  core_->Withdraw(0);  // nothing
}
TEST_F(LinkRules, UnkeptFramesHaveASize) {
  GoTo(State::kUp);
  EXPECT_TRUE(core_->SendUnkept(0, Bytes(kMostUnkept)).ok());
  EXPECT_EQ(core_->SendUnkept(0, Bytes(kMostUnkept + 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->SendUnkept(0, SharedBytes()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Take(Unkept(kMostUnkept)).ok());
  ExpectBroken(Take(Unkept(kMostUnkept + 1)).status());
}
TEST_F(LinkRules, UnkeptFramesWaitForOneKeptPieceAtMostAndDoNotHoldThemUp) {
  options_.out = {32 << 20, 4 << 20, 64 << 20};
  GoTo(State::kUp);
  ASSERT_TRUE(core_->Send(Bytes(32 << 20)).ok());
  size_t kept = 0;
  for (int round = 0; round < 50; ++round) {
    // All kinds, all the time, also the one that was just sent.
    for (size_t kind = 0; kind < kKinds; ++kind) {
      ASSERT_TRUE(core_->SendUnkept(kind, Bytes(1, static_cast<char>('a' + kind))).ok());
    }
    std::multiset<char> kinds;
    size_t behind = 0;
    while (kinds.size() < kKinds) {
      std::optional<Frame> frame = core_->Next(now_);
      ASSERT_TRUE(frame);
      if (frame->header.keep) {
        behind += frame->payload.size();
        ++kept;
      } else {
        kinds.insert(frame->payload.view()[0]);
      }
    }
    EXPECT_EQ(std::set<char>(kinds.begin(), kinds.end()).size(), kKinds);
    EXPECT_LE(behind, kPieceBytes);
  }
  EXPECT_GE(kept, (4u << 20) / (kHeaderBytes + kPieceBytes)) << "all that the window admits";
}
TEST_F(LinkRules, OneKindDoesNotHoldUpAnother) {
  GoTo(State::kUp);
  ASSERT_TRUE(core_->SendUnkept(3, SharedBytes("three")).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(core_->SendUnkept(0, SharedBytes("zero")).ok());
    if (core_->Next(now_)->payload.view() == "three") return;
  }
  ADD_FAILURE() << "kind 3 was not sent";
}

}  // namespace
}  // namespace dtrain::link
