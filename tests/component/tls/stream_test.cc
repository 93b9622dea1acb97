// SPDX-License-Identifier: Apache-2.0
// Bytes both ways between two Streams, or one and openssl.
#include "common/tls/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <functional>

#include "common/os/fd.h"
#include "tests/component/tls/harness.h"

namespace dtrain::tls {
namespace {

using testing::HasSubstr;

// What was written into or read from one end, by SHA-256.
class Counted {
 public:
  Counted() { EVP_DigestInit_ex(digest_, EVP_sha256(), nullptr); }
  ~Counted() { EVP_MD_CTX_free(digest_); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  void Add(const char* data, size_t size) {
    EVP_DigestUpdate(digest_, data, size);
    bytes_ += size;
  }
  size_t bytes() const { return bytes_; }
  std::string Sum() {
    std::string out(32, '\0');
    EVP_DigestFinal_ex(digest_, reinterpret_cast<unsigned char*>(out.data()), nullptr);
    return out;
  }

 private:
  EVP_MD_CTX* digest_ = EVP_MD_CTX_new();
  size_t bytes_ = 0;
};

class PumpTest : public StreamTest {
 protected:
  // Writes as much of `total` as is taken now; ends that way when all is written.
  void Feed(int fd, Counted& sent, size_t total) {
    while (sent.bytes() < total) {
      const size_t want = std::min(noise_.size() - sent.bytes() % 977, total - sent.bytes());
      const char* data = noise_.data() + sent.bytes() % 977;
      const ssize_t n = send(fd, data, want, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) return;
      sent.Add(data, static_cast<size_t>(n));
    }
    shutdown(fd, SHUT_WR);
  }
  // False at the end of the stream.
  bool Eat(int fd, Counted& received) {
    char buffer[65536];
    for (;;) {
      const ssize_t n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n <= 0) return n < 0 && errno == EAGAIN;
      received.Add(buffer, static_cast<size_t>(n));
    }
  }
  void JoinAsNode() { Join(*AliceContext(), *NodeContext()); }

