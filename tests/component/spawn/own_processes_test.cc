// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/own_processes.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/loop/loop.h"
#include "common/os/account.h"
#include "common/os/cgroup.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"
#include "common/os/spawn.h"
#include "tests/component/inventory/tree.h"

// How it speaks with a shepherd is in tests/component/shepherd; here no program ever runs.
namespace dtrain::spawn {
namespace {

constexpr Duration kPatience = std::chrono::seconds(20);

// A child for another user, who holds it up: here by its cgroup, which is frozen.
class HeldUpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
    auto parent = os::FindWritableCgroup();
    if (!parent.ok()) GTEST_SKIP() << parent.status();
    auto cgroup = os::Cgroup::Make(*parent, os::JobCgroupName(os::RandomHex(6), 0, 1));
    ASSERT_TRUE(cgroup.ok()) << cgroup.status();
    cgroup_.emplace(*std::move(cgroup));
    std::ofstream(cgroup_->path() + "/cgroup.freeze") << "1" << std::flush;
    auto user = os::FindAccount("daemon");
    ASSERT_TRUE(user.ok()) << user.status();
    auto processes =
        OwnProcesses::Start({loop_, quarantine_, Reach::kMarked}, {user->uid, "daemon"},
                            "/bin/true", &*user, cgroup_->path());
    ASSERT_TRUE(processes.ok()) << processes.status();
    processes_ = *std::move(processes);
    pid_ = processes_->shepherd_pid();
  }
  void TearDown() override {
    if (cgroup_) {
      EXPECT_TRUE(cgroup_->Remove().ok());
    }
  }
  // Runs the loop until it is not even a zombie.
  void RunUntilReaped() {
    const TimePoint end = loop_.Now() + kPatience;
    loop::Timer timer(loop_);
    loop::Task look = [&] {
      if (kill(pid_, 0) != 0 || loop_.Now() > end) return loop_.Stop();
      timer.After(std::chrono::milliseconds(10), [&] { look(); });
    };
    look();
    loop_.Run();
    EXPECT_NE(kill(pid_, 0), 0) << "it is still there, perhaps as a zombie";
  }

  loop::Loop loop_;
  std::optional<os::Cgroup> cgroup_;
  Quarantine quarantine_;
  std::unique_ptr<OwnProcesses> processes_;
  pid_t pid_ = 0;
};

TEST_F(HeldUpTest, OneThatTakesTooLongIsKilledAndNoZombie) {
  absl::Status told;
  processes_->WhenStarted([&](absl::Status status) {
    told = std::move(status);
    processes_.reset();
  });
  RunUntilReaped();
  EXPECT_TRUE(absl::IsDeadlineExceeded(told)) << told;
  EXPECT_EQ(processes_, nullptr);
}

TEST_F(HeldUpTest, OneThatNobodyWaitsForAnyMoreIsKilledAndNoZombie) {
  processes_->WhenStarted([](absl::Status) { FAIL() << "nobody is there to be told"; });
  processes_->set_patience(std::chrono::milliseconds(50));
  processes_.reset();
  RunUntilReaped();
}

// Job "x" of attempt 0 and node 7 has the cgroup dtrain-x.0.7, and so may another user's shepherd:
// what a launcher and a shepherd call a job is no reason to end what has that name.
TEST(OwnProcessesTest, WhatIsNamedAsAJobOfAnotherUserIsNotEndedWithIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  auto parent = os::FindWritableCgroup();
  if (!parent.ok()) GTEST_SKIP() << parent.status();
  const std::string id = os::RandomHex(6);
  auto another = os::Cgroup::Make(*parent, os::JobCgroupName(id, 0, 7));
  ASSERT_TRUE(another.ok()) << another.status();
  auto directory = another->Open();
  ASSERT_TRUE(directory.ok());
  os::SpawnSpec spec;
  spec.argv = {"/bin/sleep", "600"};
  spec.cgroup_fd = directory->get();
  auto victim = os::Spawn(spec);
  ASSERT_TRUE(victim.ok()) << victim.status();
  auto user = os::FindAccount("daemon");
  ASSERT_TRUE(user.ok()) << user.status();
  loop::Loop loop;
  Quarantine quarantine;
  auto processes = OwnProcesses::Start({loop, quarantine, Reach::kMarked}, {user->uid, "daemon"},
                                       "/bin/true", &*user, /*cgroup=*/"");
  ASSERT_TRUE(processes.ok()) << processes.status();
  (*processes)->SetPart(id, 0, 7);
  EXPECT_TRUE((*processes)->Living().empty());
  (*processes)->EndAll([&] { loop.Stop(); });
  loop.Run();
  auto status = os::TryReap(victim->pidfd.get());
  EXPECT_TRUE(status.ok() && !status->has_value()) << "it was killed";
  (void)os::SendSignal(victim->pidfd.get(), SIGKILL);
  (void)os::WaitAndReap(victim->pidfd.get());
  EXPECT_TRUE(another->Remove().ok());
}

