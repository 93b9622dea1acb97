// SPDX-License-Identifier: Apache-2.0
// What runs of a job is ended, wherever it has gone, and nothing else is: with real processes and,
// where this machine lets us make some, real cgroups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/spawn/own_spawner.h"
#include "common/loop/loop.h"
#include "common/os/account.h"
#include "common/os/cgroup.h"
#include "common/os/credentials.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"
#include "tests/component/inventory/tree.h"

namespace dtrain::spawn {
namespace {

constexpr Duration kLimit = std::chrono::seconds(20);

// The loop turns in a thread of its own; the test asks there and waits here.
class EndingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    thread_ = std::thread([this] { loop_.Run(); });
  }
  void TearDown() override {
    OnLoop([this] {
      processes_.reset();
      spawner_.reset();
      loop_.Stop();
    });
    thread_.join();
  }
  template <typename F>
  void OnLoop(F f) {
    std::promise<void> done;
    loop_.Post([&] {
      f();
      done.set_value();
    });
    EXPECT_EQ(done.get_future().wait_for(kLimit), std::future_status::ready);
  }
  // Whether it ends.
  bool EndAll() {
    std::promise<void> ended;
    loop_.Post([&] { processes_->EndAll([&] { ended.set_value(); }); });
    return ended.get_future().wait_for(kLimit) == std::future_status::ready;
  }
  std::vector<uint32_t> Living() {
    std::vector<uint32_t> living;
    OnLoop([&] { living = processes_->Living(); });
    return living;
  }
  void Start(Reach reach, const std::string& program, const std::string& cgroup) {
    OnLoop([&] {
      auto started = OwnProcesses::Start({loop_, quarantine_, reach}, {geteuid(), "me"}, program,
                                         /*user=*/nullptr, cgroup);
      ASSERT_TRUE(started.ok()) << started.status();
      processes_ = *std::move(started);
    });
  }
  void MakeSpawner(const std::string& program) {
    OnLoop([&] {
      spawner_ = std::make_unique<OwnSpawner>(loop_, program,
                                              [](uid_t uid) { return os::FindAccount(uid); });
    });
  }
  // Returns why it cannot be taken over.
  std::string Adopt(std::optional<v1::JobRecord> record, os::UniqueFd socket = {}) {
    std::string why_not;
    OnLoop([&] {
      Spawner::Found found =
          spawner_->Adopt({job_, 3, std::nullopt, std::move(record), std::move(socket)});
      why_not = found.why_not;
      processes_ = std::move(found.processes);
    });
    return why_not;
  }
  v1::JobRecord Record(pid_t pid, uint64_t start_time) {
    v1::JobRecord record;
    record.set_uid(geteuid());
    record.set_owner("me");
    record.set_shepherd_pid(static_cast<uint32_t>(pid));
    record.set_shepherd_start_time(start_time);
    return record;
  }
  // The number that a program of the test has written to this file, once it is there.
  pid_t PidIn(const std::string& name) {
    const TimePoint end = Clock::now() + kLimit;
    pid_t pid = 0;
    while (!(std::ifstream(tree_.path(name)) >> pid) && Clock::now() < end) poll(nullptr, 0, 5);
    EXPECT_NE(pid, 0) << name << " was not written";
    return pid;
  }
  // Whether /proc shows this in its environment. A spawn returns when the kernel has let go of the
  // old program, a moment before the new one's variables are there.
  static bool HasVariables(pid_t pid, const std::string& text) {
    const TimePoint end = Clock::now() + kLimit;
    for (;;) {
      std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
      const std::string all(std::istreambuf_iterator<char>(file), {});
      if (absl::StrContains(all, text)) return true;
      if (Clock::now() >= end) return false;
      poll(nullptr, 0, 5);
    }
  }
  static bool Runs(pid_t pid) {
    const auto process = os::FindProcess(pid);
    return process && process->state != 'Z';
  }
  // In place of a shepherd: it starts a process that has a session of its own and, unless it is
  // `marked`, nothing of the job in its environment.
  std::string Program(bool marked) {
    const std::string command =
        marked ? absl::StrCat("DTRAIN_JOB_ID=", job_, " DTRAIN_ATTEMPT=3 setsid sleep 600")
               : "env -i /usr/bin/setsid /bin/sleep 600";
    tree_.Write("shepherd", absl::StrCat("#!/bin/sh\n", command, " &\n", "echo $! >",
                                         tree_.path("new"), "; mv ", tree_.path("new"), " ",
                                         tree_.path("left"), "\nexec sleep 600\n"));
    chmod(tree_.path("shepherd").c_str(), 0700);
    return tree_.path("shepherd");
  }
  loop::Loop loop_;
  std::thread thread_;
  Quarantine quarantine_;
  std::unique_ptr<Spawner> spawner_;
  std::unique_ptr<Processes> processes_;
  const inventory::Tree tree_;
  const std::string job_ = "end-" + os::RandomHex(6);
};