  const std::string noise_ = os::RandomBytes(128 << 10);
};

TEST_F(PumpTest, EachKnowsTheOther) {
  JoinAsNode();
  ASSERT_TRUE(client_.ready && server_.ready) << client_.why() << "; " << server_.why();
  EXPECT_EQ(server_.ready->peer.kind, Kind::kUser);
  EXPECT_EQ(server_.ready->peer.name, "alice");
  EXPECT_EQ(server_.ready->alpn, "h2");
  EXPECT_EQ(client_.ready->peer.kind, Kind::kNode);
  EXPECT_EQ(client_.ready->peer.name, "gpu01");
  EXPECT_EQ(client_.ready->alpn, "h2");
  ASSERT_TRUE(Send(client_.plain(), "hello"));
  EXPECT_TRUE(AwaitText(server_.plain(), "hello"));
  ASSERT_TRUE(Send(server_.plain(), "hello, alice"));
  EXPECT_TRUE(AwaitText(client_.plain(), "hello, alice"));
}

TEST_F(PumpTest, ByAddressToo) {
  const auto alice = AliceContext();
  const auto node = Load(Side::kServer, lab_.Node("gpu01", "--ip 127.0.0.1 --ip fe80::1"));
  for (const absl::string_view name :
       {"127.0.0.1", "fe80::1", "[fe80::1]", "fe80::1%eth0", "GPU01"}) {
    client_ = End{};
    server_ = End{};
    Join(*alice, *node, name);
    EXPECT_TRUE(client_.ready.has_value()) << name << ": " << client_.why();
  }
}

TEST_F(PumpTest, OneHundredMegabytesBothWays) {
  JoinAsNode();
  ASSERT_TRUE(client_.ready && server_.ready);
  constexpr size_t kTotal = 100'000'000;
  Counted up_sent, up_received, down_sent, down_received;
  bool up = true, down = true;
  ASSERT_TRUE(Await([&] {
    if (up_sent.bytes() < kTotal) Feed(client_.plain(), up_sent, kTotal);
    if (down_sent.bytes() < kTotal) Feed(server_.plain(), down_sent, kTotal);
    up = up && Eat(server_.plain(), up_received);
    down = down && Eat(client_.plain(), down_received);
    return !up && !down;
  })) << up_received.bytes()
      << " and " << down_received.bytes() << " of " << kTotal;
  EXPECT_EQ(up_received.bytes(), kTotal);
  EXPECT_EQ(down_received.bytes(), kTotal);
  EXPECT_EQ(up_sent.Sum(), up_received.Sum());
  EXPECT_EQ(down_sent.Sum(), down_received.Sum());
  ASSERT_TRUE(BothClosed());
  EXPECT_TRUE(client_.closed->ok()) << *client_.closed;
  EXPECT_TRUE(server_.closed->ok()) << *server_.closed;
}

// A reader that reads nothing stops the writer: what is on its way is what the kernel and two small
// buffers hold. The other direction is not held up.
TEST_F(PumpTest, ASlowReaderStopsTheWriter) {
  os::UniqueFd dialled = Dial();
  os::UniqueFd answered = Answer();
  const int small = 64 << 10;
  setsockopt(dialled.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  setsockopt(answered.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  Serve(server_, *NodeContext(), std::move(answered));
  Ask(client_, *AliceContext(), std::move(dialled));
  ASSERT_TRUE(Await([&] { return client_.ready && server_.ready; }));
  constexpr size_t kTotal = 50'000'000;
  Counted sent, received;
  // Until neither side has had anything to do for a while.
  size_t idle_at = 0;
  do {
    idle_at = sent.bytes();
    Feed(client_.plain(), sent, kTotal);
    while (loop_.context().run_one_for(std::chrono::milliseconds(100)) > 0) {
    }
  } while (sent.bytes() > idle_at);
  EXPECT_LT(sent.bytes(), 4u << 20);
  ASSERT_TRUE(Send(server_.plain(), "still here"));
  EXPECT_TRUE(AwaitText(client_.plain(), "still here"));
  // Nothing was lost by it.
  ASSERT_TRUE(Await([&] {
    if (sent.bytes() < kTotal) Feed(client_.plain(), sent, kTotal);
    return !Eat(server_.plain(), received);
  }));
  EXPECT_EQ(received.bytes(), kTotal);
  EXPECT_EQ(sent.Sum(), received.Sum());
}

TEST_F(PumpTest, AnAnswerAfterTheQuestionHasEnded) {
  JoinAsNode();
  ASSERT_TRUE(client_.ready && server_.ready);
  ASSERT_TRUE(Send(client_.plain(), "what?"));
  shutdown(client_.plain(), SHUT_WR);
  std::string question;
  ASSERT_TRUE(Await([&] { return !Receive(server_.plain(), question); }));
  EXPECT_EQ(question, "what?");
  Counted sent, received;
  ASSERT_TRUE(Await([&] {
    if (sent.bytes() < 3'000'000) Feed(server_.plain(), sent, 3'000'000);
    return !Eat(client_.plain(), received);
  }));
  EXPECT_EQ(sent.Sum(), received.Sum());
  ASSERT_TRUE(BothClosed());
  EXPECT_TRUE(client_.closed->ok() && server_.closed->ok()) << client_.why() << server_.why();
}

// As gRPC does: the descriptor is closed with what was last written still on its way.
TEST_F(PumpTest, ClosedAfterTheLastWord) {
  JoinAsNode();
  ASSERT_TRUE(client_.ready && server_.ready);
  const std::string last(150'000, 'x');
  ASSERT_TRUE(Send(server_.plain(), last));
  server_.ready->plain.Reset();
  std::string text;
  ASSERT_TRUE(Await([&] { return !Receive(client_.plain(), text); }));
  EXPECT_EQ(text, last);
  client_.ready->plain.Reset();
  ASSERT_TRUE(BothClosed());
  EXPECT_TRUE(client_.closed->ok() && server_.closed->ok()) << client_.why() << server_.why();
}

TEST_F(PumpTest, APeerThatTakesNothingIsGivenUp) {
  Limits limits;
  limits.farewell = std::chrono::milliseconds(50);
  os::UniqueFd dialled = Dial();
  Serve(server_, *NodeContext(), Answer(), limits);
  {
    End peer;
    Ask(peer, *AliceContext(), os::UniqueFd(dup(dialled.get())));
    ASSERT_TRUE(Await([&] { return peer.ready && server_.ready; }));
  }
  // The peer's TLS is gone, its socket is not, and nobody reads from it.
  Counted sent;
  ASSERT_TRUE(Await([&] {
    const size_t before = sent.bytes();
    Feed(server_.plain(), sent, 100'000'000);
    return sent.bytes() == before && loop_.context().poll() == 0;
  }));
  server_.ready->plain.Reset();
  ASSERT_TRUE(Await([&] { return server_.closed.has_value(); }));
}

TEST_F(PumpTest, AConnectionThatBreaksOffIsNoEnd) {
  JoinAsNode();
  ASSERT_TRUE(client_.ready && server_.ready);
  ASSERT_TRUE(Send(client_.plain(), "half of a mess"));
  ASSERT_TRUE(AwaitText(server_.plain(), "half of a mess"));
  client_.stream.reset();
  ASSERT_TRUE(Await([&] { return server_.closed.has_value(); }));
  EXPECT_EQ(server_.closed->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.why(), "it ended the connection without saying so");
  std::string text;
  EXPECT_FALSE(Receive(server_.plain(), text));
}

TEST_F(PumpTest, EitherCallbackMayDestroyIt) {
  const auto alice = AliceContext();
  const auto node = NodeContext();
  End client, server;
  os::UniqueFd dialled = Dial();
  bool ready = false, closed = false;
  server.stream = Stream::Accept(loop_, *node, Answer(),
                                 {[&](Ready) {
                                    ready = true;
                                    server.stream.reset();
                                  },
                                  [](absl::Status) { FAIL() << "it was destroyed"; }});
  client.stream = Stream::Connect(loop_, *alice, std::move(dialled), "gpu01", "h2",
                                  {[](Ready) {},
                                   [&](absl::Status) {
                                     closed = true;
                                     client.stream.reset();
                                   }});
  EXPECT_TRUE(Await([&] { return ready && closed; }));
}

TEST_F(PumpTest, NewFilesAreForNewConnections) {
  const Files files = lab_.Node("gpu01");
  const auto alice = AliceContext();
  auto node = Load(Side::kServer, files);
  const std::string before = node->own().serial;
  Join(*alice, *node);
  ASSERT_TRUE(client_.ready && server_.ready);
  lab_.Pki("renew", "gpu01");
  node = Load(Side::kServer, files);  // the old one is gone but for the connection
  EXPECT_NE(node->own().serial, before);
  End client, server;
  os::UniqueFd dialled = Dial();
  Serve(server, *node, Answer());
  Ask(client, *alice, std::move(dialled));
  ASSERT_TRUE(Await([&] { return client.ready && server.ready; }));
  EXPECT_EQ(client_.ready->peer.serial, before);
  EXPECT_EQ(client.ready->peer.serial, node->own().serial);
  ASSERT_TRUE(Send(client_.plain(), "old"));
  EXPECT_TRUE(AwaitText(server_.plain(), "old"));
  ASSERT_TRUE(Send(client.plain(), "new"));
  EXPECT_TRUE(AwaitText(server.plain(), "new"));
}

TEST_F(PumpTest, WithOpenSslOnTheOtherSide) {
  ServeOpenSsl(NodeContext(), lab_.User("alice"), "-quiet -nocommands -servername gpu01");
  ASSERT_TRUE(server_.ready.has_value()) << server_.why() << Contents(log());
  ASSERT_TRUE(Send(server_.plain(), "hello, openssl\n"));
  EXPECT_TRUE(Await([&] { return Contents(log()).find("hello, openssl") != std::string::npos; }))
      << Contents(log());
  ASSERT_EQ(write(stdin_.get(), "and back\n", 9), 9);
  EXPECT_TRUE(AwaitText(server_.plain(), "and back\n"));
  kill(children_.back().pid, SIGKILL);
  ASSERT_TRUE(Await([&] { return server_.closed.has_value(); }));
  EXPECT_EQ(server_.closed->code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace dtrain::tls
