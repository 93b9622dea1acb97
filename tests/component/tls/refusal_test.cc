// SPDX-License-Identifier: Apache-2.0
// I17: who is refused, and that both sides say why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/component/tls/harness.h"

namespace dtrain::tls {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;

using RefusalTest = StreamTest;

TEST_F(RefusalTest, PeersThatSpeakNoTls) {
  const auto context = NodeContext();
  for (const absl::string_view bytes :
       {absl::string_view("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), absl::string_view("SSH-2.0-x\r\n"),
        absl::string_view("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        absl::string_view("\0\0\0\0\0\0\0\0", 8), absl::string_view("\xff\xff\xff\xff\xff\xff\xff"),
        absl::string_view("\x16\xff\xff\xff\xff\x01\x02\x03", 8)}) {
    End server;
    os::UniqueFd tcp = Dial();
    ASSERT_TRUE(Send(tcp.get(), bytes));
    Serve(server, *context, Answer());
    std::string answer;
    ASSERT_TRUE(Await([&] { return !Receive(tcp.get(), answer); }));
    tcp.Reset();
    ASSERT_TRUE(Await([&] { return server.closed.has_value(); }));
    EXPECT_EQ(server.closed->code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(server.why(), "it does not speak TLS");
    EXPECT_FALSE(server.ready);
  }
}

TEST_F(RefusalTest, AServerThatSpeaksNoTls) {
  os::UniqueFd dialled = Dial();
  os::UniqueFd answered = Answer();
  Ask(client_, *AliceContext(), std::move(dialled));
  ASSERT_TRUE(Send(answered.get(), "SSH-2.0-OpenSSH_9.2\r\n"));
  shutdown(answered.get(), SHUT_WR);
  ASSERT_TRUE(Await([&] { return client_.closed.has_value(); }));
  EXPECT_EQ(client_.why(), "it does not speak TLS");
}

TEST_F(RefusalTest, NoCertificate) {
  ServeOpenSsl(NodeContext(), Files{});
  EXPECT_EQ(server_.why(), "it presented no certificate");
  EXPECT_EQ(server_.closed->code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(Await([&] {
    return Contents(log()).find("alert certificate required") != std::string::npos;
  })) << Contents(log());
}

TEST_F(RefusalTest, ACertificateOfAnotherAuthority) {
  Authority other(directory_.path(), "other");
  ServeOpenSsl(NodeContext(), other.User("alice"));
  EXPECT_EQ(server_.why(),
            "its certificate (alice) was issued by another authority "
            "(CN=dtrain authority,O=other) than the one in ca.crt here");
  EXPECT_TRUE(Await([&] { return Contents(log()).find("alert unknown ca") != std::string::npos; }))
      << Contents(log());
}

TEST_F(RefusalTest, AServerOfAnotherAuthority) {
  Authority other(directory_.path(), "other");
  Join(*Load(Side::kClient, other.User("alice")), *NodeContext());
  ASSERT_TRUE(BothClosed());
  EXPECT_THAT(client_.why(), HasSubstr("its certificate (gpu01) was issued by another authority"));
  EXPECT_EQ(server_.why(), "it rejected our certificate: it trusts another authority");
}

TEST_F(RefusalTest, AnExpiredCertificate) {
  ServeOpenSsl(NodeContext(), lab_.Odd("old", kLongAgo, kYesterday, "URI:dtrain:user:old"));
  EXPECT_EQ(
      server_.why(),
      "its certificate (old) expired on 2021-01-01 00:00:00 UTC: renew it (dtrain-pki renew)");
  EXPECT_TRUE(Await([&] {
    return Contents(log()).find("alert certificate expired") != std::string::npos;
  })) << Contents(log());
}

TEST_F(RefusalTest, ACertificateThatIsNotYetValid) {
  ServeOpenSsl(NodeContext(), lab_.Odd("new", kSomeDay, kLater, "URI:dtrain:user:new"));
  EXPECT_THAT(server_.why(), AllOf(HasSubstr("(new) is valid only from 2090-01-01 00:00:00 UTC on"),
                                   ContainsRegex("clock skew of at least [0-9]{9,} s: set the "
                                                 "clocks")));
}

TEST_F(RefusalTest, ACertificateThatDoesNotSayWhoseItIs) {
  ServeOpenSsl(NodeContext(), lab_.Odd("mute", kLongAgo, kLater, "DNS:mute"));
  EXPECT_THAT(server_.why(), HasSubstr("(mute) does not state a role"));
}

TEST_F(RefusalTest, ANameWithANulInIt) {
  // DER of a GeneralName: a URI "dtrain:admin:a\0b", which C would read as another.
  ServeOpenSsl(NodeContext(),
               lab_.Odd("nul", kLongAgo, kLater,
                        "DER:30:12:86:10:64:74:72:61:69:6e:3a:61:64:6d:69:6e:3a:61:00:62"));
  EXPECT_THAT(server_.why(), HasSubstr("(nul) does not state a role"));
}

TEST_F(RefusalTest, ARevokedCertificate) {
  Files node = lab_.Node("gpu01");
  const Files alice = lab_.User("alice");
  const auto asker = Load(Side::kClient, alice);
  lab_.Pki("revoke", "alice");
  node.crl = lab_.crl();
  Join(*asker, *Load(Side::kServer, node));
  ASSERT_TRUE(BothClosed());
  EXPECT_THAT(server_.why(), HasSubstr("its certificate (alice) was revoked (serial number "));
  EXPECT_EQ(client_.why(), "it rejected our certificate: it has been revoked");
  EXPECT_EQ(client_.closed->code(), absl::StatusCode::kUnauthenticated);
}

// Its signature is verified once, its dates each time.
TEST_F(RefusalTest, AListOfRevokedCertificatesThatRunsOut) {
  Files node = lab_.Node("gpu01");
  const auto asker = Load(Side::kClient, lab_.User("alice"));
  node.crl = lab_.crl();
  const TimePoint deadline = Clock::now() + kDeadline;
  int good = 0;
  // On a busy machine a list may run out before anybody comes: the next one is good for longer.
  for (int seconds = 2; good == 0 && seconds < 60; seconds *= 2) {
    lab_.ListFor(seconds);
    const auto context = Context::Load(Side::kServer, node);
    if (!context.ok()) continue;
    do {
      client_ = End{};
      server_ = End{};
      Join(*asker, **context);
      good += server_.ready.has_value();
      poll(nullptr, 0, 20);
    } while (server_.ready.has_value() && Clock::now() < deadline);
  }
  EXPECT_GT(good, 0);
  EXPECT_THAT(server_.why(), HasSubstr("(alice) cannot be checked: crl.pem here has expired"));
}

TEST_F(RefusalTest, OldVersions) {
  const auto context = NodeContext();
  const Files alice = lab_.User("alice");
  for (const char* version : {"-tls1", "-tls1_1"}) {
    server_ = End{};
    ServeOpenSsl(context, alice, absl::StrCat(version, " -cipher ALL@SECLEVEL=0"));
    EXPECT_EQ(server_.why(), "it speaks only versions of TLS before 1.2");
  }
  server_ = End{};
  ServeOpenSsl(context, alice, "-tls1_2 -cipher AES128-SHA");
  EXPECT_EQ(server_.why(), "it speaks TLS with outdated methods only");
}

TEST_F(RefusalTest, VersionsThatAreGood) {
  const auto context = NodeContext();
  const Files alice = lab_.User("alice");
  for (const char* version : {"-tls1_2", "-tls1_3"}) {
    server_ = End{};
    ServeOpenSsl(context, alice, version);
    ASSERT_TRUE(server_.ready.has_value()) << server_.why();
    EXPECT_EQ(server_.ready->peer.name, "alice");
    EXPECT_EQ(server_.ready->peer.kind, Kind::kUser);
  }
}

TEST_F(RefusalTest, ProtocolsWithin) {
  const auto context = NodeContext();
  const Files alice = lab_.User("alice");
  const std::pair<const char*, const char*> good[] = {
      {"", ""}, {"-alpn http/1.1,h2", "h2"}, {"-alpn http/1.1", "http/1.1"}};
  for (const auto& [offer, chosen] : good) {
    server_ = End{};
    ServeOpenSsl(context, alice, offer);
    ASSERT_TRUE(server_.ready.has_value()) << server_.why();
    EXPECT_EQ(server_.ready->alpn, chosen);
  }
  server_ = End{};
  ServeOpenSsl(context, alice, "-alpn spdy/1");
  EXPECT_EQ(server_.why(), "it speaks neither HTTP/2 nor HTTP/1.1 over TLS (ALPN)");
}

TEST_F(RefusalTest, AServerOfAnotherName) {
  const auto alice = AliceContext();
  const auto node = NodeContext();
  for (const absl::string_view name : {"gpu02", "127.0.0.2", "::1", "gpu01.evil.example", "*"}) {
    client_ = End{};
    server_ = End{};
    Join(*alice, *node, name);
    ASSERT_TRUE(BothClosed());
    EXPECT_EQ(client_.why(),
              absl::StrCat("its certificate (gpu01) is for gpu01, 127.0.0.1, not for \"", name,
                           "\": give it that name too (dtrain-pki node --dns or --ip)"));
    EXPECT_THAT(server_.why(), HasSubstr("it rejected our certificate"));
    EXPECT_FALSE(client_.ready);
    EXPECT_FALSE(server_.ready);
  }
  for (const absl::string_view name : {"", "bad\nname"}) {
    client_ = End{};
    Ask(client_, *alice, Dial(), name);
    Answer();
    ASSERT_TRUE(Await([&] { return client_.closed.has_value(); }));
    EXPECT_FALSE(client_.ready);
  }
}

// I22: what a user's certificate says does not make a server, even if the authority allowed it to.
TEST_F(RefusalTest, AUserWhoPosesAsANode) {
  const Files user = lab_.Odd("user", kLongAgo, kLater, "URI:dtrain:user:gpu01,DNS:gpu01");
  Join(*AliceContext(), *Load(Side::kServer, user));
  ASSERT_TRUE(BothClosed());
  EXPECT_THAT(
      client_.why(),
      HasSubstr(
          "has the wrong role: agents need a node certificate, launchers a user certificate"));
}

TEST_F(RefusalTest, AServerWithoutOurProtocol) {
  const Files node = lab_.Node("gpu01");
  // It takes the port of our own listener, which is closed first.
  listener_.Reset();
  OpenSsl(absl::StrCat("s_server -accept 127.0.0.1:", port(), " -cert ", node.certificate, " -key ",
                       node.key, " -CAfile ", lab_.ca(), " -quiet"));
  os::UniqueFd tcp;
  ASSERT_TRUE(Await([&] {
    tcp.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect(tcp.get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_)) == 0;
  })) << Contents(log());
  Ask(client_, *AliceContext(), std::move(tcp));
  ASSERT_TRUE(Await([&] { return client_.closed.has_value(); }));
  EXPECT_EQ(client_.why(), "it speaks TLS, but not h2: this is not a dtrain agent");
}

TEST_F(RefusalTest, AHandshakeThatNeverComes) {
  const auto context = NodeContext();
  Limits limits;
  limits.handshake = std::chrono::milliseconds(50);
  os::UniqueFd silent = Dial();
  Serve(server_, *context, Answer(), limits);
  ASSERT_TRUE(Await([&] { return server_.closed.has_value(); }));
  EXPECT_EQ(server_.closed->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(server_.why(), "no TLS handshake within 50ms");
  // The beginning of one is no more.
  server_ = End{};
  os::UniqueFd begun = Dial();
  ASSERT_TRUE(Send(begun.get(), absl::string_view("\x16\x03\x01\x01\x00\x01", 6)));
  Serve(server_, *context, Answer(), limits);
  ASSERT_TRUE(Await([&] { return server_.closed.has_value(); }));
  EXPECT_EQ(server_.closed->code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RefusalTest, APeerThatHangsUpInTheHandshake) {
  os::UniqueFd tcp = Dial();
  ASSERT_TRUE(Send(tcp.get(), absl::string_view("\x16\x03\x01\x01\x00\x01", 6)));
  tcp.Reset();
  Serve(server_, *NodeContext(), Answer());
  ASSERT_TRUE(Await([&] { return server_.closed.has_value(); }));
  EXPECT_EQ(server_.closed->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.why(), "it ended the connection during the TLS handshake");
}

}  // namespace
}  // namespace dtrain::tls