TEST_F(EndingTest, WhatLeftTheTreeIsInTheCgroup) {
  auto parent = os::FindWritableCgroup();
  if (!parent.ok()) GTEST_SKIP() << parent.status();
  auto cgroup = os::Cgroup::Make(*parent, "dtrain-shepherd-" + job_ + ".3");
  ASSERT_TRUE(cgroup.ok()) << cgroup.status();
  Start(Reach::kMarked, Program(/*marked=*/false), cgroup->path());
  OnLoop([&] { processes_->SetPart(job_, 3, 1); });
  const pid_t left = PidIn("left");
  ASSERT_TRUE(Runs(left));
  EXPECT_TRUE(EndAll());
  EXPECT_FALSE(Runs(left));
  EXPECT_TRUE(processes_->shepherd_ended());
  EXPECT_FALSE(std::filesystem::exists(cgroup->path()));
  EXPECT_EQ(quarantine_.Why(loop_.Now() + kLimit, std::nullopt), "");
}

TEST_F(EndingTest, WhatLeftTheTreeIsKnownByItsVariables) {
  Start(Reach::kMarked, Program(/*marked=*/true), "");
  const pid_t left = PidIn("left");
  EXPECT_THAT(Living(), testing::IsEmpty()) << "no job is known yet";
  OnLoop([&] { processes_->SetPart(job_, 3, 1); });
  EXPECT_THAT(Living(), testing::ElementsAre(static_cast<uint32_t>(left)));
  EXPECT_TRUE(EndAll());
  EXPECT_FALSE(Runs(left));
  EXPECT_TRUE(processes_->shepherd_ended());
  EXPECT_THAT(processes_->killed(), testing::Contains(static_cast<uint32_t>(left)));
}

// An agent that finds nothing but a job's folder ends what has the job's name.
TEST_F(EndingTest, WithoutARecordTheNameIsEnough) {
  MakeSpawner("/bin/false");
  os::SpawnSpec spec;
  spec.argv = {"/bin/sleep", "600"};
  spec.env = {"PATH=/usr/bin:/bin", "DTRAIN_JOB_ID=" + job_, "DTRAIN_ATTEMPT=3"};
  auto left = os::Spawn(spec);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_TRUE(HasVariables(left->pid, job_));
  EXPECT_THAT(Adopt(std::nullopt), testing::HasSubstr("missing or damaged"));
  ASSERT_NE(processes_, nullptr);
  EXPECT_TRUE(EndAll());
  EXPECT_FALSE(Runs(left->pid));
  EXPECT_THAT(processes_->killed(), testing::Contains(static_cast<uint32_t>(left->pid)));
  (void)os::SendSignal(left->pidfd.get(), SIGKILL);
  (void)os::WaitAndReap(left->pidfd.get());
}

// The shepherd has ended and its number is another process's by now.
TEST_F(EndingTest, AProcessThatHasTheNumberOfADeadShepherdLives) {
  MakeSpawner("/bin/false");
  os::SpawnSpec spec;
  spec.argv = {"/bin/sleep", "600"};
  spec.env = {"PATH=/usr/bin:/bin"};
  auto other = os::Spawn(spec);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(Adopt(Record(other->pid, os::StartTime(other->pid).value_or(0) - 1)), "");
  ASSERT_NE(processes_, nullptr);
  EXPECT_TRUE(EndAll());
  EXPECT_TRUE(Runs(other->pid));
  EXPECT_THAT(processes_->killed(), testing::IsEmpty());
  (void)os::SendSignal(other->pidfd.get(), SIGKILL);
  (void)os::WaitAndReap(other->pidfd.get());
}

