// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/link/link_core.h"

namespace dtrain::link {

// One core and a peer that the test plays. Pieces have 10 bytes.
class LinkCoreFixture : public ::testing::Test {
 protected:
  using State = LinkCore::State;
  static constexpr uint64_t kUs = 11;
  static constexpr uint64_t kPeer = 22;
  static constexpr uint64_t kSuccessor = 33;

  LinkCoreFixture() {
    options_.channel = Channel::kJob;
    options_.epoch = kUs;
    options_.out = {100, 200, 2000, 10};
    options_.in = options_.out;
    Make();
  }
  void Make() { core_.emplace(options_); }
  static SharedBytes Bytes(size_t n, char c = 'x') { return SharedBytes(std::string(n, c)); }
  absl::Status Open(uint64_t received = 0, uint64_t epoch = kPeer) {
    return core_->Open(now_, {epoch, received == 0 ? 0 : kUs, received});
  }
  static Frame Bare(uint64_t ack) {
    Frame frame;
    frame.header.channel = Channel::kJob;
    frame.header.ack = ack;
    return frame;
  }
  static Frame Unkept(size_t size, uint64_t ack = 0) {
    Frame frame = Bare(ack);
    frame.payload = Bytes(size);
    frame.header.size = static_cast<uint32_t>(size);
    return frame;
  }
  static Frame Kept(uint64_t sequence, std::string text, bool more = false, uint64_t ack = 0) {
    Frame frame = Bare(ack);
    frame.header.keep = true;
    frame.header.more = more;
    frame.header.sequence = sequence;
    frame.header.size = static_cast<uint32_t>(text.size());
    frame.payload = SharedBytes(std::move(text));
    return frame;
  }
  auto Take(const Frame& frame) { return core_->OnFrame(now_, frame); }
  // Of all that may be sent now.
  std::vector<uint64_t> GivenSequences() {
    std::vector<uint64_t> out;
    while (std::optional<Frame> frame = core_->Next(now_)) out.push_back(frame->header.sequence);
    return out;
  }
  void ExpectBroken(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_EQ(core_->state(), State::kLost);
    EXPECT_EQ(core_->why(), status);
    EXPECT_EQ(core_->kept_bytes(), 0u);
  }
  // To each state of the table, with one kept message that is not acknowledged where there can be.
  void GoTo(State state) {
    Make();
    if (state == State::kFull) {
      for (int i = 0; i < 100 && core_->Send(Bytes(100)).ok(); ++i) continue;
    } else {
      ASSERT_TRUE(core_->Send(Bytes(1)).ok());
    }
    if (state == State::kUp || state == State::kDown) {
      ASSERT_TRUE(Open().ok());
      ASSERT_EQ(GivenSequences(), std::vector<uint64_t>{1});
    }
    if (state == State::kDown) core_->Close();
    if (state == State::kLost) ExpectBroken(Take(Bare(0)).status());
    ASSERT_EQ(core_->state(), state);
  }

  LinkCore::Options options_;
  TimePoint now_ = TimePoint(std::chrono::hours(1));
  std::optional<LinkCore> core_;
};

}  // namespace dtrain::link
