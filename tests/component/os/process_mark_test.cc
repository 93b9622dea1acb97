// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"
#include "common/os/spawn.h"

// What tells a process of a dead job from one of a living.
namespace dtrain::os {
namespace {

// A `cat` that ends when its stdin does.
struct Cat {
  explicit Cat(std::vector<std::string> env) {
    auto pipe = Pipe();
    EXPECT_TRUE(pipe.ok());
    SpawnSpec spec;
    spec.argv = {"/bin/cat"};
    spec.env = std::move(env);
    spec.stdin_fd = pipe->first.get();
    auto spawned = Spawn(spec);
    EXPECT_TRUE(spawned.ok()) << spawned.status();
    child = *std::move(spawned);
    stdin_writer = std::move(pipe->second);
  }
  void End() {
    stdin_writer.Reset();
    EXPECT_TRUE(WaitAndReap(child.pidfd.get()).ok());
  }
  Child child;
  UniqueFd stdin_writer;
};

TEST(ProcessMark, NamesAProcessForGood) {
  const std::string own = ProcessMark(getpid());
  EXPECT_TRUE(Lives(own));
  EXPECT_THAT(own, testing::HasSubstr(BootId()));
  Cat cat({});
  const std::string mark = ProcessMark(cat.child.pid);
  EXPECT_TRUE(Lives(mark));
  cat.End();
  EXPECT_FALSE(Lives(mark));
  // The pid again, but another process: its start time differs.
  EXPECT_FALSE(Lives(absl::StrCat(getpid(), ":1:", BootId())));
  EXPECT_FALSE(Lives(absl::StrCat(getpid(), ":", *StartTime(getpid()), ":another boot")));
  for (const char* none : {"", "x", "-1", "0", "1:"}) EXPECT_FALSE(Lives(none)) << none;
}

TEST(ProcessMark, FindsWhoHasAVariable) {
  const std::string name = absl::StrCat("DTRAIN_TEST_", getpid());
  Cat marked({name + "=a mark", "B=2"}), other({name + "X=1", "B=" + name + "=1"});
  std::vector<MarkedProcess> found;
  // It has no environment in the middle of its exec.
  const TimePoint end = Clock::now() + std::chrono::seconds(30);
  while (found.empty() && Clock::now() < end) {
    found = FindByVariable(name, "DTRAIN_TEST_NAMESPACE");
  }
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].info.pid, marked.child.pid);
  EXPECT_EQ(found[0].uid, geteuid());
  EXPECT_EQ(VariableOf(found[0].environment, name), "a mark");
  EXPECT_EQ(VariableOf(found[0].environment, "B"), "2");
  EXPECT_EQ(VariableOf(found[0].environment, "C"), "");
  marked.End();
  other.End();
}

// It has no environment for a part of each exec, and must be found all the same.
TEST(ProcessMark, FindsWhoIsInTheMiddleOfAnExec) {
  const std::string name = absl::StrCat("DTRAIN_TEST_", getpid());
  std::string script = testing::TempDir() + "dtrain-exec-XXXXXX";
  const int fd = mkstemp(script.data());
  ASSERT_GE(fd, 0);
  constexpr char kAgain[] = "#!/bin/sh\nexec \"$0\"\n";
  ASSERT_EQ(write(fd, kAgain, sizeof(kAgain) - 1), static_cast<ssize_t>(sizeof(kAgain) - 1));
  ASSERT_EQ(fchmod(fd, 0700), 0);
  close(fd);
  SpawnSpec spec;
  spec.argv = {script};
  spec.env = {name + "=1"};
  auto child = Spawn(spec);
  ASSERT_TRUE(child.ok()) << child.status();
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(FindByEnvironment(geteuid(), {name + "=1"}).size(), 1u) << i;
  }
  (void)SendSignal(child->pidfd.get(), SIGKILL);
  EXPECT_TRUE(WaitAndReap(child->pidfd.get()).ok());
  unlink(script.c_str());
}