TEST_F(EndingTest, WhoAnswersInTheShepherdsPlaceIsFoundOutAndEnded) {
  MakeSpawner("/bin/false");
  os::SpawnSpec spec;
  spec.argv = {"/usr/bin/python3", "-c",
               "import os, socket, sys, time\n"
               "s = socket.socket(socket.AF_UNIX)\n"
               "s.bind(sys.argv[1] + '/sock')\n"
               "s.listen()\n"
               "open(sys.argv[1] + '/new', 'w').write(str(os.getpid()))\n"
               "os.rename(sys.argv[1] + '/new', sys.argv[1] + '/left')\n"
               "time.sleep(600)\n",
               tree_.path(".")};
  spec.env = {"PATH=/usr/bin:/bin"};
  auto impostor = os::Spawn(spec);
  ASSERT_TRUE(impostor.ok()) << impostor.status();
  EXPECT_EQ(PidIn("left"), impostor->pid);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  tree_.path("./sock").copy(name.sun_path, sizeof(name.sun_path) - 1);
  os::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  const bool is_told = os::PidfdOfPeer(socket.get()).ok();  // by the kernel, since Linux 6.5
  EXPECT_EQ(Adopt(Record(getppid(), 1), std::move(socket)), "another process answers in its place");
  EXPECT_TRUE(EndAll());
  EXPECT_EQ(Runs(impostor->pid), !is_told);
  (void)os::SendSignal(impostor->pidfd.get(), SIGKILL);
  (void)os::WaitAndReap(impostor->pidfd.get());
}

TEST_F(EndingTest, ASweepTakesEmptyCgroupsOnly) {
  auto parent = os::FindWritableCgroup();
  if (!parent.ok()) GTEST_SKIP() << parent.status();
  MakeSpawner(Program(/*marked=*/false));
  std::promise<absl::Status> started;
  OnLoop([&] {
    auto used = spawner_->Spawn({{geteuid(), "me"}, job_, 3});
    ASSERT_TRUE(used.ok()) << used.status();
    processes_ = *std::move(used);
    processes_->WhenStarted([&](absl::Status status) { started.set_value(std::move(status)); });
  });
  EXPECT_TRUE(started.get_future().get().ok());
  auto empty = os::Cgroup::Make(*parent, "dtrain-shepherd-" + job_ + ".4");
  ASSERT_TRUE(empty.ok()) << empty.status();
  const std::string full = absl::StrCat(*parent, "/dtrain-shepherd-", job_, ".3.", geteuid());
  OnLoop([&] { spawner_->Sweep(); });
  EXPECT_FALSE(std::filesystem::exists(empty->path()));
  EXPECT_TRUE(std::filesystem::exists(full));
  EXPECT_TRUE(EndAll());
  EXPECT_FALSE(std::filesystem::exists(full));
}

// dtrain ps asks through one.
TEST_F(EndingTest, AnAgentThatOnlyAnswersHasNoShepherd) {
  OnLoop([&] {
    spawner_ = OneSpawner::Empty();
    const absl::Status refused = spawner_->Spawn({{geteuid(), "me"}, job_, 3}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  });
}

TEST_F(EndingTest, AnAgentOfOneJobHandsItsShepherdOutOnce) {
  OnLoop([&] {
    auto made = OneSpawner::Start(loop_, Program(/*marked=*/false));
    ASSERT_TRUE(made.ok()) << made.status();
    spawner_ = *std::move(made);
    auto first = spawner_->Spawn({{geteuid(), "me"}, job_, 3});
    ASSERT_TRUE(first.ok()) << first.status();
    processes_ = *std::move(first);
    EXPECT_TRUE(absl::IsFailedPrecondition(spawner_->Spawn({{geteuid(), "me"}, job_, 4}).status()));
  });
  const pid_t left = PidIn("left");
  OnLoop([&] { processes_->SetPart(job_, 3, 1); });
  EXPECT_TRUE(EndAll());
  EXPECT_FALSE(Runs(left)) << "it is below us";
}

}  // namespace
}  // namespace dtrain::spawn
