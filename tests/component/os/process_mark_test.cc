// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

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
