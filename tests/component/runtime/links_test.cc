// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/links.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/links_pair.h"

namespace dtrain::runtime {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Three nodes in this process, for which ranks 3, 7 and 8 speak.
class LinksTest : public testing::Test {
 protected:
  static constexpr size_t kNodes = 3;

  void SetUp() override {
    for (size_t node = 0; node < kNodes; ++node) {
      auto made = Links::Listen(static_cast<int>(node), {3, 7, 8}, "127.0.0.1");
      ASSERT_TRUE(made.ok()) << made.error().message;
      ends_.push_back(std::move(*made));
      endpoints_.push_back(ends_.back()->endpoint());
    }
  }

  // All at once; `late` is called before the last node begins.
  void Connect(const std::function<void()>& late = nullptr) {
    std::vector<std::thread> others;
    for (size_t node = 0; node < kNodes; ++node) {
      if (node == kNodes - 1 && late) late();
      others.emplace_back(
          [&, node] { errors_[node] = ends_[node]->Connect(endpoints_, FromNow(kPatience)); });
    }
    for (std::thread& other : others) other.join();
  }

  void ExpectConnected() {
    for (const MaybeError& error : errors_) ASSERT_FALSE(error) << error->message;
    for (const Links::Use use : {Links::Use::kData, Links::Use::kControl}) {
      std::vector<std::vector<Socket>> lines;
      for (auto& end : ends_) lines.push_back(end->Take(use));
      for (size_t a = 0; a < kNodes; ++a) {
        ASSERT_EQ(lines[a].size(), kNodes);
        EXPECT_FALSE(lines[a][a]);
        for (size_t b = 0; b < kNodes; ++b) {
          if (a == b) continue;
          // What one writes, the other one reads, and nobody else.
          const char sent = static_cast<char>(10 * a + b);
          EXPECT_EQ(write(lines[a][b].fd(), &sent, 1), 1);
          pollfd entry{lines[b][a].fd(), POLLIN, 0};
          ASSERT_EQ(poll(&entry, 1, 20000), 1);
          char received = -1;
          EXPECT_EQ(read(lines[b][a].fd(), &received, 1), 1);
          EXPECT_EQ(received, sent);
          EXPECT_NE(fcntl(lines[a][b].fd(), F_GETFD) & FD_CLOEXEC, 0);
        }
      }
    }
  }

  Socket ConnectStranger(size_t node) const {
    const auto address = SocketAddress("127.0.0.1", endpoints_[node].port);
    Socket stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(
        connect(stranger.fd(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)), 0);
    return stranger;
  }

