// SPDX-License-Identifier: Apache-2.0
// That a process is still the one that was meant.
#include <gtest/gtest.h>
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
