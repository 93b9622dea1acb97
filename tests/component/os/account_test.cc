// SPDX-License-Identifier: Apache-2.0
#include "common/os/account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"

namespace dtrain::os {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(AccountTest, FindsRootByNumberAndName) {
  auto root = FindAccount(uid_t{0});
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(root->name, "root");
  EXPECT_THAT(root->groups, Contains(root->gid));
  EXPECT_THAT(LoginEnvironment(*root), Contains("HOME=" + root->home));
  auto by_name = FindAccount("root");
  ASSERT_TRUE(by_name.ok());
  EXPECT_EQ(by_name->uid, 0u);
}

TEST(AccountTest, WhoIsNotThereIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(FindAccount("no-such-user").status()));
  EXPECT_TRUE(absl::IsNotFound(FindAccount(uid_t{3999999999}).status()));
}

// What a process that was spawned as `user` prints.
std::string RunAs(const Account& user, const std::string& script) {
  auto pipe = Pipe();
  SpawnSpec spec;
  spec.argv = {"/bin/sh", "-c", script};
  spec.env = LoginEnvironment(user);
  spec.user = &user;
  spec.working_directory = "/";
  spec.stdout_fd = pipe->second.get();
  auto child = SpawnAs(spec);
  EXPECT_TRUE(child.ok()) << child.status();
  pipe->second.Reset();
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe->first.get(), buffer, sizeof(buffer))) > 0;) {
    out.append(buffer, static_cast<size_t>(n));
  }
  if (child.ok()) {
    EXPECT_EQ(child->Report(), absl::OkStatus());
    (void)WaitAndReap(child->child.pidfd.get());
  }
  return out;
}

TEST(AccountTest, AChildOfAnotherUserHasItsRightsAndNoMore) {
  if (geteuid() != 0) {
    // Without root nobody can become another user; that it is said is what can be tried.
    auto self = FindAccount(geteuid());
    auto root = FindAccount(uid_t{0});
    ASSERT_TRUE(root.ok());
    SpawnSpec spec;
    spec.argv = {"/bin/true"};
    spec.user = &*root;
    auto child = SpawnAs(spec);
    ASSERT_TRUE(child.ok()) << child.status();
    (void)WaitAndReap(child->child.pidfd.get());
    EXPECT_THAT(std::string(child->Report()->message()),
                HasSubstr("to its user: Operation not permitted"));
    return;
  }
  auto daemon = FindAccount("daemon");
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const std::string out =
      RunAs(*daemon,
            "id -u; id -g; echo $HOME; grep -E 'NoNewPrivs|CapEff|CapPrm|Groups' "
            "/proc/self/status");
  EXPECT_THAT(out, HasSubstr(std::to_string(daemon->uid) + "\n" + std::to_string(daemon->gid)));
  EXPECT_THAT(out, HasSubstr(daemon->home));
  EXPECT_THAT(out, HasSubstr("NoNewPrivs:\t1"));
  EXPECT_THAT(out, HasSubstr("CapEff:\t0000000000000000"));
  EXPECT_THAT(out, HasSubstr("CapPrm:\t0000000000000000"));
  EXPECT_EQ(geteuid(), 0u) << "the parent must stay what it is";
}

}  // namespace
}  // namespace dtrain::os
