// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/streams.h"

#include <poll.h>
#include <unistd.h>

#include <numeric>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::runtime {
namespace {

using testing::HasSubstr;

Deadline In(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }
constexpr std::chrono::seconds kLong{30};

// Two ends in this process: rank 3 speaks for node 0, rank 7 for node 1.
class StreamsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int node = 0; node < 2; ++node) {
      auto made = Streams::Make(node, {3, 7}, "127.0.0.1");
      ASSERT_TRUE(made.ok()) << made.error().message;
      ends_.push_back(std::move(*made));
    }
    endpoints_ = {{"127.0.0.1", {ends_[0]->port(), 0}}, {"127.0.0.1", {0, ends_[1]->port()}}};
  }

  void Connect() {
    MaybeError errors[2];
    std::thread other([&] { errors[1] = ends_[1]->Connect(endpoints_, In(kLong)); });
    errors[0] = ends_[0]->Connect(endpoints_, In(kLong));
    other.join();
    for (const MaybeError& error : errors) ASSERT_FALSE(error) << error->message;
  }

  int ConnectStranger() const {
    const auto address = SocketAddress("127.0.0.1", ends_[0]->port());
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)), 0);
    return fd;
  }

  std::vector<std::unique_ptr<Streams>> ends_;
  std::vector<NodeEndpoint> endpoints_;
};

// More both ways than the kernel holds, in messages of all sizes, by threads that wait for nothing
// else.
TEST_F(StreamsTest, MessagesArriveInOrderBothWays) {
  Connect();
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
    const MaybeError error = ends_[static_cast<size_t>(node)]->Await(flight, In(kLong));
    EXPECT_FALSE(error) << error->message;
    EXPECT_EQ(flight.open, 0);
    EXPECT_EQ(in, out);
  };
  std::thread other([&] { exchange(1); });
  exchange(0);
  other.join();
}

// Whoever finds the port open is not taken for a node, and holds nobody up.
TEST_F(StreamsTest, StrangersAreNotAdmitted) {
  const int silent = ConnectStranger();
  const int rude = ConnectStranger();
  EXPECT_EQ(write(rude, "GET / HTTP/1.0\r\n\r\n", 18), 18);
  Connect();
  pollfd entry{rude, POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 20000), 1);
  char nothing;
  EXPECT_LE(read(rude, &nothing, 1), 0);
  close(silent);
  close(rude);
}

TEST_F(StreamsTest, OneWhoDoesNotConnectIsNamed) {
  const MaybeError error = ends_[0]->Connect(endpoints_, In(std::chrono::milliseconds(20)));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_TIMEOUT);
  EXPECT_THAT(error->message, HasSubstr("rank 7 has not connected"));
}

TEST_F(StreamsTest, OneWhoDoesNotListenIsNamed) {
  ends_[0].reset();
  const MaybeError error = ends_[1]->Connect(endpoints_, In(kLong));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK);
  EXPECT_THAT(error->message, HasSubstr("cannot connect to rank 3 at 127.0.0.1 port "));
}

TEST_F(StreamsTest, WaitEndsWhenTheOtherSideIsGone) {
  Connect();
  Flight flight;
  char data[10];
  ends_[0]->Receive(1, data, sizeof(data), flight);
  ends_[1].reset();
  const MaybeError error = ends_[0]->Await(flight, In(kLong));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK);
  EXPECT_THAT(error->message, HasSubstr("lost the connection to rank 7"));
}

TEST_F(StreamsTest, WaitEndsAtItsDeadlineAndNamesWhoIsLate) {
  Connect();
  Flight flight;
  char data[10];
  ends_[0]->Receive(1, data, sizeof(data), flight);
  const MaybeError error = ends_[0]->Await(flight, In(std::chrono::milliseconds(20)));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_TIMEOUT);
  EXPECT_THAT(error->message, HasSubstr("timed out waiting for rank 7"));
}

TEST_F(StreamsTest, AnotherThreadCanEndTheWait) {
  Connect();
  Flight flight;
  char data[10];
  ends_[0]->Receive(1, data, sizeof(data), flight);
  std::thread other([&] { ends_[0]->Interrupt(); });
  EXPECT_TRUE(ends_[0]->Await(flight, In(kLong)));
  other.join();
  EXPECT_TRUE(ends_[0]->Await(flight, In(kLong))) << "and all later ones";
}

}  // namespace
}  // namespace dtrain::runtime
