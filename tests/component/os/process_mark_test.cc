// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
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
  const std::vector<MarkedProcess> found = FindByVariable(name);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].info.pid, marked.child.pid);
  EXPECT_EQ(found[0].uid, geteuid());
  EXPECT_EQ(VariableOf(found[0].environment, name), "a mark");
  EXPECT_EQ(VariableOf(found[0].environment, "B"), "2");
  EXPECT_EQ(VariableOf(found[0].environment, "C"), "");
  marked.End();
  other.End();
}

}  // namespace
}  // namespace dtrain::os