// A shepherd asks as often as it likes, and has as many processes as its user may have.
TEST(OwnProcessesTest, AUserWhoseProcessesWereJustLookedForWaits) {
  const inventory::Tree tree;
  tree.Write("stays", "#!/bin/sh\nexec sleep 600\n");
  chmod(tree.path("stays").c_str(), 0700);
  const std::string id = os::RandomHex(6);
  os::SpawnSpec spec;
  spec.argv = {"/bin/sleep", "600"};
  spec.env = {absl::StrCat("DTRAIN_JOB_ID=", id), "DTRAIN_ATTEMPT=0"};
  loop::Loop loop;
  Quarantine quarantine;
  auto processes = OwnProcesses::Start({loop, quarantine, Reach::kMarked}, {geteuid(), "me"},
                                       tree.path("stays"), nullptr, "");
  ASSERT_TRUE(processes.ok()) << processes.status();
  (*processes)->SetPart(id, 0, 0);
  auto first = os::Spawn(spec);
  ASSERT_TRUE(first.ok()) << first.status();
  (*processes)->KillLiving();
  auto status = os::WaitAndReap(first->pidfd.get());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->signal, SIGKILL);
  auto second = os::Spawn(spec);
  ASSERT_TRUE(second.ok()) << second.status();
  quarantine.Looked(geteuid(), loop.Now(), loop.Now() + std::chrono::hours(1), 0);
  (*processes)->KillLiving();
  (void)os::SendSignal(second->pidfd.get(), SIGTERM);
  status = os::WaitAndReap(second->pidfd.get());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->signal, SIGTERM) << "it was killed before";
  (*processes)->KillShepherd();
}

// While an agent is away, its launcher may run the same attempt by an agent of its own.
TEST(OwnProcessesTest, WhatAnotherShepherdOfTheSameAttemptHasStays) {
  const std::string id = os::RandomHex(6);
  const auto start = [&](const std::string& mark, std::vector<std::string> argv) {
    os::SpawnSpec spec;
    spec.argv = std::move(argv);
    spec.env = {absl::StrCat("DTRAIN_JOB_ID=", id), "DTRAIN_ATTEMPT=0",
                absl::StrCat(os::kShepherdVariable, "=", mark)};
    return os::Spawn(spec);
  };
  const pid_t gone = getpid();  // in its place: with another start time
  const uint64_t start_time = *os::StartTime(gone) - 1;
  auto zombie = start("", {"/bin/true"});
  ASSERT_TRUE(zombie.ok());
  pollfd end{zombie->pidfd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&end, 1, 60'000), 1);
  const std::vector<std::string> sleep = {"/bin/sleep", "600"};
  auto left = start(os::ProcessMark(gone, start_time), sleep);
  auto of_zombie = start(os::ProcessMark(zombie->pid), sleep);
  auto kept = start(os::ProcessMark(getpid()), sleep);
  ASSERT_TRUE(left.ok() && of_zombie.ok() && kept.ok());
  loop::Loop loop;
  Quarantine quarantine;
  OwnProcesses::Remains remains;
  remains.shepherd.pid = gone;
  remains.start_time = start_time;
  auto processes = OwnProcesses::Adopt({loop, quarantine, Reach::kMarked}, {geteuid(), "me"}, id, 0,
                                       std::move(remains));
  processes->EndAll([&] { loop.Stop(); });
  loop.Run();
  EXPECT_EQ(processes->killed(), (std::set<uint32_t>{static_cast<uint32_t>(left->pid),
                                                     static_cast<uint32_t>(of_zombie->pid)}));
  for (const int pidfd : {left->pidfd.get(), of_zombie->pidfd.get()}) {
    const auto status = os::WaitAndReap(pidfd);
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->signal, SIGKILL);
  }
  (void)os::WaitAndReap(zombie->pidfd.get());
  (void)os::SendSignal(kept->pidfd.get(), SIGTERM);
  const auto status = os::WaitAndReap(kept->pidfd.get());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->signal, SIGTERM) << "it was killed before";
}

// It goes through folders that anybody fills.
TEST(OwnProcessesTest, TheEndOfOneOfWhichNothingIsLeftCountsAsALook) {
  loop::Loop loop;
  Quarantine quarantine;
  auto processes = OwnProcesses::Adopt({loop, quarantine, Reach::kMarked}, {geteuid(), "me"},
                                       os::RandomHex(6), 0, {});
  const TimePoint begin = loop.Now();
  processes->EndAll([&] { loop.Stop(); });
  loop.Run();
  EXPECT_GT(quarantine.LooksFrom(geteuid()), begin);
}

// H1: an agent that has used up its open files lets go of a shepherd that does not end by itself.
TEST(OwnProcessesTest, OneThatStaysIsKilledAndReapedWithoutAFreeDescriptor) {
  const inventory::Tree tree;
  tree.Write("stays", "#!/bin/sh\nexec sleep 600\n");
  chmod(tree.path("stays").c_str(), 0700);
  loop::Loop loop;
  Quarantine quarantine;
  auto processes = OwnProcesses::Start({loop, quarantine, Reach::kBelow}, {geteuid(), "me"},
                                       tree.path("stays"), nullptr, "");
  ASSERT_TRUE(processes.ok()) << processes.status();
  const pid_t pid = (*processes)->shepherd_pid();
  // As the end of its channel.
  (void)(*processes)->TakeSocket();
  (*processes)->set_patience(std::chrono::milliseconds(100));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  processes->reset();
  loop::Timer look(loop);
  const TimePoint deadline = loop.Now() + std::chrono::seconds(20);
  absl::AnyInvocable<void()> check = [&] {
    siginfo_t info{};
    const bool reaped =
        waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0;
    if (reaped || loop.Now() > deadline) {
      loop.Stop();
    } else {
      look.After(std::chrono::milliseconds(10), [&] { check(); });
    }
  };
  check();
  loop.Run();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  siginfo_t info{};
  EXPECT_NE(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG), 0)
      << "its process is left behind" << (info.si_pid == pid ? ", a zombie" : "");
}

}  // namespace
}  // namespace dtrain::spawn
