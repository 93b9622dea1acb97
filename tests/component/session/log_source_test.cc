// SPDX-License-Identifier: Apache-2.0
// Output as a shepherd sends it, who is its user's and may be anything.
#include "agent/session/log_source.h"

#include <gmock/gmock.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "tests/component/session/log_shepherd.h"

namespace dtrain::session {
namespace {

using ::testing::HasSubstr;

class LogSourceTest : public ::testing::Test {
 protected:
  LogSourceTest() {
    LogSource::Handlers handlers;
    handlers.on_piece = [this](const v1::LogPosition& at, const link::SharedBytes& data) {
      at_ = at;
      pieces_.emplace_back(data.view());
    };
    handlers.on_over = [this](absl::StatusOr<v1::LogsEnd> how) {
      EXPECT_FALSE(over_.has_value());
      over_ = std::move(how);
    };
    source_.emplace(loop_, shepherd_.Take(), std::move(handlers));
  }
  bool Until(const std::function<bool()>& holds, Duration limit = std::chrono::seconds(20)) {
    const TimePoint end = Clock::now() + limit;
    while (!holds()) {
      if (loop_.context().run_one_until(end) == 0) return holds();
    }
    return true;
  }
  // Why it was given up.
  std::string Broken() {
    source_->Next();
    EXPECT_TRUE(Until([&] { return over_.has_value(); }));
    EXPECT_TRUE(absl::IsDataLoss(over_->status())) << over_->status();
    EXPECT_TRUE(pieces_.empty());
    return std::string(over_->status().message());
  }

