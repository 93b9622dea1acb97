// SPDX-License-Identifier: Apache-2.0
// What the two ends of `dtrain migrate` say to each other, over whatever a login shell prints and a
// broken connection leaves.
#include "launcher/migrate/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "common/os/fd.h"
#include "dtrain/v1/migration.pb.h"

namespace dtrain::migrate {
namespace {

using testing::HasSubstr;

class WireTest : public testing::Test {
 protected:
  WireTest() {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    ours_ = std::move(pair->first);
    theirs_ = std::move(pair->second);
  }
  static TimePoint Soon() { return In(std::chrono::seconds(20)); }
  void TheySay(absl::string_view bytes) {
    ASSERT_EQ(write(theirs_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }

  os::UniqueFd ours_, theirs_;
};

TEST_F(WireTest, MessagesComeThrough) {
  Wire wire(ours_.get(), ours_.get(), nullptr);
  Wire other(theirs_.get(), theirs_.get(), nullptr);
  TheySay("Welcome to login2\nLast login: never\n");
  ASSERT_TRUE(other.SendHello(Soon()).ok());
  ASSERT_TRUE(wire.AwaitHello(Soon()).ok());
  v1::ToDestination said, heard;
  said.mutable_piece()->set_name("journal");
  said.mutable_piece()->set_bytes(std::string(3 << 20, 'x'));
  // More than a socket takes.
  std::thread sender([&] { EXPECT_TRUE(wire.Send(said, Soon()).ok()); });
  EXPECT_TRUE(other.Receive(heard, Soon()).ok());
  sender.join();
  EXPECT_EQ(heard.SerializeAsString(), said.SerializeAsString());
  said.mutable_take();
  ASSERT_TRUE(wire.Send(said, Soon()).ok());
  ASSERT_TRUE(other.Receive(heard, Soon()).ok());
  EXPECT_TRUE(heard.has_take());
}

TEST_F(WireTest, AnotherVersionIsTold) {
  Wire wire(ours_.get(), ours_.get(), nullptr);
  TheySay(
      "\x01"
      "dtrain migrates 7\n");
  const absl::Status status = wire.AwaitHello(Soon());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("dtrain migrates 7"));
}

TEST_F(WireTest, WhatIsNoDtrainIsTold) {
  Wire wire(ours_.get(), ours_.get(), nullptr);
  std::thread sender([&] {
    const std::string noise(80 << 10, 'y');
    (void)!send(theirs_.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
  });
  const absl::Status status = wire.AwaitHello(Soon());
  ours_.Reset();
  sender.join();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST_F(WireTest, AnEndIsTold) {
  Wire wire(ours_.get(), ours_.get(), nullptr);
  TheySay("bash: dtrain: not found\n");
  theirs_.Reset();
  EXPECT_TRUE(absl::IsUnavailable(wire.AwaitHello(Soon())));
}

TEST_F(WireTest, HalfAMessageIsNone) {
  Wire wire(ours_.get(), ours_.get(), nullptr);
  TheySay(
      absl::string_view("\0\0\0\x09"
                        "abc",
                        7));
  theirs_.Reset();
  v1::ToSource message;
  EXPECT_TRUE(absl::IsUnavailable(wire.Receive(message, Soon())));
}

TEST_F(WireTest, GarbageTakesNoMemory) {
  Wire wire(ours_.get(), ours_.get(), nullptr);
  TheySay("\xff\xff\xff\xff");
  v1::ToSource message;
  EXPECT_TRUE(absl::IsInvalidArgument(wire.Receive(message, Soon())));
  TheySay(
      absl::string_view("\0\0\0\x03"
                        "\xff\xff\xff",
                        7));
  EXPECT_TRUE(absl::IsInvalidArgument(wire.Receive(message, Soon())));
}

TEST_F(WireTest, SilenceHasAnEnd) {
  Wire wire(ours_.get(), ours_.get(), nullptr);
  v1::ToSource message;
  EXPECT_TRUE(absl::IsDeadlineExceeded(wire.Receive(message, In(std::chrono::milliseconds(20)))));
  // Nor does one that takes nothing hold us.
  v1::ToDestination much;
  much.mutable_piece()->set_bytes(std::string(4 << 20, 'x'));
  ASSERT_TRUE(os::SetNonBlocking(ours_.get(), true).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(wire.Send(much, In(std::chrono::milliseconds(20)))));
}

TEST_F(WireTest, IsInterruptedUntilItIsTooLate) {
  volatile std::sig_atomic_t interrupted = SIGINT;
  Wire wire(ours_.get(), ours_.get(), &interrupted);
  v1::ToSource message;
  EXPECT_TRUE(absl::IsCancelled(wire.Receive(message, Soon())));
  wire.InterruptBy(nullptr);
  Wire other(theirs_.get(), theirs_.get(), nullptr);
  v1::ToSource said;
  said.mutable_taken();
  ASSERT_TRUE(other.Send(said, Soon()).ok());
  EXPECT_TRUE(wire.Receive(message, Soon()).ok());
  EXPECT_TRUE(message.has_taken());
}

}  // namespace
}  // namespace dtrain::migrate
