// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/held_ports.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/unique_fd.h"
#include "tests/component/inventory/network_namespace.h"

namespace dtrain::inventory {
namespace {

struct Server {
  os::UniqueFd fd;
  int error = 0;
};

// Binds `port` (0: any) on the wildcard address, and listens, as a server program does.
Server Serve(int family, uint16_t port, const std::vector<int>& options) {
  Server server;
  server.fd.Reset(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int one = 1;
  for (int option : options) {
    setsockopt(server.fd.get(), SOL_SOCKET, option, &one, sizeof(one));
  }
  sockaddr_in6 address = {};
  address.sin6_family = static_cast<sa_family_t>(family);
  address.sin6_port = htons(port);  // same place in sockaddr_in
  socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(server.fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(server.fd.get(), 16) != 0) {
    server.error = errno;
  }
  return server;
}

bool Connects(uint16_t port) {
  os::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

TEST(HeldPortsTest, PortsAreDistinctAndNobodyListensThere) {
  absl::StatusOr<HeldPorts> held = HeldPorts::Hold(20);
  ASSERT_TRUE(held.ok()) << held.status();
  std::set<uint16_t> distinct(held->ports().begin(), held->ports().end());
  EXPECT_EQ(distinct.size(), 20u);
  for (uint16_t port : held->ports()) {
    EXPECT_NE(port, 0);
    EXPECT_FALSE(Connects(port));
  }
}

TEST(HeldPortsTest, TheLastListenForWhoeverIsGivenThem) {
  absl::StatusOr<HeldPorts> held = HeldPorts::Hold(3, /*listening=*/1);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(Connects(held->ports()[0]));
  EXPECT_FALSE(Connects(held->ports()[1]));
  EXPECT_TRUE(Connects(held->ports()[2]));
  const int socket = held->SocketOf(held->ports()[2]);
  const os::UniqueFd client(accept4(socket, nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_GE(client.get(), 0);
  EXPECT_EQ(held->SocketOf(1), -1);
}

TEST(HeldPortsTest, AServerWithEitherReuseOptionCanListenAndIsReached) {
  const std::vector<std::vector<int>> kinds = {
      {SO_REUSEADDR}, {SO_REUSEPORT}, {SO_REUSEADDR, SO_REUSEPORT}};
  for (int family : {AF_INET6, AF_INET}) {
    for (const std::vector<int>& options : kinds) {
      absl::StatusOr<HeldPorts> held = HeldPorts::Hold(1);
      ASSERT_TRUE(held.ok()) << held.status();
      const uint16_t port = held->ports()[0];
      Server server = Serve(family, port, options);
      EXPECT_EQ(server.error, 0) << "family " << family << ", " << options.size()
                                 << " options from " << options[0];
      // All connections reach the listener: the holder takes none of them.
      for (int i = 0; i < 8; ++i) EXPECT_TRUE(Connects(port));
    }
  }
}

TEST(HeldPortsTest, AServerCanComeBackOnThePortAfterItsFirstAttempt) {
  absl::StatusOr<HeldPorts> held = HeldPorts::Hold(1);
  ASSERT_TRUE(held.ok()) << held.status();
  for (int attempt = 0; attempt < 3; ++attempt) {
    Server server = Serve(AF_INET6, held->ports()[0], {SO_REUSEADDR});
    ASSERT_EQ(server.error, 0);
    ASSERT_TRUE(Connects(held->ports()[0]));  // leaves a connection behind on the server's side
    os::UniqueFd accepted(accept4(server.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(accepted);
  }
}

TEST(HeldPortsTest, AServerWithoutAReuseOptionIsKeptOut) {
  absl::StatusOr<HeldPorts> held = HeldPorts::Hold(1);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(Serve(AF_INET6, held->ports()[0], {}).error, EADDRINUSE);
}

TEST(HeldPortsTest, PortsAreFreeAgainOnceTheHolderIsGone) {
  uint16_t port = 0;
  {
    absl::StatusOr<HeldPorts> held = HeldPorts::Hold(1);
    ASSERT_TRUE(held.ok()) << held.status();
    port = held->ports()[0];
    HeldPorts moved = *std::move(held);
    EXPECT_EQ(Serve(AF_INET6, port, {}).error, EADDRINUSE);
  }
  EXPECT_EQ(Serve(AF_INET6, port, {}).error, 0);
}

// Eight ports in all, three of them held: automatic binds get the other five and then fail,
// whatever options they set, and so do outgoing connections.
TEST(HeldPortsTest, AutomaticBindsNeverGetAHeldPort) {
  bool ran = InNetworkNamespace([] {
    ASSERT_TRUE(Shell("ip link set lo up"));
    ASSERT_TRUE(Shell("echo '30000 30007' > /proc/sys/net/ipv4/ip_local_port_range"));
    Server listener = Serve(AF_INET, 20000, {});
    ASSERT_EQ(listener.error, 0);
    absl::StatusOr<HeldPorts> held = HeldPorts::Hold(3);
    ASSERT_TRUE(held.ok()) << held.status();
    std::vector<Server> others;
    for (const std::vector<int>& options :
         std::vector<std::vector<int>>{{}, {SO_REUSEADDR}, {SO_REUSEADDR, SO_REUSEPORT}}) {
      for (;;) {
        Server server = Serve(AF_INET6, 0, options);
        if (server.error != 0) {
          EXPECT_EQ(server.error, EADDRINUSE);
          break;
        }
        others.push_back(std::move(server));
        ASSERT_LE(others.size(), 5u) << "a held port was given away";
      }
    }
    EXPECT_EQ(others.size(), 5u);
    EXPECT_FALSE(Connects(20000)) << "an outgoing connection got a held port";
    others.clear();
    EXPECT_TRUE(Connects(20000));
  });
  if (!ran) GTEST_SKIP() << "needs root: makes a network namespace";
}

TEST(HeldPortsTest, WithoutIpv6ItHoldsIpv4Ports) {
  bool ran = InNetworkNamespace([] {
    ASSERT_TRUE(Shell("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set lo up"));
    absl::StatusOr<HeldPorts> held = HeldPorts::Hold(2);
    ASSERT_TRUE(held.ok()) << held.status();
    Server server = Serve(AF_INET, held->ports()[0], {SO_REUSEADDR});
    EXPECT_EQ(server.error, 0);
    EXPECT_TRUE(Connects(held->ports()[0]));
  });
  if (!ran) GTEST_SKIP() << "needs root: makes a network namespace";
}

// H1: without descriptors the reason is told, and what was taken so far is given back.
TEST(HeldPortsTest, RunningOutOfDescriptorsFailsWithTheReason) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  absl::StatusOr<HeldPorts> many = HeldPorts::Hold(100);
  absl::StatusOr<HeldPorts> few = HeldPorts::Hold(10);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(many.status().message(),
            "hold 100 ports for the workers: create a TCP socket: Too many open files");
  EXPECT_TRUE(few.ok()) << few.status();
}

TEST(HeldPortsTest, AnAbsurdCountIsRefused) {
  EXPECT_EQ(HeldPorts::Hold(5000).status().message(), "hold 5000 ports: the limit is 1024");
}

// What the holding is for: the server of rank 0 of a PyTorch job.
TEST(HeldPortsTest, ATorchStoreListensOnAHeldPort) {
  if (!Shell("/usr/bin/python3 -c 'import torch' 2>/dev/null")) {
    GTEST_SKIP() << "needs PyTorch for /usr/bin/python3";
  }
  absl::StatusOr<HeldPorts> held = HeldPorts::Hold(1);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_TRUE(Shell(absl::StrCat(
      "timeout 60 /usr/bin/python3 -c '",
      "from datetime import timedelta; from torch.distributed import TCPStore\n",
      "s = TCPStore(\"127.0.0.1\", ", held->ports()[0], ", 1, True, timedelta(seconds=30))\n",
      "s.set(\"a\", \"b\"); assert s.get(\"a\") == b\"b\"'")));
}

}  // namespace
}  // namespace dtrain::inventory
