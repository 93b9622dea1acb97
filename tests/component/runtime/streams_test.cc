// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/streams.h"

#include <numeric>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/links_pair.h"

namespace dtrain::runtime {
namespace {

using testing::HasSubstr;

// Two ends in this process: rank 3 speaks for node 0, rank 7 for node 1. Waits that sleep at once
// ("crowded") and waits that look for a moment first.
class StreamsTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    auto sockets = ConnectedPair(Links::Use::kData);
    for (auto& its : sockets) {
      auto made = Streams::Make({3, 7}, std::move(its));
      ASSERT_TRUE(made.ok()) << made.error().message;
      (*made)->SetCrowded(GetParam());
      ends_.push_back(std::move(*made));
    }
  }

  std::vector<std::unique_ptr<Streams>> ends_;
};

// More both ways than the kernel holds, in messages of all sizes, by threads that wait for nothing
// else.
TEST_P(StreamsTest, MessagesArriveInOrderBothWays) {
  const std::vector<size_t> sizes = {1, 5000000, 0, 64, 3000000, 131073, 7};
  const size_t total = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  const auto exchange = [&](int node) {
    std::vector<char> out(total), in(total);
    for (size_t i = 0; i < total; ++i) out[i] = static_cast<char>(i * 31 + i / 997);
    Flight flight;
    size_t at = 0;
    for (const size_t size : sizes) {
      ends_[static_cast<size_t>(node)]->Receive(1 - node, in.data() + at, size, flight);
      ends_[static_cast<size_t>(node)]->Send(1 - node, out.data() + at, size, flight);
      at += size;
    }
    const MaybeError error = ends_[static_cast<size_t>(node)]->Await(flight, FromNow(kPatience));
    EXPECT_FALSE(error) << error->message;
    EXPECT_EQ(flight.open, 0);
    EXPECT_EQ(in, out);
  };
  std::thread other([&] { exchange(1); });
  exchange(0);
  other.join();
}

TEST_P(StreamsTest, WaitEndsWhenTheOtherSideIsGone) {
  Flight flight;
  char data[10];
  ends_[0]->Receive(1, data, sizeof(data), flight);
  ends_[1].reset();
  const MaybeError error = ends_[0]->Await(flight, FromNow(kPatience));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK);
  EXPECT_THAT(error->message, HasSubstr("lost the connection to rank 7"));
}

TEST_P(StreamsTest, WaitEndsAtItsDeadlineAndNamesWhoIsLate) {
  Flight flight;
  char data[10];
  ends_[0]->Receive(1, data, sizeof(data), flight);
  const MaybeError error = ends_[0]->Await(flight, FromNow(std::chrono::milliseconds(20)));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_TIMEOUT);
  EXPECT_THAT(error->message, HasSubstr("timed out waiting for rank 7"));
}

TEST_P(StreamsTest, AnotherThreadCanEndTheWait) {
  Flight flight;
  char data[10];
  ends_[0]->Receive(1, data, sizeof(data), flight);
  std::thread other([&] { ends_[0]->Interrupt(); });
  EXPECT_TRUE(ends_[0]->Await(flight, FromNow(kPatience)));
  other.join();
  EXPECT_TRUE(ends_[0]->Await(flight, FromNow(kPatience))) << "and all later ones";
}

TEST_P(StreamsTest, WhatHasComeCountsWhenTheWaitIsEnded) {
  Flight flight;
  char out[10] = "whatever", in[10];
  ends_[1]->Send(0, out, sizeof(out), flight);
  ASSERT_EQ(flight.open, 0) << "the kernel has it all";
  ends_[1].reset();
  ends_[0]->Interrupt();
  ends_[0]->Receive(1, in, sizeof(in), flight);
  const MaybeError error = ends_[0]->Await(flight, FromNow(kPatience));
  ASSERT_FALSE(error) << error->message;
  EXPECT_STREQ(in, out);
}

// As long as bytes come, a wait does not sleep: it must see its deadline all the same, and that it
// was interrupted.
class BusyStreamsTest : public StreamsTest {
 protected:
  void SetUp() override {
    StreamsTest::SetUp();
    if (HasFatalFailure()) return;
    for (int i = 0; i < 100000; ++i) ends_[0]->Receive(1, in_.data(), in_.size(), others_);
    ends_[0]->Receive(1, in_.data(), in_.size(), flight_);
    sender_ = std::thread([this] {
      Flight flight;
      for (int i = 0; i < 100000; ++i) ends_[1]->Send(0, out_.data(), out_.size(), flight);
      EXPECT_TRUE(ends_[1]->Await(flight, FromNow(kPatience)));
    });
  }
  void TearDown() override {
    if (!sender_.joinable()) return;
    ends_[1]->Interrupt();
    sender_.join();
  }

  std::vector<char> in_ = std::vector<char>(100000), out_ = in_;
  Flight flight_, others_;
  std::thread sender_;
};

TEST_P(BusyStreamsTest, WaitEndsAtItsDeadline) {
  const MaybeError error = ends_[0]->Await(flight_, FromNow(std::chrono::milliseconds(50)));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_TIMEOUT);
  EXPECT_LT(others_.open, 100000) << "nothing came";
}

TEST_P(BusyStreamsTest, AnotherThreadCanEndTheWait) {
  ASSERT_TRUE(ends_[0]->Await(flight_, FromNow(std::chrono::milliseconds(50))));
  std::thread other([&] { ends_[0]->Interrupt(); });
  const MaybeError error = ends_[0]->Await(flight_, FromNow(kPatience));
  other.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK);
  EXPECT_GT(others_.open, 0);
}

constexpr auto kNames = [](const auto& info) { return info.param ? "Crowded" : "Alone"; };
INSTANTIATE_TEST_SUITE_P(Waits, StreamsTest, testing::Bool(), kNames);
INSTANTIATE_TEST_SUITE_P(Waits, BusyStreamsTest, testing::Bool(), kNames);

}  // namespace
}  // namespace dtrain::runtime
