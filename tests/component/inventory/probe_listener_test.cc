// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include "tests/component/inventory/probe_fixture.h"

namespace dtrain::inventory {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ProbeListenerTest = ProbeTest;

TEST_F(ProbeListenerTest, ListenersHaveRepliesOfTheirOwn) {
  std::unique_ptr<ProbeListener> one = Listen();
  std::unique_ptr<ProbeListener> other = Listen();
  EXPECT_EQ(one->reply().size(), kProbeBytes);
  EXPECT_NE(one->reply(), other->reply());
}

// C5: whatever else connects gets no byte back and is dropped; probes go on meanwhile.
TEST_F(ProbeListenerTest, StrangersAreDroppedWithoutAByte) {
  EXPECT_LE(ProbeListener::Options().token_timeout, seconds(10));
  std::unique_ptr<ProbeListener> listener = Listen({.token_timeout = milliseconds(300)});
  const std::string tls_hello =
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + os::RandomBytes(506);
  std::string nearly = greeting_;
  nearly.back() = nearly.back() == '0' ? '1' : '0';
  const std::vector<std::pair<std::string, std::string>> strangers = {
      {"no bytes", ""},
      {"3 bytes", "abc"},
      {"HTTP", "GET / HTTP/1.1\r\nHost: node1\r\nUser-Agent: scan\r\n\r\n"},
      {"short HTTP", "GET / HTTP/1.0\r\n\r\n"},
      {"TLS", tls_hello},
      {"1 MB random", os::RandomBytes(1 << 20)},
      {"the token without a greeting", token_},
      {"part of the greeting", greeting_.substr(0, 31)},
      {"nearly the greeting", nearly},
      {"the greeting and more", greeting_ + "x"},
  };
  for (const auto& [name, bytes] : strangers) {
    os::UniqueFd client = Client(listener->port());
    EXPECT_EQ(Exchange(client.get(), bytes), "") << name;
    EXPECT_TRUE(ProbeOne("127.0.0.1", listener->port(), listener->reply()).reached()) << name;
  }
  EXPECT_TRUE(RunUntil([&] { return listener->pending() == 0; }));
}

// C5
TEST_F(ProbeListenerTest, ResetConnectionsDoNoHarm) {
  std::unique_ptr<ProbeListener> listener = Listen();
  linger reset{1, 0};
  for (int i = 0; i < 20; ++i) {
    os::UniqueFd client = Client(listener->port());
    if (i % 2 == 0) loop_.context().poll();  // half of them are accepted before the reset
    setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }
  EXPECT_TRUE(ProbeOne("127.0.0.1", listener->port(), listener->reply()).reached());
  EXPECT_TRUE(RunUntil([&] { return listener->pending() == 0; }));
}

TEST_F(ProbeListenerTest, AGreetingInSmallPiecesIsTaken) {
  std::unique_ptr<ProbeListener> listener = Listen();
  os::UniqueFd client = Client(listener->port());
  int one = 1;
  setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  for (size_t i = 0; i + 1 < greeting_.size(); ++i) {
    ASSERT_EQ(send(client.get(), &greeting_[i], 1, MSG_NOSIGNAL), 1);
    loop_.context().poll();
  }
  EXPECT_EQ(Exchange(client.get(), greeting_.substr(greeting_.size() - 1)), listener->reply());
}

// C15
TEST_F(ProbeListenerTest, AClientThatNeverReadsIsDroppedToo) {
  std::unique_ptr<ProbeListener> listener = Listen();
  os::UniqueFd client = Client(listener->port());
  ASSERT_EQ(send(client.get(), greeting_.data(), greeting_.size(), MSG_NOSIGNAL), 79);
  EXPECT_TRUE(ProbeOne("127.0.0.1", listener->port(), listener->reply()).reached());
  EXPECT_TRUE(RunUntil([&] { return listener->pending() == 0; }));
}

TEST_F(ProbeListenerTest, AmongTooManySilentConnectionsTheOldestGivesWay) {
  std::unique_ptr<ProbeListener> listener =
      Listen({.token_timeout = seconds(60), .max_pending = 8});
  std::vector<os::UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Client(listener->port()));
  EXPECT_TRUE(ProbeOne("127.0.0.1", listener->port(), listener->reply()).reached());
  EXPECT_LE(listener->pending(), 8u);
  EXPECT_EQ(Exchange(silent.front().get(), ""), "");
  // The youngest still has its chance.
  EXPECT_EQ(Exchange(silent.back().get(), greeting_), listener->reply());
}

// H1: out of descriptors, the listener gives up silent connections and serves on.
TEST_F(ProbeListenerTest, WithFewDescriptorsTheOldestSilentConnectionsGiveWay) {
  Rehearse();
  std::unique_ptr<ProbeListener> listener = Listen({.token_timeout = seconds(60)});
  std::vector<os::UniqueFd> silent;
  for (int i = 0; i < 30; ++i) silent.push_back(Client(listener->port()));
  os::UniqueFd honest = Client(listener->port());
  LowLimit limit(5);
  EXPECT_EQ(Exchange(honest.get(), greeting_), listener->reply());
}

// H1: with none at all it waits for better times.
TEST_F(ProbeListenerTest, WithoutDescriptorsTheListenerAnswersOnceThereAreSomeAgain) {
  Rehearse();
  std::unique_ptr<ProbeListener> listener = Listen();
  os::UniqueFd honest = Client(listener->port());
  std::optional<LowLimit> limit(std::in_place, 0);
  loop::Timer relief(loop_);
  relief.After(milliseconds(100), [&] { limit.reset(); });
  EXPECT_EQ(Exchange(honest.get(), greeting_), listener->reply());
  EXPECT_FALSE(limit.has_value());
}

}  // namespace
}  // namespace dtrain::inventory
