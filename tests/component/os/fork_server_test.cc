// SPDX-License-Identifier: Apache-2.0
#include "common/os/fork_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/cgroup.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"

#if defined(__SANITIZE_THREAD__)
#define DTRAIN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DTRAIN_TSAN 1
#endif
#endif

namespace dtrain::os {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kPatienceMs = 20000;

// A process of tests/support/forked, until it has ended.
struct Forked {
  Forked(Child c, UniqueFd s) : child(std::move(c)), socket(std::move(s)) {}
  Forked(Forked&&) = default;
  ~Forked() {
    if (child.pidfd) End();
  }
  ExitStatus End() {
    socket.Reset();
    const UniqueFd pidfd = std::move(child.pidfd);
    return *WaitAndReap(pidfd.get());
  }
  ExitStatus EndsBy(const std::string& word) {
    (void)send(socket.get(), word.data(), word.size(), MSG_NOSIGNAL);
    const UniqueFd pidfd = std::move(child.pidfd);
    return *WaitAndReap(pidfd.get());
  }
  std::string Report() const {
    EXPECT_EQ(send(socket.get(), "report", 6, MSG_NOSIGNAL), 6);
    pollfd heard{socket.get(), POLLIN, 0};
    EXPECT_EQ(poll(&heard, 1, kPatienceMs), 1);
    std::string told(64 << 10, '\0');
    const ssize_t n = recv(socket.get(), told.data(), told.size(), 0);
    told.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return told;
  }

  Child child;
  UniqueFd socket;
};

class ForkServerTest : public ::testing::Test {
 protected:
  absl::StatusOr<Forked> Fork(ForkSpec spec = {}) {
    auto sockets = SocketPair();
    if (!sockets.ok()) return sockets.status();
    spec.socket_fd = sockets->second.get();
    auto child = server_.Fork(spec);
    if (!child.ok()) return child.status();
    return Forked{*std::move(child), std::move(sockets->first)};
  }

  ForkServer server_{{DTRAIN_BIN_DIR "/forked"}, {"OURS=1", "PATH=/bin"}};
};

#if defined(DTRAIN_TSAN)
// ThreadSanitizer does not follow this fork: its agents do without.
TEST_F(ForkServerTest, WhereItCannotForkThereIsSpawn) {
  EXPECT_TRUE(absl::IsUnavailable(Fork().status()));
  EXPECT_EQ(EndedChild(), 0);
}
#else
TEST_F(ForkServerTest, MakesChildrenOfOursLikeSpawn) {
  auto first = Fork(), second = Fork();
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_NE(first->child.pid, second->child.pid);
  const std::string report = first->Report();
  const pid_t pid = first->child.pid;
  EXPECT_THAT(report, HasSubstr(absl::StrCat("pid ", pid, " thread ", pid, " parent ", getpid(),
                                             " group ", pid, "\n")));
  EXPECT_THAT(report, HasSubstr(absl::StrCat("uid ", getuid(), " ", geteuid(), " ")));
  EXPECT_THAT(report, HasSubstr("env OURS=1\nenv PATH=/bin\n"));
  // No descriptor of the server or of its sibling's.
  EXPECT_THAT(report, HasSubstr("fd 0 /dev/null\nfd 1 /dev/null\nfd 2 "));
  EXPECT_TRUE(absl::EndsWith(report, "\nfd 3 socket\n")) << report;

  EXPECT_EQ(first->End().code, 0);
  EXPECT_EQ(second->EndsBy("exit").code, 7);
}

// glibc's raise() asks for the number of its thread, which is another one than the server's.
TEST_F(ForkServerTest, AChildSignalsItself) {
  auto forked = Fork();
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_EQ(forked->EndsBy("raise").signal, SIGUSR1);
  EXPECT_TRUE(Fork().ok());
}

TEST_F(ForkServerTest, AsAnotherUserKeepsNothingOfOurs) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Account user;
  user.uid = 12345;
  user.gid = 23456;
  user.groups = {23456, 34567};
  ForkSpec spec;
  spec.user = &user;
  spec.env = {"HOME=/home/x", "EMPTY=", "TWO=a=b\nc"};
  auto forked = Fork(spec);
  ASSERT_TRUE(forked.ok()) << forked.status();
  const std::string report = forked->Report();
  EXPECT_THAT(report, HasSubstr("uid 12345 12345 gid 23456 23456 groups 23456 34567\n"
                                "gains rights 0 dumps core 1\nin /\n"
                                "env HOME=/home/x\nenv EMPTY=\nenv TWO=a=b\nc\nfd 0 "));
  // The next one is not that user.
  auto next = Fork();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->Report(), HasSubstr("uid 0 0 gid "));
}

