// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/component/inventory/network_namespace.h"
#include "tests/component/inventory/probe_fixture.h"

namespace dtrain::inventory {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ProberTest = ProbeTest;

TEST_F(ProberTest, ReachesTheListenerOverIpv4AndIpv6) {
  std::unique_ptr<ProbeListener> listener = Listen();
  for (const char* ip : {"127.0.0.1", "::1", "127.0.0.2"}) {
    v1::ProbeOutcome outcome = ProbeOne(ip, listener->port(), listener->reply());
    EXPECT_TRUE(outcome.reached()) << outcome.error();
    EXPECT_EQ(outcome.error(), "");
    EXPECT_EQ(outcome.ip(), ip);
    EXPECT_EQ(outcome.node(), 1u);
    EXPECT_GT(outcome.round_trip_us(), 0u);
  }
  EXPECT_EQ(listener->pending(), 0u);
}

TEST_F(ProberTest, ATokenOfTheWrongSizeIsRefused) {
  EXPECT_EQ(ProbeListener::Make(loop_, "short").status().message(),
            "the probe token has 5 bytes instead of 32");
  std::unique_ptr<ProbeListener> listener = Listen();
  v1::ProbeRequest request = Request();
  request.set_token("");
  AddTarget(request, "127.0.0.1", listener->port(), listener->reply());
  EXPECT_EQ(Probe(request).outcomes(0).error(), "the probe token has 0 bytes instead of 32");
}

// 32 bytes that add one to a key of PyTorch's store: of root's agent, which a user has connect to a
// store of root's own, they would pass its look at who is connected.
TEST_F(ProberTest, ATokenThatIsAnotherProtocolsRequestIsNotSentAsOne) {
  const std::string key = "fifteen-letters";
  const std::string add_one =
      std::string("\3\17\0\0\0\0\0\0\0", 9) + key + std::string("\1\0\0\0\0\0\0\0", 8);
  ASSERT_EQ(add_one.size(), kProbeBytes);
  os::UniqueFd store(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ASSERT_EQ(listen(store.get(), 8), 0);  // binds to a free port on [::]
  sockaddr_in6 address = {};
  socklen_t length = sizeof(address);
  ASSERT_EQ(getsockname(store.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  v1::ProbeRequest request = Request();
  request.set_token(add_one);
  AddTarget(request, "::1", ntohs(address.sin6_port), os::RandomBytes(kProbeBytes));
  Prober prober(loop_, std::move(request), [](const v1::ProbeReport&) {});
  os::UniqueFd client;
  std::string got;
  ASSERT_TRUE(RunUntil([&] {
    if (!client) client.Reset(accept4(store.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char buffer[256];
    const ssize_t n = recv(client.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) got.append(buffer, static_cast<size_t>(n));
    return got.size() >= kProbeBytes;
  }));
  EXPECT_THAT(got, StartsWith("dtrain-probe/1 "));
  EXPECT_THAT(got, ::testing::Not(HasSubstr(key)));
}

// C13: an address that leads to another machine (docker0's, the same everywhere) is found out.
TEST_F(ProberTest, SomeoneElsesAnswerIsNotTheNode) {
  std::unique_ptr<ProbeListener> node = Listen();
  std::unique_ptr<ProbeListener> self = Listen();
  v1::ProbeOutcome outcome = ProbeOne("127.0.0.1", self->port(), node->reply());
  EXPECT_FALSE(outcome.reached());
  EXPECT_THAT(outcome.error(), HasSubstr("answered by another machine"));
}

// C4: an agent of another job drops us, and we do not take it for ours.
TEST_F(ProberTest, AnAgentOfAnotherJobIsNotReached) {
  absl::StatusOr<std::unique_ptr<ProbeListener>> foreign =
      ProbeListener::Make(loop_, os::RandomBytes(kProbeBytes));
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  v1::ProbeOutcome outcome = ProbeOne("127.0.0.1", (*foreign)->port(), (*foreign)->reply());
  EXPECT_FALSE(outcome.reached());
  EXPECT_THAT(outcome.error(), HasSubstr("closed the connection"));
}

TEST_F(ProberTest, ARefusedConnectionSaysSo) {
  uint16_t port = Listen()->port();  // gone again
  v1::ProbeOutcome outcome = ProbeOne("127.0.0.1", port, os::RandomBytes(kProbeBytes));
  EXPECT_FALSE(outcome.reached());
  EXPECT_THAT(outcome.error(),
              StartsWith(absl::StrCat("connect to 127.0.0.1 port ", port, ": Connection refused")));
}

TEST_F(ProberTest, ABlackholedAddressTimesOut) {
  BlackHole hole;
  uint16_t port = hole.port();
  v1::ProbeOutcome outcome = ProbeOne("127.0.0.1", port, os::RandomBytes(kProbeBytes), 150);
  EXPECT_FALSE(outcome.reached());
  EXPECT_EQ(outcome.error(),
            absl::StrCat("connect to 127.0.0.1 port ", port, ": no answer within 150 ms"));
}

TEST_F(ProberTest, AServerThatSaysNothingTimesOut) {
  os::UniqueFd mute(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(listen(mute.get(), 8), 0);  // binds to a free port on [::]
  sockaddr_in6 address = {};
  socklen_t length = sizeof(address);
  ASSERT_EQ(getsockname(mute.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  v1::ProbeOutcome outcome =
      ProbeOne("::1", ntohs(address.sin6_port), os::RandomBytes(kProbeBytes), 150);
  EXPECT_FALSE(outcome.reached());
  EXPECT_THAT(outcome.error(), HasSubstr("no answer within 150 ms after connecting"));
}

TEST_F(ProberTest, AnAddressWithoutARouteFailsWithTheReason) {
  std::string error;
  bool ran = InNetworkNamespace(
      [&] { error = ProbeOne("203.0.113.1", 4000, os::RandomBytes(kProbeBytes)).error(); });
  if (!ran) GTEST_SKIP() << "needs root: makes a network namespace";
  EXPECT_EQ(error, "connect to 203.0.113.1 port 4000: Network is unreachable");
}

TEST_F(ProberTest, TargetsThatMakeNoSenseFailAlone) {
  std::unique_ptr<ProbeListener> listener = Listen();
  v1::ProbeRequest request = Request();
  AddTarget(request, "node3", listener->port(), listener->reply());
  AddTarget(request, "fe80::1%eth0", listener->port(), listener->reply());
  AddTarget(request, "127.0.0.1", 0, listener->reply());
  AddTarget(request, "127.0.0.1", 65536 + listener->port(), listener->reply());
  AddTarget(request, "127.0.0.1", listener->port(), "");
  AddTarget(request, "127.0.0.1", listener->port(), listener->reply());
  v1::ProbeReport report = Probe(std::move(request));
  ASSERT_EQ(report.outcomes_size(), 6);
  EXPECT_EQ(report.outcomes(0).error(), "'node3' is not an IPv4 or IPv6 address");
  EXPECT_EQ(report.outcomes(1).error(), "'fe80::1%eth0' is not an IPv4 or IPv6 address");
  EXPECT_EQ(report.outcomes(2).error(), "the node announced probe port 0");
  EXPECT_THAT(report.outcomes(3).error(), StartsWith("the node announced probe port"));
  EXPECT_THAT(report.outcomes(4).error(), HasSubstr("probe reply of 0 bytes"));
  EXPECT_TRUE(report.outcomes(5).reached()) << report.outcomes(5).error();
}

TEST_F(ProberTest, ARequestWithoutTargetsIsAnsweredEmpty) {
  EXPECT_EQ(Probe(Request()).outcomes_size(), 0);
}

TEST_F(ProberTest, ManyTargetsAreReportedInTheirOrder) {
  std::unique_ptr<ProbeListener> one = Listen();
  std::unique_ptr<ProbeListener> two = Listen();
  v1::ProbeRequest request = Request();
  for (int i = 0; i < 300; ++i) {
    ProbeListener& node = i % 3 == 0 ? *one : *two;
    AddTarget(request, "127.0.0.1", node.port(), i % 3 == 2 ? one->reply() : node.reply());
  }
  v1::ProbeReport report = Probe(std::move(request));
  ASSERT_EQ(report.outcomes_size(), 300);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(report.outcomes(i).node(), static_cast<uint32_t>(i + 1));
    EXPECT_EQ(report.outcomes(i).reached(), i % 3 != 2) << i;
  }
}

// Each may fail at once, and there may be others to be served.
TEST_F(ProberTest, ManyTargetsTakeSeveralTurnsOfTheLoop) {
  v1::ProbeRequest request = Request();
  for (int i = 0; i < 256; ++i) AddTarget(request, "node3", 4000, os::RandomBytes(kProbeBytes));
  std::optional<v1::ProbeReport> report;
  Prober prober(loop_, std::move(request), [&](v1::ProbeReport r) { report = std::move(r); });
  int turns = 0;  // of something else, each of which comes behind one of the prober's
  loop::Timer other(loop_);
  loop::Task turn = [&] {
    ++turns;
    other.After(Duration::zero(), [&] { turn(); });
  };
  other.After(Duration::zero(), [&] { turn(); });
  ASSERT_TRUE(RunUntil([&] { return report.has_value(); }));
  EXPECT_EQ(report->outcomes_size(), 256);
  EXPECT_GE(turns, 2);
}

TEST_F(ProberTest, TheReportMayDestroyTheProber) {
  std::unique_ptr<ProbeListener> listener = Listen();
  v1::ProbeRequest request = Request();
  AddTarget(request, "127.0.0.1", listener->port(), listener->reply());
  std::unique_ptr<Prober> prober;
  bool reached = false;
  prober = std::make_unique<Prober>(loop_, request, [&](v1::ProbeReport report) {
    prober.reset();
    reached = report.outcomes(0).reached();
  });
  EXPECT_TRUE(RunUntil([&] { return prober == nullptr; }));
  EXPECT_TRUE(reached);
}

TEST_F(ProberTest, ADestroyedProberDoesNotReport) {
  std::unique_ptr<ProbeListener> listener = Listen();
  v1::ProbeRequest request = Request();
  AddTarget(request, "127.0.0.1", listener->port(), listener->reply());
  bool called = false;
  {
    Prober prober(loop_, request, [&](v1::ProbeReport) { called = true; });
  }
  // The next one runs to its end through the same loop.
  EXPECT_TRUE(ProbeOne("127.0.0.1", listener->port(), listener->reply()).reached());
  EXPECT_FALSE(called);
}

// H1: tries that cannot all have a descriptor at once take turns.
TEST_F(ProberTest, WithFewDescriptorsProbesTakeTurns) {
  Rehearse();
  BlackHole hole;
  v1::ProbeRequest request = Request(/*timeout_ms=*/20);
  for (int i = 0; i < 30; ++i) {
    AddTarget(request, "127.0.0.1", hole.port(), os::RandomBytes(kProbeBytes));
  }
  LowLimit limit(6);
  v1::ProbeReport report = Probe(std::move(request));
  ASSERT_EQ(report.outcomes_size(), 30);
  for (const v1::ProbeOutcome& outcome : report.outcomes()) {
    EXPECT_THAT(outcome.error(), HasSubstr("no answer within 20 ms"));
  }
}

// H1
TEST_F(ProberTest, WithoutDescriptorsAProbeFailsWithTheReason) {
  v1::ProbeOutcome outcome;
  Rehearse();
  {
    LowLimit limit(0);
    outcome = ProbeOne("127.0.0.1", 4000, os::RandomBytes(kProbeBytes));
  }
  EXPECT_EQ(outcome.error(), "connect to 127.0.0.1 port 4000: Too many open files");
}

}  // namespace
}  // namespace dtrain::inventory
