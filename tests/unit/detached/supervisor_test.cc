// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::detached {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

SupervisorFacts Systemd() {
  SupervisorFacts facts;
  facts.user = "alice";
  facts.systemd_run = "/usr/bin/systemd-run";
  facts.manager_runs = true;
  facts.lingers = true;
  facts.program = "/usr/bin/dtrain";
  facts.place = "/home/alice/.local/state/dtrain";
  return facts;
}

constexpr char kSetting[] = "KillUserProcesses=yes in /etc/systemd/logind.conf";

std::string Refusal(SupervisorFacts facts) {
  facts.ends_at_logout = kSetting;
  const auto chosen = ChooseSupervisor(facts);
  EXPECT_TRUE(absl::IsFailedPrecondition(chosen.status()));
  return std::string(chosen.status().message());
}

TEST(SupervisorTest, AManagerThatStaysIsTaken) {
  SupervisorFacts facts = Systemd();
  EXPECT_EQ(ChooseSupervisor(facts).value(), Supervisor::kSystemd);
  facts.ends_at_logout = kSetting;
  EXPECT_EQ(ChooseSupervisor(facts).value(), Supervisor::kSystemd);
}

TEST(SupervisorTest, OtherwiseAMinder) {
  SupervisorFacts facts = Systemd();
  facts.lingers = false;
  EXPECT_EQ(ChooseSupervisor(facts).value(), Supervisor::kMinder);
  facts = Systemd();
  facts.manager_runs = false;
  EXPECT_EQ(ChooseSupervisor(facts).value(), Supervisor::kMinder);
  facts = Systemd();
  facts.systemd_run.clear();
  EXPECT_EQ(ChooseSupervisor(facts).value(), Supervisor::kMinder);
  EXPECT_EQ(ChooseSupervisor({}).value(), Supervisor::kMinder);
}

TEST(SupervisorTest, NamesThatSystemdReadsAreLeftToAMinder) {
  for (const char* path : {"/home/a$HOME/x", "/home/a%h", "/home/a b", "relative", "",
                           "/usr/bin/dtrain (deleted)", "/a\nb", "/a;b"}) {
    SupervisorFacts facts = Systemd();
    facts.place = path;
    EXPECT_EQ(ChooseSupervisor(facts).value(), Supervisor::kMinder) << path;
    facts = Systemd();
    facts.program = path;
    EXPECT_EQ(ChooseSupervisor(facts).value(), Supervisor::kMinder) << path;
  }
}

TEST(SupervisorTest, WhatWouldEndAtLogoutIsRefusedWithWhatToDo) {
  SupervisorFacts facts = Systemd();
  facts.lingers = false;
  EXPECT_THAT(Refusal(facts), AllOf(HasSubstr(kSetting), HasSubstr("loginctl enable-linger")));
  facts = Systemd();
  facts.systemd_run.clear();
  EXPECT_THAT(Refusal(facts), HasSubstr("install systemd-run"));
  facts = Systemd();
  facts.manager_runs = false;
  EXPECT_THAT(Refusal(facts), AllOf(HasSubstr("alice"), HasSubstr("systemctl start user@")));
  facts = Systemd();
  facts.place = "/home/a b";
  EXPECT_THAT(Refusal(facts), HasSubstr("XDG_STATE_HOME, now /home/a b"));
}

TEST(SupervisorTest, ThePropertiesOfTheUnit) {
  const auto words = SystemdRunWords(Systemd(), JobFolder("/s/jobs/dtrain-1a"));
  EXPECT_EQ(words.front(), "/usr/bin/systemd-run");
  for (const char* word :
       {"--user", "--collect", "--unit=dtrain-1a", "--property=Restart=on-abnormal",
        "--property=StartLimitIntervalSec=600", "--property=StartLimitBurst=6",
        "--property=StandardError=append:/s/jobs/dtrain-1a/launcher.log"}) {
    EXPECT_THAT(words, Contains(word));
  }
  const std::vector<std::string> last(words.end() - 4, words.end());
  EXPECT_EQ(last,
            (std::vector<std::string>{"--", "/usr/bin/dtrain", "resume", "/s/jobs/dtrain-1a"}));
}

TEST(SupervisorTest, AUnitIsKnownByItsCgroup) {
  EXPECT_EQ(UnitOf("0::/user.slice/user-1000.slice/user@1000.service/app.slice/dtrain-1a.service\n",
                   "dtrain-1a"),
            "dtrain-1a.service");
  // Also in a tree of version 1, and below it.
  EXPECT_EQ(UnitOf("1:name=systemd:/user.slice/dtrain-1a.service/inner\n0::/\n", "dtrain-1a"),
            "dtrain-1a.service");
  EXPECT_EQ(UnitOf("0::/user.slice/dtrain-1ab.service\n", "dtrain-1a"), "");
  EXPECT_EQ(UnitOf("0::/user.slice/session-3.scope\n", "dtrain-1a"), "");
  EXPECT_EQ(UnitOf("", "dtrain-1a"), "");
}

TEST(SupervisorTest, WhoItIsInWords) {
  Supervision by;
  EXPECT_EQ(by.Text(), "nobody");
  EXPECT_FALSE(by.IsThere());
  by.minder.set_pid(12);
  EXPECT_EQ(by.Text(), "minder, process 12");
  by.unit = "dtrain-1a.service";
  EXPECT_EQ(by.Text(), "systemd unit dtrain-1a.service");
}

TEST(RestartLimitTest, FiveTimesWithinTenMinutes) {
  RestartLimit limit;
  const TimePoint start{};
  for (int i = 0; i < kMostRestarts; ++i) {
    EXPECT_TRUE(limit.OnDeath(start + std::chrono::seconds(i)));
    EXPECT_EQ(limit.restarts(), i + 1);
  }
  EXPECT_FALSE(limit.OnDeath(start + std::chrono::seconds(599)));
  // The first one is long ago.
  EXPECT_TRUE(limit.OnDeath(start + std::chrono::seconds(600)));
  EXPECT_FALSE(limit.OnDeath(start + std::chrono::milliseconds(600500)));
  EXPECT_TRUE(limit.OnDeath(start + std::chrono::seconds(2000)));
  EXPECT_EQ(limit.restarts(), 1);
}

}  // namespace
}  // namespace dtrain::detached