TEST_F(ForkServerTest, WhatAChildCannotBecomeIsToldAsBySpawn) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Account user;
  user.uid = 12345;
  user.groups = {static_cast<gid_t>(-1)};  // there is no such group
  ForkSpec spec;
  spec.user = &user;
  SpawnSpec same;
  same.argv = {"/bin/true"};
  same.user = &user;
  EXPECT_EQ(Fork(spec).status(), Spawn(same).status());
  EXPECT_EQ(EndedChild(), 0) << "a failed child was left unreaped";
  EXPECT_TRUE(Fork().ok());
}

TEST_F(ForkServerTest, AChildIsInItsCgroupFromTheBeginning) {
  auto parent = FindWritableCgroup();
  if (!parent.ok()) GTEST_SKIP() << parent.status();
  auto cgroup = Cgroup::Make(*parent, JobCgroupName(RandomHex(6), 0, 1));
  ASSERT_TRUE(cgroup.ok()) << cgroup.status();
  auto directory = cgroup->Open();
  ASSERT_TRUE(directory.ok());
  ForkSpec spec;
  spec.cgroup_fd = directory->get();
  auto forked = Fork(spec);
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_EQ(cgroup->Processes(), std::vector<pid_t>{forked->child.pid});
  cgroup->Kill();
  EXPECT_EQ(forked->EndsBy("").signal, SIGKILL);
  while (cgroup->Populated()) poll(nullptr, 0, 1);
  EXPECT_TRUE(cgroup->Remove().ok());
  // There is none any more: Spawn says so, too.
  EXPECT_TRUE(absl::IsUnavailable(Fork(spec).status()));
}

TEST_F(ForkServerTest, OneThatWasKilledIsStartedAgain) {
  ASSERT_TRUE(Fork().ok());
  const pid_t before = server_.pid();
  ASSERT_EQ(kill(before, SIGKILL), 0);
  // It may be asked before its death is seen: then it does not answer.
  auto lost = Fork();
  EXPECT_TRUE(absl::IsUnavailable(lost.status())) << lost.status();
  EXPECT_EQ(EndedChild(), 0) << "the server was left unreaped";
  auto forked = Fork();
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_NE(server_.pid(), before);
  EXPECT_THAT(forked->Report(), HasSubstr(absl::StrCat("pid ", forked->child.pid)));
}

TEST_F(ForkServerTest, OneThatWasStoppedHoldsNobodyForLong) {
  ASSERT_TRUE(server_.Start().ok());
  ASSERT_EQ(kill(server_.pid(), SIGSTOP), 0);
  EXPECT_TRUE(absl::IsUnavailable(Fork().status()));
  EXPECT_EQ(server_.pid(), 0);
  EXPECT_EQ(EndedChild(), 0) << "the server was left unreaped";
  EXPECT_TRUE(Fork().ok());
}

TEST_F(ForkServerTest, WhatIsTooMuchForItIsNotCut) {
  Account user;
  user.groups.assign(65536, 1);
  ForkSpec spec;
  spec.user = &user;
  EXPECT_TRUE(absl::IsUnavailable(Fork(spec).status()));
  EXPECT_TRUE(Fork().ok());
}

TEST_F(ForkServerTest, ItsProcessesOutliveIt) {
  std::optional<ForkServer> server;
  server.emplace(std::vector<std::string>{DTRAIN_BIN_DIR "/forked"}, std::vector<std::string>{});
  auto sockets = SocketPair();
  ASSERT_TRUE(sockets.ok());
  ForkSpec spec;
  spec.socket_fd = sockets->second.get();
  auto child = server->Fork(spec);
  ASSERT_TRUE(child.ok()) << child.status();
  const pid_t pid = server->pid();
  server.reset();
  EXPECT_EQ(kill(pid, 0), -1);
  const Forked forked{*std::move(child), std::move(sockets->first)};
  EXPECT_THAT(forked.Report(), Not(HasSubstr("env ")));
}

TEST_F(ForkServerTest, AProgramThatIsNoneIsToldAtOnce) {
  ForkServer none({"/no/such/program"}, {});
  EXPECT_FALSE(none.Start().ok());
  EXPECT_TRUE(absl::IsUnavailable(none.Fork({}).status()));
}
#endif

}  // namespace
}  // namespace dtrain::os