// However many processes there are, a look takes no longer than it may, and others come to the end.
TEST(ProcessMark, LooksInParts) {
  const std::string name = absl::StrCat("DTRAIN_TEST_", getpid());
  Cat marked({name + "=1"});
  LookInParts parts;
  std::vector<ProcessInfo> found = FindByEnvironment(geteuid(), {name + "=1"}, &parts);
  ASSERT_NE(parts.next, 0) << "in no time it looks at one";
  parts.most = std::chrono::milliseconds(1);
  while (parts.next != 0) {
    const pid_t begin = parts.next;
    for (const ProcessInfo& info : FindByEnvironment(geteuid(), {name + "=1"}, &parts)) {
      EXPECT_GE(info.pid, begin);
      found.push_back(info);
    }
    ASSERT_TRUE(parts.next == 0 || parts.next > begin);
  }
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].pid, marked.child.pid);
  marked.End();
}

// A process may have 2 MiB of it, and a job's must be found all the same. What is cut off is no
// mark.
TEST(ProcessMark, FindsWhoHasALargeEnvironment) {
  const std::string name = absl::StrCat("DTRAIN_TEST_", getpid());
  constexpr size_t kCut = 256 << 10;
  std::vector<std::string> large;
  size_t size = 0;
  const auto fill = [&](size_t until) {
    while (size < until) {
      const size_t room = std::min<size_t>(until - size, 100'000);
      large.push_back("F=" + std::string(room - 3, 'x'));
      size += room;
    }
  };
  std::vector<std::string> first = {name + "=1"};
  fill(kCut + 100'000);
  first.insert(first.end(), large.begin(), large.end());
  large.clear();
  size = 0;
  fill(kCut - name.size() - 2);
  large.push_back(name + "=12");  // of which the last digit is too far
  Cat marked(first), cut(large);
  std::vector<ProcessInfo> found;
  const TimePoint end = Clock::now() + std::chrono::seconds(30);
  const auto is_there = [&](const Cat& cat) {
    const auto environment = ReadSmallFile(absl::StrCat("/proc/", cat.child.pid, "/environ"));
    return environment.ok() && environment->size() > kCut;
  };
  while (!(is_there(marked) && is_there(cut))) ASSERT_LT(Clock::now(), end);
  found = FindByEnvironment(geteuid(), {name + "=1"});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].pid, marked.child.pid);
  marked.End();
  cut.End();
}

// As in a container.
TEST(ProcessMark, FindsThoseInOtherPidNamespacesThatNameThisOne) {
  if (geteuid() != 0) GTEST_SKIP() << "makes a PID namespace";
  const std::string name = absl::StrCat("DTRAIN_TEST_", getpid());
  auto pipe = Pipe();
  ASSERT_TRUE(pipe.ok());
  std::vector<Child> children;
  for (const std::string& space : {PidNamespace(), std::string("12345")}) {
    SpawnSpec spec;
    // It execs: the second process alone has the variable.
    spec.argv = {"/usr/bin/unshare",   "--pid",        "--fork",
                 "--kill-child",       "/usr/bin/env", name + "=a mark",
                 "NAMESPACE=" + space, "/bin/cat"};
    spec.stdin_fd = pipe->first.get();
    auto child = Spawn(spec);
    ASSERT_TRUE(child.ok()) << child.status();
    children.push_back(*std::move(child));
  }
  const auto both_are_there = [&] {
    size_t cats = 0;
    for (const Child& child : children) {
      for (const ProcessInfo& info : Descendants(child.pid)) {
        auto words = ReadSmallFile(absl::StrCat("/proc/", info.pid, "/cmdline"));
        cats += words.ok() && words->substr(0, 8) == "/bin/cat" ? 1 : 0;
      }
    }
    return cats == 2;
  };
  const TimePoint end = Clock::now() + std::chrono::seconds(20);
  while (!both_are_there()) ASSERT_LT(Clock::now(), end);
  const std::vector<MarkedProcess> found = FindByVariable(name, "NAMESPACE");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(VariableOf(found[0].environment, "NAMESPACE"), PidNamespace());
  EXPECT_NE(PidNamespace(found[0].info.pid), PidNamespace());
  for (const Child& child : children) {
    (void)SendSignal(child.pidfd.get(), SIGKILL);
    EXPECT_TRUE(WaitAndReap(child.pidfd.get()).ok());
  }
}

}  // namespace
}  // namespace dtrain::os
