// SPDX-License-Identifier: Apache-2.0
#include "common/os/cgroup.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"
#include "common/os/spawn.h"

namespace dtrain::os {
namespace {

using ::testing::Contains;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

SpawnSpec Shell(const std::string& script) {
  SpawnSpec spec;
  spec.argv = {"/bin/sh", "-c", script};
  spec.env = {"PATH=/usr/bin:/bin"};
  return spec;
}

// Until it holds or ten seconds are over.
template <typename F>
bool Eventually(F holds) {
  for (int i = 0; i < 2000; ++i) {
    if (holds()) return true;
    poll(nullptr, 0, 5);
  }
  return false;
}

class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto parent = FindWritableCgroup();
    if (!parent.ok()) GTEST_SKIP() << parent.status();
    parent_ = *parent;
  }
  std::string Name() { return JobCgroupName(RandomHex(6), 0, 1); }
  std::string parent_;
};

TEST_F(CgroupTest, KillsAndRemovesAllThatIsBelow) {
  auto job = Cgroup::Make(parent_, Name());
  ASSERT_TRUE(job.ok()) << job.status();
  auto hidden = Cgroup::Make(job->path(), ".hidden");
  ASSERT_TRUE(hidden.ok());
  auto rank = Cgroup::Make(hidden->path(), "rank-0");
  ASSERT_TRUE(rank.ok());
  EXPECT_FALSE(job->Populated());
  auto directory = rank->Open();
  ASSERT_TRUE(directory.ok());
  SpawnSpec spec = Shell("setsid sleep 600 & exec sleep 600");
  spec.cgroup_fd = directory->get();
  auto child = Spawn(spec);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE(job->Populated());
  EXPECT_TRUE(Eventually([&] { return job->Processes().size() == 2; }));
  EXPECT_THAT(job->Processes(), Contains(child->pid));
  EXPECT_FALSE(job->Remove().ok());

  job->Kill();
  EXPECT_EQ(WaitAndReap(child->pidfd.get())->signal, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !job->Populated(); }));
  EXPECT_TRUE(job->Remove().ok());
  EXPECT_NE(access(job->path().c_str(), F_OK), 0);
  EXPECT_TRUE(job->Remove().ok());  // already gone
}

// What /proc/self/cgroup says in a child that was to start there; else why there is none.
std::string WhereAChildIs(const Cgroup& cgroup) {
  auto directory = cgroup.Open();
  auto pipe = Pipe();
  if (!directory.ok() || !pipe.ok()) return "no descriptors";
  SpawnSpec spec = Shell("exec cat /proc/self/cgroup");
  spec.cgroup_fd = directory->get();
  spec.stdout_fd = pipe->second.get();
  auto child = Spawn(spec);
  if (!child.ok()) return child.status().ToString();
  pipe->second.Reset();
  std::string out(4096, '\0');
  size_t size = 0;
  ssize_t n = 0;
  while ((n = read(pipe->first.get(), out.data() + size, out.size() - size)) > 0) {
    size += static_cast<size_t>(n);
  }
  out.resize(size);
  (void)WaitAndReap(child->pidfd.get());
  return out;
}

// As in a container whose filter of system calls does not know this one, and before Linux 5.3.
void ForgetClone3() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{std::size(rules), rules};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 ||
      syscall(SYS_clone3, nullptr, 0) != -1 || errno != ENOSYS) {
    std::perror("seccomp");
    _exit(2);
  }
}

TEST_F(CgroupTest, AChildStartsInIt) {
  auto cgroup = Cgroup::Make(parent_, Name());
  ASSERT_TRUE(cgroup.ok());
  const std::string name = cgroup->path().substr(cgroup->path().rfind('/')) + "\n";
  EXPECT_THAT(WhereAChildIs(*cgroup), HasSubstr(name));
  EXPECT_EXIT(
      {
        ForgetClone3();
        const std::string where = WhereAChildIs(*cgroup);
        std::fputs(where.c_str(), stderr);
        _exit(where.find(name) == std::string::npos ? 1 : 0);
      },
      ExitedWithCode(0), name);
  EXPECT_TRUE(cgroup->Remove().ok());
}

TEST_F(CgroupTest, OneThatIsNoneIsToldAsThat) {
  UniqueFd directory(open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC));
  SpawnSpec spec = Shell("exit 0");
  spec.cgroup_fd = directory.get();
  SpawnError error;
  const auto child = Spawn(spec, &error);
  EXPECT_EQ(child.status().message(),
            "put a new process into its cgroup: No such file or directory");
  EXPECT_EQ(error.stage, SpawnStage::kCgroup);
  EXPECT_EQ(error.error_number, ENOENT);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // nothing is left
}

TEST_F(CgroupTest, AnExistingNameIsAnError) {
  std::string name = Name();
  auto first = Cgroup::Make(parent_, name);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Cgroup::Make(parent_, name).status()));
  EXPECT_TRUE(first->Remove().ok());
}

TEST(CgroupNameTest, HoldsNothingThatLeavesTheDirectory) {
  EXPECT_EQ(JobCgroupName("ab-1_2", 3, 4), "dtrain-ab-1_2.3.4");
  EXPECT_EQ(JobCgroupName("../x/y", 0, 0), "dtrain-___x_y.0.0");
}