  // The first node is gone, and another process listens at its port.
  Socket TakePortOfFirst() {
    ends_[0].reset();
    const auto address = SocketAddress("127.0.0.1", endpoints_[0].port);
    Socket other(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    EXPECT_EQ(setsockopt(other.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    EXPECT_EQ(bind(other.fd(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)), 0);
    EXPECT_EQ(listen(other.fd(), 8), 0);
    return other;
  }

  static void ExpectClosed(const Socket& stranger) {
    pollfd entry{stranger.fd(), POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, 20000), 1);
    char nothing;
    EXPECT_LE(read(stranger.fd(), &nothing, 1), 0);
  }

  std::vector<std::unique_ptr<Links>> ends_;
  std::vector<NodeEndpoint> endpoints_;
  MaybeError errors_[kNodes];
};

TEST_F(LinksTest, ConnectsEveryTwoNodesForEachUse) {
  Connect();
  ExpectConnected();
}

TEST_F(LinksTest, NobodyListensAfterwards) {
  Connect();
  const auto address = SocketAddress("127.0.0.1", endpoints_[0].port);
  const Socket late(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(connect(late.fd(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)), 0);
}

// C5. Whoever finds the port open is not taken for a node, and holds nobody up: with a reset, no
// byte, three bytes, a request, a megabyte of anything.
TEST_F(LinksTest, StrangersAreTurnedAway) {
  std::vector<Socket> silent, rude;
  for (size_t node = 0; node < kNodes; ++node) {
    {
      const Socket reset = ConnectStranger(node);
      const linger at_once{1, 0};
      ASSERT_EQ(setsockopt(reset.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
    }
    silent.push_back(ConnectStranger(node));
    silent.push_back(ConnectStranger(node));
    EXPECT_EQ(write(silent.back().fd(), "abc", 3), 3);
    for (const std::string& text :
         {std::string("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), std::string(1 << 20, '\x16')}) {
      rude.push_back(ConnectStranger(node));
      (void)send(rude.back().fd(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }
  Connect();
  ExpectConnected();
  for (const auto& strangers : {&silent, &rude}) {
    for (const Socket& stranger : *strangers) ExpectClosed(stranger);
  }
}

// Who knows how a card looks, but not the token, which only the job has.
TEST_F(LinksTest, AForgedCardIsRefused) {
  std::vector<Socket> forgers;
  for (uint32_t node = 0; node < 4; ++node) {
    forgers.push_back(ConnectStranger(0));
    char card[32] = {};
    const uint64_t magic = 0x64747261696e2d32;
    std::memcpy(card, &magic, sizeof(magic));
    std::memcpy(card + 24, &node, sizeof(node));
    EXPECT_EQ(write(forgers.back().fd(), card, sizeof(card)), 32);
  }
  Connect();
  ExpectConnected();
  for (const Socket& forger : forgers) ExpectClosed(forger);
}

// More than are let in at a time, again and again, before and while the nodes meet.
TEST_F(LinksTest, AFloodOfStrangersKeepsNobodyOut) {
  std::atomic<bool> over{false};
  std::atomic<int> came{0};
  std::thread flood([&] {
    std::vector<Socket> strangers;
    while (!over.load()) {
      const auto address =
          SocketAddress("127.0.0.1", endpoints_[static_cast<size_t>(came % 2)].port);
      Socket stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)connect(stranger.fd(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address));
      strangers.push_back(std::move(stranger));
      if (strangers.size() > 300) strangers.erase(strangers.begin());
      ++came;
    }
  });
  Connect([&] {
    const int before = came;
    while (came < before + 500) std::this_thread::yield();
  });
  over = true;
  flood.join();
  ExpectConnected();
}

// Its port has become another process's.
TEST_F(LinksTest, AnotherProcessAtThePortIsNotTakenForARank) {
  const Socket other = TakePortOfFirst();
  std::thread greets([&] {
    const Socket who(accept(other.fd(), nullptr, nullptr));
    EXPECT_EQ(write(who.fd(), "220 mail.example.org ESMTP\r\n", 28), 28);
    pollfd entry{who.fd(), POLLIN | POLLRDHUP, 0};
    EXPECT_EQ(poll(&entry, 1, 20000), 1);
  });
  const MaybeError error = ends_[1]->Connect(endpoints_, FromNow(kPatience));
  greets.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK);
  EXPECT_THAT(error->message,
              testing::AllOf(HasSubstr("cannot connect to rank 3 at 127.0.0.1 port "),
                             HasSubstr("a process of another job answered")));
}

TEST_F(LinksTest, OneWhoClosesEachTimeIsNamedInTheEnd) {
  const Socket other = TakePortOfFirst();
  std::atomic<bool> over{false};
  std::thread closes([&] {
    while (!over.load()) {
      pollfd entry{other.fd(), POLLIN, 0};
      if (poll(&entry, 1, 10) == 1) Socket(accept(other.fd(), nullptr, nullptr));
    }
  });
  const MaybeError error = ends_[1]->Connect(endpoints_, FromNow(kPatience));
  over = true;
  closes.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK);
  EXPECT_THAT(error->message, HasSubstr("cannot connect to rank 3 at 127.0.0.1 port "));
}

TEST_F(LinksTest, OneWhoDoesNotConnectIsNamed) {
  MaybeError error;
  std::thread other([&] { error = ends_[1]->Connect(endpoints_, FromNow(milliseconds(200))); });
  const MaybeError first = ends_[0]->Connect(endpoints_, FromNow(milliseconds(100)));
  other.join();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->code, DTRAIN_ERROR_TIMEOUT);
  EXPECT_THAT(first->message, HasSubstr("rank 8 has not connected"));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_TIMEOUT);
}

TEST_F(LinksTest, OneWhoDoesNotAnswerIsNamed) {
  const MaybeError error = ends_[1]->Connect(endpoints_, FromNow(milliseconds(100)));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_TIMEOUT);
  EXPECT_THAT(error->message,
              testing::AllOf(HasSubstr("cannot connect to rank 3 at 127.0.0.1 port "),
                             HasSubstr("it does not answer")));
}

TEST_F(LinksTest, OneWhoDoesNotListenIsNamed) {
  ends_[0].reset();
  const MaybeError error = ends_[1]->Connect(endpoints_, FromNow(kPatience));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK);
  EXPECT_THAT(error->message,
              testing::AllOf(HasSubstr("cannot connect to rank 3 at 127.0.0.1 port "),
                             HasSubstr("Connection refused")));
}

TEST(LinksListen, SaysWhereItCannot) {
  const auto name = Links::Listen(0, {0, 1}, "localhost");
  ASSERT_FALSE(name.ok());
  EXPECT_EQ(name.error().code, DTRAIN_ERROR_LAUNCHER);
  const auto foreign = Links::Listen(0, {0, 1}, "192.0.2.1");
  ASSERT_FALSE(foreign.ok());
  EXPECT_THAT(foreign.error().message, HasSubstr("cannot listen on 192.0.2.1: Cannot assign"));
}

}  // namespace
}  // namespace dtrain::runtime
