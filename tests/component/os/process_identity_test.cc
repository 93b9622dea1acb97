// SPDX-License-Identifier: Apache-2.0
// That a process is still the one that was meant.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "common/os/credentials.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"
#include "common/os/spawn.h"

namespace dtrain::os {
namespace {

TEST(ProcessIdentityTest, OnlyTheVeryProcessIsOpened) {
  const uint64_t start = *StartTime(getpid());
  EXPECT_TRUE(OpenProcess(getpid(), start, geteuid()).ok());
  EXPECT_TRUE(absl::IsNotFound(OpenProcess(getpid(), start + 1, geteuid()).status()));
  EXPECT_TRUE(absl::IsNotFound(OpenProcess(getpid(), start, geteuid() + 1).status()));
}

TEST(ProcessIdentityTest, OneThatHasEndedIsNotOpened) {
  SpawnSpec spec;
  spec.argv = {"/bin/true"};
  auto child = Spawn(spec);
  ASSERT_TRUE(child.ok()) << child.status();
  const uint64_t start = *StartTime(child->pid);
  ASSERT_TRUE(WaitAndReap(child->pidfd.get()).ok());
  EXPECT_TRUE(absl::IsNotFound(OpenProcess(child->pid, start, geteuid()).status()));
}

// Two ends of a TCP connection over 127.0.0.1: who connected, and what was accepted.
std::pair<UniqueFd, UniqueFd> ConnectLocally() {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  EXPECT_EQ(bind(listener.get(), address, size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), address, &size), 0);
  UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(client.get(), address, size), 0);
  UniqueFd server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {std::move(client), std::move(server)};
}

TEST(ProcessIdentityTest, ALocalConnectionHasAnOwner) {
  auto [client, server] = ConnectLocally();
  const auto owner = OwnerOfLocalPeer(server.get());
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_EQ(*owner, geteuid());
}

TEST(ProcessIdentityTest, ALocalConnectionOfAnotherUserIsTheirs) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  auto [client, server] = ConnectLocally();
  ASSERT_EQ(fchown(client.get(), 12345, 12345), 0);  // the kernel goes by the socket's own user
  const auto owner = OwnerOfLocalPeer(server.get());
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_EQ(*owner, 12345u);
}

// What is left of a connection belongs to root, by the kernel's table: it must not pass for root's.
TEST(ProcessIdentityTest, AConnectionThatWasClosedHasNoOwner) {
  auto [client, server] = ConnectLocally();
  client.Reset();
  EXPECT_TRUE(absl::IsNotFound(OwnerOfLocalPeer(server.get()).status()));
}

TEST(ProcessIdentityTest, ASocketLeadsToWhoListensThere) {
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string own = "dtrain-test-" + RandomHex(8);  // abstract
  std::memcpy(name.sun_path + 1, own.data(), own.size());
  const auto* address = reinterpret_cast<const sockaddr*>(&name);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + own.size());
  ASSERT_EQ(bind(listener.get(), address, size), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(client.get(), address, size), 0);
  auto pidfd = PidfdOfPeer(client.get());
  if (absl::IsUnimplemented(pidfd.status())) GTEST_SKIP() << pidfd.status();
  ASSERT_TRUE(pidfd.ok()) << pidfd.status();
  EXPECT_TRUE(SendSignal(pidfd->get(), 0).ok());
}

}  // namespace
}  // namespace dtrain::os
