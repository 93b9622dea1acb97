// SPDX-License-Identifier: Apache-2.0
#include "common/os/logout.h"

#include <gtest/gtest.h>

namespace dtrain::os {
namespace {

constexpr char kMain[] = "/etc/systemd/logind.conf";
constexpr char kDropIn[] = "/etc/systemd/logind.conf.d/50-site.conf";
// As Debian installs it.
constexpr char kDebian[] =
    "#  This file is part of systemd.\n[Login]\n#NAutoVTs=6\n#KillUserProcesses=no\n"
    "#KillOnlyUsers=\n#KillExcludeUsers=root\n#RemoveIPC=yes\n";

TEST(LogoutTest, WithoutFilesIpcIsRemovedAndNothingKilled) {
  const LogindSettings settings = ParseLogind({});
  EXPECT_FALSE(settings.KillsProcessesOf("alice"));
  EXPECT_TRUE(settings.remove_ipc.on);
}

TEST(LogoutTest, TheCommentsSayHowItWasBuilt) {
  EXPECT_FALSE(ParseLogind({{kMain, kDebian}}).KillsProcessesOf("alice"));
  const LogindSettings upstream =
      ParseLogind({{kMain, "[Login]\n#KillUserProcesses=yes\n#RemoveIPC=no\n"}});
  EXPECT_TRUE(upstream.KillsProcessesOf("alice"));
  EXPECT_FALSE(upstream.remove_ipc.on);
  EXPECT_EQ(upstream.kill_user_processes.from,
            "KillUserProcesses=yes by default, see /etc/systemd/logind.conf");
}

TEST(LogoutTest, ASettingCountsMoreThanAnyComment) {
  const LogindSettings settings =
      ParseLogind({{kMain, "[Login]\nKillUserProcesses = yes\n"}, {kDropIn, kDebian}});
  EXPECT_TRUE(settings.KillsProcessesOf("alice"));
  EXPECT_EQ(settings.kill_user_processes.from, "KillUserProcesses=yes in /etc/systemd/logind.conf");
}

TEST(LogoutTest, TheLastFileCounts) {
  const LogindSettings settings =
      ParseLogind({{kMain, "[Login]\nKillUserProcesses=yes\nRemoveIPC=yes\n"},
                   {kDropIn, "[Login]\nKillUserProcesses=off\nRemoveIPC=0\n"}});
  EXPECT_FALSE(settings.KillsProcessesOf("alice"));
  EXPECT_FALSE(settings.remove_ipc.on);
}

TEST(LogoutTest, UsersMayBeNamed) {
  const LogindSettings only =
      ParseLogind({{kMain, "[Login]\nKillUserProcesses=yes\nKillOnlyUsers=bob carol\n"}});
  EXPECT_FALSE(only.KillsProcessesOf("alice"));
  EXPECT_TRUE(only.KillsProcessesOf("carol"));
  const LogindSettings exclude = ParseLogind(
      {{kMain, "[Login]\nKillUserProcesses=yes\nKillOnlyUsers=alice bob\nKillExcludeUsers=bob\n"}});
  EXPECT_TRUE(exclude.KillsProcessesOf("alice"));
  EXPECT_FALSE(exclude.KillsProcessesOf("bob")) << "excluding counts more";
  EXPECT_FALSE(ParseLogind({{kMain, "[Login]\nKillUserProcesses=yes\n"}}).KillsProcessesOf("root"));
}

TEST(LogoutTest, OtherSectionsAndWhatCannotBeReadCountNothing) {
  const LogindSettings settings =
      ParseLogind({{kMain,
                    "KillUserProcesses=yes\n[Sleep]\nKillUserProcesses=yes\n[Login]\n"
                    "KillUserProcesses=perhaps\n;KillUserProcesses=yes\n=yes\nKillUserProcesses\n"},
                   {kDropIn, std::string("\0[Login]\xff", 9)}});
  EXPECT_FALSE(settings.KillsProcessesOf("alice"));
}

TEST(LogoutTest, ALoginSessionIsKnownByItsCgroup) {
  EXPECT_TRUE(IsInSession("0::/user.slice/user-1000.slice/session-3.scope\n"));
  EXPECT_TRUE(IsInSession("1:name=systemd:/user.slice/user-1000.slice/session-c2.scope/dtrain\n"));
  EXPECT_FALSE(IsInSession("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n"));
  EXPECT_FALSE(IsInSession("0::/system.slice/dtrain-agent.service\n"));
  EXPECT_FALSE(IsInSession(""));
}

}  // namespace
}  // namespace dtrain::os
