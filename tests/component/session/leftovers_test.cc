// SPDX-License-Identifier: Apache-2.0
// What is left of a job whose shepherd is gone, with a container runtime that the test plays.
#include "agent/session/leftovers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "tests/component/session/no_processes.h"

namespace dtrain::session {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LeftoversTest : public ::testing::Test {
 protected:
  LeftoversTest() {
    char name[] = "/tmp/dtrain-leftovers-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    path_ = getenv("PATH");
    setenv("PATH", absl::StrCat(folder_, ":", path_).c_str(), 1);
  }
  ~LeftoversTest() override {
    setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  // `rm`: what podman does to remove containers.
  void Podman(const std::string& rm) {
    const std::string path = absl::StrCat(folder_, "/podman");
    std::ofstream(path) << "#!/bin/sh\necho \"$@\" >>" << folder_ << "/calls\necho $$ >" << folder_
                        << "/pid.new && mv " << folder_ << "/pid.new " << folder_ << "/pid\n"
                        << rm << "\n";
    chmod(path.c_str(), 0755);
  }
  void Report(int images) {
    v1::Report report;
    for (int i = 0; i < images; ++i) {
      v1::LeftContainers& left = *report.add_containers();
      left.mutable_container()->set_image(absl::StrCat("img", i));
      left.mutable_container()->set_runtime("podman");
      left.add_names(absl::StrCat("dtrain-", i));
    }
    leftovers_.OnReport(report);
  }
  void End() {
    leftovers_.End("job j of alice", [this] { ended_ = true; });
  }
  bool Until(const std::function<bool()>& holds) {
    const TimePoint end = Clock::now() + std::chrono::seconds(20);
    // The runtime's files appear without a task of the loop.
    while (!holds() && Clock::now() < end) {
      loop_.context().run_one_until(std::min(end, Clock::now() + std::chrono::milliseconds(5)));
    }
    return holds();
  }
  pid_t Pid() {
    pid_t pid = 0;
    std::ifstream(absl::StrCat(folder_, "/pid")) >> pid;
    return pid;
  }
  std::vector<std::string> Calls() {
    std::ifstream file(absl::StrCat(folder_, "/calls"));
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) out.push_back(line);
    return out;
  }

  loop::Loop loop_;
  std::string folder_, path_;
  NoProcesses processes_{os::UniqueFd()};
  std::vector<std::string> warnings_;
  bool ended_ = false;
  Leftovers leftovers_{loop_, processes_, geteuid(),
                       [this](const std::string& what) { warnings_.push_back(what); }};
};

TEST_F(LeftoversTest, WithoutContainersThereAreOnlyProcesses) {
  End();
  ASSERT_TRUE(Until([&] { return ended_; }));
  EXPECT_EQ(processes_.ends, 1);
  leftovers_.SkipContainers();
  EXPECT_EQ(processes_.ends, 1);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(LeftoversTest, ContainersGoAfterTheirShepherdAndBeforeTheRest) {
  Podman("exit 0");
  Report(2);
  End();
  EXPECT_TRUE(processes_.was_killed && processes_.marked_were_killed);
  EXPECT_FALSE(ended_);
  ASSERT_TRUE(Until([&] { return ended_; }));
  EXPECT_THAT(Calls(), ElementsAre("rm --force --ignore dtrain-1", "rm --force --ignore dtrain-0"));
  EXPECT_THAT(warnings_, IsEmpty());
  leftovers_.SkipContainers();
  EXPECT_EQ(processes_.ends, 1);
}

TEST_F(LeftoversTest, ARuntimeThatFailsIsNamed) {
  Podman("echo the store is locked; exit 125");
  Report(1);
  End();
  ASSERT_TRUE(Until([&] { return ended_; }));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("the store is locked")));
}

TEST_F(LeftoversTest, ARuntimeThatHangsIsSkippedAndLeavesNoProcess) {
  Podman("exec sleep 1000");
  Report(50);
  End();
  ASSERT_TRUE(Until([&] { return Pid() != 0; }));
  EXPECT_EQ(processes_.ends, 0);
  leftovers_.SkipContainers();
  EXPECT_TRUE(ended_);
  EXPECT_EQ(processes_.ends, 1);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("within a minute")));
  EXPECT_TRUE(Until([&] { return kill(Pid(), 0) != 0 && errno == ESRCH; })) << "it is not reaped";
  EXPECT_EQ(Calls().size(), 1u);
}

}  // namespace
}  // namespace dtrain::session