  loop::Loop loop_;
  LogShepherd shepherd_;
  std::optional<LogSource> source_;
  v1::LogPosition at_;
  std::vector<std::string> pieces_;
  std::optional<absl::StatusOr<v1::LogsEnd>> over_;
};

TEST_F(LogSourceTest, APieceComesWhenItIsAskedForAndIsAcknowledgedWithTheNext) {
  shepherd_.Send(LogShepherd::Piece(3, 0, "one"));
  shepherd_.Send(LogShepherd::Piece(4, 7, "two"));
  shepherd_.Send(LogShepherd::EndOf(10, true));
  source_->Next();
  ASSERT_TRUE(Until([&] { return pieces_.size() == 1; }));
  EXPECT_EQ(pieces_[0], "one");
  EXPECT_EQ(shepherd_.acked(), 0u);
  source_->Next();
  ASSERT_TRUE(Until([&] { return pieces_.size() == 2; }));
  EXPECT_EQ(shepherd_.acked(), 1u);
  EXPECT_EQ(at_.rank(), 4u);
  EXPECT_EQ(at_.offset(), 7u);
  source_->Next();
  ASSERT_TRUE(Until([&] { return over_.has_value(); }));
  ASSERT_TRUE(over_->ok()) << over_->status();
  EXPECT_EQ((*over_)->size(), 10u);
  EXPECT_EQ(shepherd_.acked(), 2u);
}

// It has been read while the piece before it was on its way.
TEST_F(LogSourceTest, AnEndWaitsForThePieceBeforeItToBeTaken) {
  shepherd_.Send(LogShepherd::Piece(3, 0, "one"));
  shepherd_.Send(LogShepherd::EndOf(3, true));
  source_->Next();
  ASSERT_TRUE(Until([&] { return pieces_.size() == 1; }));
  for (int i = 0; i < 10; ++i) loop_.context().poll();
  EXPECT_FALSE(over_.has_value());
  source_->Next();
  ASSERT_TRUE(over_.has_value());
  EXPECT_TRUE(over_->ok()) << over_->status();
}

TEST_F(LogSourceTest, WhatBreaksItWaitsToo) {
  shepherd_.Send(LogShepherd::Piece(3, 0, "one"));
  shepherd_.Send(LogShepherd::FrameOf("xx"));
  source_->Next();
  ASSERT_TRUE(Until([&] { return pieces_.size() == 1; }));
  for (int i = 0; i < 10; ++i) loop_.context().poll();
  EXPECT_FALSE(over_.has_value());
  source_->Next();
  ASSERT_TRUE(over_.has_value());
  EXPECT_TRUE(absl::IsDataLoss(over_->status())) << over_->status();
  EXPECT_EQ(pieces_.size(), 1u);
}

// A frame may come in any parts.
TEST_F(LogSourceTest, AFrameThatComesByteByByteIsTheSame) {
  source_->Next();
  for (const char byte : LogShepherd::Piece(3, 5, "slowly")) {
    EXPECT_TRUE(pieces_.empty());
    shepherd_.Send(std::string(1, byte));
    loop_.context().poll();
  }
  ASSERT_TRUE(Until([&] { return !pieces_.empty(); }));
  EXPECT_EQ(pieces_[0], "slowly");
}

// Whatever it sends, what nobody asks for stays with it.
TEST_F(LogSourceTest, AFloodStaysInTheSocket) {
  const std::string piece = LogShepherd::Piece(3, 0, std::string(link::kMostLogData, 'x'));
  source_->Next();
  size_t sent = shepherd_.Flood(piece);
  ASSERT_TRUE(Until([&] { return pieces_.size() == 1 || (sent += shepherd_.Flood(piece)) == 0; }));
  for (int i = 0; i < 100; ++i) {
    sent += shepherd_.Flood("x");
    loop_.context().poll();
  }
  EXPECT_LE(pieces_.size(), 1u);
  EXPECT_LT(sent, 2u << 20);
}

TEST_F(LogSourceTest, WhatIsNoFrameOfOutputBreaksIt) {
  const std::string large(link::kMostLogData + 1, 'x');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {LogShepherd::FrameOf("xx", link::Channel::kJob), "another channel"},
      {LogShepherd::FrameOf(""), "it has 0 bytes"},
      {LogShepherd::Piece(1, 0, large), "524289 bytes, at most 524288"},
      {LogShepherd::FrameOf(std::string(1 << 20, 'x')), "it has 1048576 bytes"},
      {std::string(24, 'x'), "invalid frame: size"},
      {LogShepherd::FrameOf("xx"), "its head has"},
      {LogShepherd::Piece(1, 0, ""), "no bytes"},
  };
  for (const auto& [bytes, why] : cases) {
    LogShepherd shepherd;
    std::optional<absl::Status> broken;
    LogSource::Handlers handlers;
    handlers.on_piece = [](const v1::LogPosition&, const link::SharedBytes&) { FAIL(); };
    handlers.on_over = [&](const absl::StatusOr<v1::LogsEnd>& how) { broken = how.status(); };
    LogSource source(loop_, shepherd.Take(), std::move(handlers));
    source.Next();
    for (size_t at = 0; !broken.has_value();) {
      at += shepherd.Offer(bytes.substr(at));
      ASSERT_TRUE(at < bytes.size() || Until([&] { return broken.has_value(); })) << why;
      loop_.context().poll();
    }
    EXPECT_TRUE(absl::IsDataLoss(*broken)) << *broken;
    EXPECT_THAT(broken->message(), HasSubstr(why));
  }
}

TEST_F(LogSourceTest, ADescriptorBreaksIt) {
  shepherd_.SendDescriptor(LogShepherd::Piece(3, 0, "with"));
  EXPECT_THAT(Broken(), HasSubstr("descriptor"));
}

TEST_F(LogSourceTest, OneThatReadsNothingBreaksIt) {
  source_->Next();
  ASSERT_TRUE(Until([&] {
    shepherd_.Flood(LogShepherd::Piece(3, 0, "x"));
    if (!std::exchange(pieces_, {}).empty()) source_->Next();
    return over_.has_value();
  }));
  EXPECT_TRUE(absl::IsDataLoss(over_->status())) << over_->status();
}

// What is in the socket is read first.
TEST_F(LogSourceTest, AfterTheShepherdsDeathWhatIsThereIsRead) {
  shepherd_.Send(LogShepherd::Piece(3, 0, "last words"));
  shepherd_.Send(LogShepherd::Piece(3, 10, "half").substr(0, 30));
  shepherd_.Die();
  source_->Next();
  ASSERT_TRUE(Until([&] { return !pieces_.empty(); }));
  EXPECT_EQ(pieces_[0], "last words");
  source_->Next();
  ASSERT_TRUE(Until([&] { return over_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(over_->status())) << over_->status();
}

TEST_F(LogSourceTest, ItMayBeDestroyedByItsPiece) {
  std::optional<LogSource> source;
  LogShepherd shepherd;
  LogSource::Handlers handlers;
  handlers.on_piece = [&](const v1::LogPosition&, const link::SharedBytes&) { source.reset(); };
  source.emplace(loop_, shepherd.Take(), std::move(handlers));
  shepherd.Send(LogShepherd::Piece(3, 0, "x"));
  source->Next();
  EXPECT_TRUE(Until([&] { return !source.has_value(); }));
}

}  // namespace
}  // namespace dtrain::session
