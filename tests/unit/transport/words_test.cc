// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::transport {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(SplitWords, QuotesAsAShellDoes) {
  EXPECT_THAT(SplitWords("ssh  -o 'A B' \"c \\\"d\\n\" e\\ f g''h").value(),
              ElementsAre("ssh", "-o", "A B", "c \"d\\n", "e f", "gh"));
  EXPECT_THAT(SplitWords("a '' b").value(), ElementsAre("a", "", "b"));
}

TEST(SplitWords, ExpandsNothing) {
  EXPECT_THAT(SplitWords("a $HOME;b `c` *").value(), ElementsAre("a", "$HOME;b", "`c`", "*"));
}

TEST(SplitWords, RefusesWhatAShellWouldNotFinish) {
  EXPECT_THAT(SplitWords("ssh 'x").status().message(), HasSubstr("no closing '"));
  EXPECT_FALSE(SplitWords("ssh \\").ok());
  EXPECT_FALSE(SplitWords("  ").ok());
}

TEST(ExpandWords, PutsTheTargetIn) {
  EXPECT_THAT(ExpandWords({"ssh", "-p{port}", "{user}@{host}"}, {"n1", "ann", 2222}, "me").value(),
              ElementsAre("ssh", "-p2222", "ann@n1"));
  EXPECT_THAT(
      ExpandWords({"ssh", "-p", "{port}", "-l", "{user}", "{host}"}, {"n1", "", 0}, "me").value(),
      ElementsAre("ssh", "-p", "22", "-l", "me", "n1"));
}

TEST(ExpandWords, AppendsAHostThatNoWordNames) {
  EXPECT_THAT(ExpandWords({"docker", "exec", "-i"}, {"c1", "", 0}, "me").value(),
              ElementsAre("docker", "exec", "-i", "c1"));
}

TEST(ExpandWords, AHostCannotAddWords) {
  EXPECT_THAT(ExpandWords({"x", "{host}"}, {"a b {user}", "", 0}, "me").value(),
              ElementsAre("x", "a b {user}"));
}

TEST(ExpandWords, RefusesWhatTheCommandCannotCarry) {
  EXPECT_THAT(ExpandWords({"ssh", "{host}"}, {"n1", "ann", 0}, "me").status().message(),
              HasSubstr("{user}"));
  EXPECT_THAT(ExpandWords({"ssh", "{host}"}, {"n1", "", 23}, "me").status().message(),
              HasSubstr("{port}"));
}

TEST(OpenSshWords, SayWhatTheLibraryWouldBeTold) {
  using std::chrono::seconds;
  EXPECT_THAT(
      OpenSshWords({"n1", "", 0}, "", 0, seconds(10), seconds(15)),
      ElementsAre("ssh", "-T", "-o", "BatchMode=yes", "-o", "RemoteCommand=none", "-o",
                  "ClearAllForwardings=yes", "-o", "ControlMaster=no", "-o", "ConnectTimeout=10",
                  "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "--", "n1"));
  const auto words = OpenSshWords({"n1", "ann", 0}, "./config", 2222, seconds(10), seconds(1));
  EXPECT_THAT(words, testing::IsSupersetOf({"-F", "./config", "-p", "2222", "-l", "ann"}));
  EXPECT_THAT(words, Contains("ServerAliveInterval=1"));
  EXPECT_THAT(OpenSshWords({"n1", "", 22}, "", 2222, seconds(10), seconds(15)),
              AllOf(Contains("22"), Not(Contains("2222"))));
}

// Older versions of it do not know these, and end with an error.
TEST(OpenSshWords, WhatWouldLetItLeaveIsUndoneWhereItIsSet) {
  using std::chrono::seconds;
  const auto words = [](const char* beyond) {
    return OpenSshWords({"n1", "", 0}, "", 0, seconds(10), seconds(15), beyond);
  };
  EXPECT_THAT(words("ForkAfterAuthentication"),
              testing::IsSupersetOf({"ForkAfterAuthentication=no", "StdinNull=no"}));
  EXPECT_THAT(words("SetEnv, SessionType"), Contains("SessionType=default"));
  EXPECT_EQ(words("RevokedHostKeys"), words(""));
}

}  // namespace
}  // namespace dtrain::transport
