// SPDX-License-Identifier: Apache-2.0
// What users are told while a job runs, and signals that they pass to it.
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

using testing::IsEmpty;

class WarningsTest : public JobFixture {};

// K5
TEST_F(WarningsTest, UserSignalsReachEveryNode) {
  Make(2);
  EXPECT_THAT(Signal(SIGUSR1), testing::SizeIs(1));  // a warning: no worker runs
  RunUntil(State::kRunning);
  const auto actions = Signal(SIGUSR2);
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_EQ(JobSentTo(i, actions).size(), 1u);
    EXPECT_EQ(JobSentTo(i, actions)[0].signal().signal(), SIGUSR2);
  }
  EXPECT_EQ(core_->state(), State::kRunning);
}

TEST_F(WarningsTest, TextFromNodesIsEscaped) {
  Make(1);
  RunUntil(State::kRunning);
  v1::SessionEvent event;
  event.mutable_warning()->set_message("a\x1b[2J");
  Message(0, event);
  event.mutable_warning()->set_message("b\\x1b\nc");  // escaped where it came from
  Message(0, event);
  Pass(seconds(1), {0});
  EXPECT_THAT(Warnings(), testing::ElementsAre("node0: a\\x1b[2J", "node0: b\\x1b\n      c"));
}

TEST_F(WarningsTest, AWarningThatIsADetailSaysSo) {
  Make(2);
  RunUntil(State::kRunning);
  v1::SessionEvent event;
  event.mutable_warning()->set_message("no cgroup");
  event.mutable_warning()->set_detail(true);
  Message(0, event);
  event.mutable_warning()->set_message("disk nearly full");
  event.mutable_warning()->set_detail(false);
  Message(0, event);
  Pass(seconds(1), {0, 1});
  std::vector<std::string> details, others;
  for (const Action& action : all_) {
    const auto* warn = std::get_if<Warn>(&action);
    if (warn != nullptr) (warn->detail ? details : others).push_back(warn->text);
  }
  EXPECT_THAT(details, testing::ElementsAre("node0: no cgroup"));
  EXPECT_THAT(others, testing::ElementsAre("node0: disk nearly full"));
}

TEST_F(WarningsTest, WhatSeveralNodesWarnOfIsOneLine) {
  Make(3);
  RunUntil(State::kRunning);
  v1::SessionEvent event;
  event.mutable_warning()->set_message("no cgroup");
  for (uint32_t node : {2u, 0u, 0u}) Message(node, event);
  event.mutable_warning()->set_message("something else");
  Message(1, event);
  EXPECT_THAT(Warnings(), IsEmpty());
  Pass(seconds(1), {0, 1, 2});
  EXPECT_THAT(Warnings(), testing::ElementsAre("node0, node2: no cgroup", "node1: something else"));
}

TEST_F(WarningsTest, WarningsOfTheLastMomentAreTold) {
  Make(1);
  RunUntil(State::kRunning);
  Exit(0, 0);
  Exit(1, 0);
  v1::SessionEvent event;
  event.mutable_warning()->set_message("late");
  Message(0, event);
  EndAll();
  EXPECT_TRUE(finished_);
  EXPECT_THAT(Warnings(), testing::ElementsAre("node0: late"));
}

// A shell under taskset or with limits of its own, on node0.
TEST_F(WarningsTest, WhatOnlyRanksBesideTheLauncherShareWithItsShellIsTold) {
  v1::Inherited& shell = *options_.part.mutable_inherited();
  shell.set_boot_id("boot0");
  shell.set_network_namespace(7);
  shell.set_cpus("0-3");
  shell.add_other_limits("CPU time (ulimit -t)");
  Make(2);
  RunUntil(State::kRunning);
  EXPECT_THAT(Warnings(), testing::ElementsAre(
                              "node0: this shell is confined to CPUs 0-3, and so are the ranks "
                              "there; those on other hosts are not",
                              "node0: limits of this shell do not hold for ranks on other "
                              "hosts: CPU time (ulimit -t)"));
}

TEST_F(WarningsTest, AnAgentThatIsNotConfinedAsTheShellIsTold) {
  v1::Inherited& shell = *options_.part.mutable_inherited();
  shell.set_boot_id("boot0");
  shell.set_network_namespace(7);
  shell.set_cpus("1");
  shell.add_other_limits("CPU time (ulimit -t)");
  Make(1);
  RunUntil(State::kRunning);
  ASSERT_THAT(Warnings(), testing::SizeIs(1));
  EXPECT_THAT(Warnings()[0], testing::HasSubstr("confined to CPUs 1, and the job's ranks are not"));
}

TEST_F(WarningsTest, AShellOnAMachineWithoutRanksIsNoMatter) {
  v1::Inherited& shell = *options_.part.mutable_inherited();
  shell.set_boot_id("elsewhere");
  shell.set_network_namespace(7);
  shell.set_cpus("1");
  Make(2);
  RunUntil(State::kRunning);
  EXPECT_THAT(Warnings(), IsEmpty());
}

}  // namespace
}  // namespace dtrain::job
