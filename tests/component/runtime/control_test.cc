// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/control.h"

#include <sys/socket.h>

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/links_pair.h"

namespace dtrain::runtime {
namespace {

using News = Control::News;
using std::chrono::milliseconds;

class ControlTest : public testing::Test {
 protected:
  void SetUp() override {
    auto sockets = ConnectedPair(Links::Use::kControl);
    raw_ = sockets[1][0].fd();
    for (auto& its : sockets) {
      auto made = Control::Make(std::move(its));
      ASSERT_TRUE(made.ok()) << made.error().message;
      ends_.push_back(std::move(*made));
    }
  }
  std::optional<News> Next() { return ends_[0]->Await(FromNow(kPatience)); }

  std::vector<std::unique_ptr<Control>> ends_;
  int raw_ = -1;  // of node 1, to say what no node says
};

TEST_F(ControlTest, WhatOneTellsTheOtherHears) {
  ends_[1]->TellLeaving({5, 1234567});
  ends_[1]->TellFailure({DTRAIN_ERROR_MISMATCH, "rank 5 asks for something else"}, 42);
  auto news = Next();
  ASSERT_TRUE(news);
  EXPECT_EQ(news->kind, News::kLeaving);
  EXPECT_EQ(news->node, 1);
  EXPECT_EQ(news->leaver.rank, 5);
  EXPECT_EQ(news->leaver.runs, 1234567u);
  news = Next();
  ASSERT_TRUE(news);
  EXPECT_EQ(news->kind, News::kFailed);
  EXPECT_EQ(news->error.code, DTRAIN_ERROR_MISMATCH);
  EXPECT_EQ(news->error.message, "rank 5 asks for something else");
  EXPECT_EQ(news->number, 42u);
  EXPECT_FALSE(ends_[0]->Await(FromNow(milliseconds(20))));
}

// The process may end right after it, with news of others that it has not read.
TEST_F(ControlTest, TheReasonArrivesBeforeTheEnd) {
  ends_[0]->TellLeaving({1, 1});
  ends_[1]->TellFailure({DTRAIN_ERROR_TIMEOUT, std::string(5000, 'x')}, 1);
  ends_[1]->Finish(FromNow(kPatience));
  ends_[1].reset();
  auto news = Next();
  ASSERT_TRUE(news);
  EXPECT_EQ(news->kind, News::kFailed);
  EXPECT_EQ(news->error.message, std::string(1000, 'x')) << "cut";
  news = Next();
  ASSERT_TRUE(news);
  EXPECT_EQ(news->kind, News::kLost);
  EXPECT_EQ(news->node, 1);
  EXPECT_FALSE(ends_[0]->Await(FromNow(milliseconds(20)))) << "it is lost once";
}

TEST_F(ControlTest, MessagesInPiecesAreWholeAndTextIsMadePrintable) {
  const uint32_t head[4] = {1, 99, 0, 3};
  std::string bytes(reinterpret_cast<const char*>(head), sizeof(head));
  bytes += "a\x1b\n";
  std::thread other([&] {
    for (const char c : bytes) {
      EXPECT_EQ(send(raw_, &c, 1, MSG_NOSIGNAL), 1);
    }
  });
  const auto news = Next();
  other.join();
  ASSERT_TRUE(news);
  EXPECT_EQ(news->kind, News::kFailed);
  EXPECT_EQ(news->error.code, DTRAIN_ERROR_NETWORK) << "99 is not a status";
  EXPECT_EQ(news->error.message, "a??");
}

TEST_F(ControlTest, WhatCannotBeReadIsALoss) {
  const uint32_t head[4] = {1, 1, 0, 0xffffffff};
  ASSERT_EQ(send(raw_, head, sizeof(head), MSG_NOSIGNAL), 16);
  const auto news = Next();
  ASSERT_TRUE(news);
  EXPECT_EQ(news->kind, News::kLost);
  EXPECT_EQ(news->error.message, "it sent an invalid message");
  // Nothing more is read from there.
  const uint32_t again[4] = {1, 1, 0, 0};
  ASSERT_EQ(send(raw_, again, sizeof(again), MSG_NOSIGNAL), 16);
  EXPECT_FALSE(ends_[0]->Await(FromNow(milliseconds(20))));
}

TEST_F(ControlTest, AnotherThreadCanEndTheWait) {
  std::thread other([&] { ends_[0]->Stop(); });
  EXPECT_FALSE(Next());
  other.join();
  EXPECT_FALSE(Next()) << "and all later ones";
}

// One that reads nothing, as a stopped process does, holds up nobody who tells it something.
TEST_F(ControlTest, OneThatDoesNotReadIsNotWaitedFor) {
  for (int i = 0; i < 10000; ++i)
    ends_[0]->TellFailure({DTRAIN_ERROR_NETWORK, std::string(1000, 'y')}, 1);
  const Deadline begin = std::chrono::steady_clock::now();
  ends_[0]->Finish(FromNow(milliseconds(50)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(50)) << "it waited for it";
}

}  // namespace
}  // namespace dtrain::runtime
