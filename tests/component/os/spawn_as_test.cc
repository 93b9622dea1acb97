// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/os/account.h"
#include "common/os/cgroup.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"

namespace dtrain::os {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr int kPatienceMs = 20000;

class SpawnAsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
    auto daemon = FindAccount("daemon");
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    user_ = *std::move(daemon);
    auto pipe = Pipe();
    ASSERT_TRUE(pipe.ok());
    out_ = std::move(pipe->first);
    writer_ = std::move(pipe->second);
  }
  SpawnSpec Shell(const std::string& script) {
    SpawnSpec spec;
    spec.argv = {"/bin/sh", "-c", script};
    spec.env = {"PATH=/usr/bin:/bin"};
    spec.working_directory = "/";
    spec.new_session = true;
    spec.stdout_fd = writer_.get();
    spec.user = &user_;
    return spec;
  }
  static std::optional<absl::Status> WaitForReport(const PendingChild& pending) {
    pollfd told{pending.report.get(), POLLIN, 0};
    EXPECT_EQ(poll(&told, 1, kPatienceMs), 1);
    return pending.Report();
  }
  std::string ReadAll() {
    writer_.Reset();
    std::string out;
    char buffer[4096];
    for (ssize_t n; (n = read(out_.get(), buffer, sizeof(buffer))) > 0;) {
      out.append(buffer, static_cast<size_t>(n));
    }
    return out;
  }

  Account user_;
  UniqueFd out_, writer_;
};

TEST_F(SpawnAsTest, NothingIsSharedWithWhoStartedIt) {
  const mode_t before = umask(0);
  auto pending = SpawnAs(Shell(
      "umask; echo session $(cut -d' ' -f6 /proc/$$/stat) of $$; echo fds; ls /proc/$$/fd; true"));
  umask(before);
  ASSERT_TRUE(pending.ok()) << pending.status();
  EXPECT_EQ(WaitForReport(*pending), absl::OkStatus());
  const std::string pid = absl::StrCat(pending->child.pid);
  const std::string out = ReadAll();
  EXPECT_THAT(out, HasSubstr("0022\n"));
  EXPECT_THAT(out, HasSubstr("session " + pid + " of " + pid));
  EXPECT_THAT(out, EndsWith("fds\n0\n1\n2\n")) << "and no more: not the report either";
  EXPECT_EQ(WaitAndReap(pending->child.pidfd.get())->code, 0);
}

// By its user, say, who may do that from the moment it is theirs; here by its cgroup, before that.
TEST_F(SpawnAsTest, OneThatIsStoppedHoldsNobodyUpAndCanBeKilled) {
  auto parent = FindWritableCgroup();
  if (!parent.ok()) GTEST_SKIP() << parent.status();
  auto cgroup = Cgroup::Make(*parent, JobCgroupName(RandomHex(6), 0, 1));
  ASSERT_TRUE(cgroup.ok()) << cgroup.status();
  std::ofstream(cgroup->path() + "/cgroup.freeze") << "1" << std::flush;
  auto directory = cgroup->Open();
  ASSERT_TRUE(directory.ok());
  SpawnSpec spec = Shell("echo ran");
  spec.cgroup_fd = directory->get();
  auto pending = SpawnAs(spec);
  ASSERT_TRUE(pending.ok()) << pending.status();
  EXPECT_EQ(pending->Report(), std::nullopt);
  EXPECT_TRUE(SendSignal(pending->child.pidfd.get(), SIGKILL).ok());
  EXPECT_EQ(WaitAndReap(pending->child.pidfd.get())->signal, SIGKILL);
  EXPECT_EQ(WaitForReport(*pending), absl::OkStatus()) << "its end is its pidfd's to tell";
  EXPECT_EQ(ReadAll(), "");
  EXPECT_TRUE(cgroup->Remove().ok());
}

TEST_F(SpawnAsTest, WhyItDoesNotRunIsReported) {
  char name[] = "/tmp/dtrain-spawn-as-XXXXXX";
  const UniqueFd file(mkstemp(name));  // for root alone
  ASSERT_EQ(fchmod(file.get(), 0700), 0);
  SpawnSpec spec = Shell("");
  spec.argv = {name};
  auto pending = SpawnAs(spec);
  ASSERT_TRUE(pending.ok()) << pending.status();
  const auto report = WaitForReport(*pending);
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(absl::IsPermissionDenied(*report)) << *report;
  EXPECT_THAT(std::string(report->message()), HasSubstr(name));
  EXPECT_EQ(WaitAndReap(pending->child.pidfd.get())->code, 127);
  unlink(name);
}

TEST_F(SpawnAsTest, ACgroupThatIsGoneIsToldBeforeThereIsAChild) {
  auto parent = FindWritableCgroup();
  if (!parent.ok()) GTEST_SKIP() << parent.status();
  auto cgroup = Cgroup::Make(*parent, JobCgroupName(RandomHex(6), 0, 1));
  ASSERT_TRUE(cgroup.ok()) << cgroup.status();
  auto directory = cgroup->Open();
  ASSERT_TRUE(cgroup->Remove().ok());
  SpawnSpec spec = Shell("true");
  spec.cgroup_fd = directory->get();
  EXPECT_TRUE(absl::IsNotFound(SpawnAs(spec).status())) << SpawnAs(spec).status();
}

}  // namespace
}  // namespace dtrain::os