TEST(ProcessTreeTest, DescendantsIncludeGrandchildren) {
  auto pipe = Pipe();
  SpawnSpec spec = Shell("sleep 600 & echo $!; wait");
  spec.stdout_fd = pipe->second.get();
  auto child = Spawn(spec);
  ASSERT_TRUE(child.ok());
  char buffer[32] = {};
  ASSERT_GT(read(pipe->first.get(), buffer, sizeof(buffer) - 1), 0);
  std::vector<pid_t> pids;
  for (const ProcessInfo& info : Descendants(getpid())) pids.push_back(info.pid);
  EXPECT_THAT(pids, Contains(child->pid));
  EXPECT_THAT(pids, Contains(atoi(buffer)));
  EXPECT_NE(WaitChannel(child->pid), "");
  auto grandchild = OpenPidfd(atoi(buffer));
  ASSERT_TRUE(grandchild.ok());

  EXPECT_GE(Kill(Descendants(getpid())), 2u);
  EXPECT_EQ(WaitAndReap(child->pidfd.get())->signal, SIGKILL);
  pollfd p{grandchild->get(), POLLIN, 0};
  EXPECT_EQ(TEMP_FAILURE_RETRY(poll(&p, 1, 10000)), 1);
}

// Each process of the chain lives on only in a child it has just made.
TEST(ProcessTreeTest, AGroupEndsInOneStepWhileItsProcessesForkOn) {
  ASSERT_TRUE(BecomeSubreaper().ok());
  auto pipe = Pipe();
  SpawnSpec spec = Shell("f() { f & exit; }; echo up; f");
  spec.stdout_fd = pipe->second.get();
  spec.new_session = true;
  auto child = Spawn(spec);
  ASSERT_TRUE(child.ok());
  char buffer[32] = {};
  ASSERT_GT(read(pipe->first.get(), buffer, sizeof(buffer)), 0);
  EXPECT_TRUE(WaitAndReap(child->pidfd.get()).ok());  // the chain has left its first process
  KillGroups(Descendants(getpid()));
  for (int i = 0; i < 1000 && HasChildren(); ++i) {
    if (waitpid(-1, nullptr, WNOHANG) == 0) poll(nullptr, 0, 10);
  }
  EXPECT_FALSE(HasChildren());
  // What other tests leave to process 1 is no child of ours.
  EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0), 0);
}

TEST(ProcessTreeTest, GroupsThatMayHaveOthersInThemAreLeftAlone) {
  auto in_our_session = Spawn(Shell("exec sleep 600"));
  ASSERT_TRUE(in_our_session.ok());
  std::vector<ProcessInfo> found = Descendants(getpid());
  ASSERT_EQ(found.size(), 1u);
  ProcessInfo stranger = found[0];
  stranger.pid = 1;  // it is in the group of one that is not listed
  KillGroups({stranger});
  stranger.group = getpgrp();
  KillGroups({stranger});
  pollfd p{in_our_session->pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&p, 1, 50), 0);
  KillGroups(found);
  EXPECT_EQ(WaitAndReap(in_our_session->pidfd.get())->signal, SIGKILL);
}

// The kernel gives it the state of one that has ended.
TEST(ProcessTreeTest, AProcessLivesWhoseMainThreadAloneHasEnded) {
  SpawnSpec spec;
  spec.argv = {"/usr/bin/python3", "-I", "-S", "-c",
               absl::StrCat("import _thread, ctypes, time\n"
                            "_thread.start_new_thread(time.sleep, (600,))\n"
                            "ctypes.CDLL(None).syscall(",
                            SYS_exit, ", 0)")};
  auto child = Spawn(spec);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE(Eventually([&] {
    const auto text = ReadSmallFile(absl::StrCat("/proc/", child->pid, "/stat"));
    return text.ok() && absl::StrContains(*text, ") Z ");
  }));
  const auto living = FindProcess(child->pid);
  EXPECT_TRUE(living.has_value() && living->state != 'Z');
  EXPECT_EQ(Kill(Descendants(getpid())), 1u);
  (void)SendSignal(child->pidfd.get(), SIGKILL);  // if Kill has spared it
  EXPECT_TRUE(Eventually([&] { return EndedChild() == child->pid; }));
  const auto ended = FindProcess(child->pid);
  EXPECT_TRUE(ended.has_value() && ended->state == 'Z');
  EXPECT_EQ(WaitAndReap(child->pidfd.get())->signal, SIGKILL);
}

TEST(ProcessTreeTest, EndedChildrenAreSeenThenReaped) {
  EXPECT_FALSE(HasChildren());
  auto child = Spawn(Shell("exit 3"));
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(Eventually([&] { return EndedChild() == child->pid; }));
  EXPECT_EQ(EndedChild(), child->pid) << "looking must not reap";
  auto status = TryReap(child->pidfd.get());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ((*status)->code, 3);
  EXPECT_FALSE(TryReap(child->pidfd.get()).ok());
  EXPECT_FALSE(HasChildren());

  child = Spawn(Shell("exit 0"));
  EXPECT_TRUE(Eventually([&] { return EndedChild() != 0; }));
  ReapQuietly(child->pid);
  EXPECT_FALSE(HasChildren());
}

TEST(PidfdTest, ARunningChildIsNotReaped) {
  auto child = Spawn(Shell("exec sleep 600"));
  ASSERT_TRUE(child.ok());
  auto status = TryReap(child->pidfd.get());
  ASSERT_TRUE(status.ok());
  EXPECT_FALSE(status->has_value());
  ASSERT_TRUE(SendSignal(child->pidfd.get(), SIGTERM).ok());
  EXPECT_EQ(WaitAndReap(child->pidfd.get())->signal, SIGTERM);
  EXPECT_TRUE(absl::IsNotFound(OpenPidfd(child->pid).status()));
}

TEST(OomKillCounterTest, StartsAtZero) { EXPECT_EQ(OomKillCounter().Read(), 0u); }

}  // namespace
}  // namespace dtrain::os
