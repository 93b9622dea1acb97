// SPDX-License-Identifier: Apache-2.0
#include "spawner/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "spawner/protocol.h"
#include "tests/support/paths.h"

namespace dtrain::spawner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uid_t kUser = 1001, kAgent = 4000;

Account Person(const std::string& name, uid_t uid, const std::string& shell = "/bin/sh") {
  Account out;
  out.uid = uid;
  out.gid = uid;
  out.group_count = 2;
  out.groups[0] = uid;
  out.groups[1] = 50;
  Put(name, out.name);
  Put(shell, out.shell);
  return out;
}

Asked Connected(uid_t uid) { return {kAgent, uid, "", false, "# shells\n/bin/sh\n/bin/bash\n"}; }
Asked Named(const std::string& name) { return {kAgent, UINT32_MAX, name, false, "/bin/sh\n"}; }

TEST(PolicyTest, ConfigurationIsRead) {
  Policy policy;
  EXPECT_EQ(
      ParsePolicy("# comment\n\n min-uid = 500 \nallow-groups = gpu, \"ml\"\ndeny-users=bob eve\n"
                  "allow-root = yes\ntrust-agent-tls = no\npam = off\n"
                  "job-memory = 64G\nrequire-limits = yes\nmap = strict",
                  &policy),
      "");
  EXPECT_EQ(policy.min_uid, 500u);
  EXPECT_THAT(policy.allow_groups, ElementsAre("gpu", "ml"));
  EXPECT_THAT(policy.deny_users, ElementsAre("bob", "eve"));
  EXPECT_TRUE(policy.allow_root);
  EXPECT_FALSE(policy.trust_agent_tls);
  EXPECT_FALSE(policy.pam);
  EXPECT_TRUE(policy.strict_map);
  EXPECT_EQ(policy.limits.job_memory, uint64_t{64} << 30);
  EXPECT_TRUE(policy.limits.required);
  Policy usual;
  EXPECT_EQ(ParsePolicy("", &usual), "");
  EXPECT_EQ(usual.min_uid, 1000u);
  EXPECT_FALSE(usual.allow_root);
  EXPECT_TRUE(usual.trust_agent_tls);
  EXPECT_TRUE(usual.pam);
  EXPECT_FALSE(usual.strict_map);
  EXPECT_EQ(usual.limits.job_memory, 0u);
  EXPECT_FALSE(usual.limits.required);
}

// Its lines, as they are once their # is removed.
TEST(PolicyTest, TheExampleIsTheUsualConfiguration) {
  std::ifstream in(SourcePath("deploy/systemd/spawner.conf"));
  std::string text;
  int keys = 0;
  for (std::string line; std::getline(in, line);) {
    const bool key = line.find(" = ") != line.npos && line[1] != ' ';
    text += (key ? line.substr(1) : line) + "\n";
    keys += key;
  }
  EXPECT_EQ(keys, 9);
  Policy policy;
  EXPECT_EQ(ParsePolicy(text, &policy), "");
  EXPECT_EQ(policy.min_uid, Policy().min_uid);
  EXPECT_EQ(policy.allow_root, Policy().allow_root);
  EXPECT_EQ(policy.trust_agent_tls, Policy().trust_agent_tls);
  EXPECT_EQ(policy.pam, Policy().pam);
  EXPECT_EQ(policy.strict_map, Policy().strict_map);
}

TEST(PolicyTest, AMistakeIsToldWithItsLine) {
  for (const char* line :
       {"min_uid = 5", "min-uid = 0", "min-uid = -1", "min-uid = 99999999999",
        "min-uid =", "min-uid", "allow-root = maybe", "allow-groups =", "deny-users = a/b",
        "pam = yes", "pam =", "map = yes", "map =", "job-memory = 0", "job-memory = 1GB",
        "job-memory = -1", "job-memory = 99999999T", "job-memory = G", "require-limits = 1"}) {
    Policy policy;
    EXPECT_THAT(ParsePolicy(std::string("allow-root = no\n") + line, &policy),
                HasSubstr("line 2: "))
        << line;
  }
  Policy policy;
  EXPECT_THAT(ParsePolicy("\x1b[2J", &policy), HasSubstr("\\x1b[2J"));
}

TEST(PolicyTest, AUserMay) {
  EXPECT_EQ(Decide({}, Person("alice", kUser), Connected(kUser)), "");
  EXPECT_EQ(Decide({}, Person("alice", kUser), Named("alice")), "");
}

TEST(PolicyTest, ByTheAgentsWordOnlyAccountsThatAreNamed) {
  Policy strict;
  strict.strict_map = true;
  Asked asked = Named("alice");
  EXPECT_EQ(Decide(strict, Person("alice", kUser), Connected(kUser)), "") << "the kernel's word";
  for (const char* accounts : {"", "alice\n", "alice = bob\n", "# x = alice\n", "x # = alice\n",
                               "x = alice2\n", "x = al ice\n"}) {
    asked.accounts = accounts;
    EXPECT_THAT(Decide(strict, Person("alice", kUser), asked),
                HasSubstr("/etc/dtrain/accounts does not name alice"))
        << accounts;
    EXPECT_EQ(Decide({}, Person("alice", kUser), asked), "");
  }
  for (const char* accounts :
       {"alice.smith = alice  # x", "b = bob\n\n  a=alice \n", "a = \"alice\""}) {
    asked.accounts = accounts;
    EXPECT_EQ(Decide(strict, Person("alice", kUser), asked), "") << accounts;
  }
}

TEST(PolicyTest, AnswersAboutAnotherAreNotTaken) {
  EXPECT_THAT(Decide({}, Person("alice", kUser), Connected(kUser + 1)),
              HasSubstr("the account that was found"));
  EXPECT_THAT(Decide({}, Person("alice", kUser), Named("bob")),
              HasSubstr("the account that was found"));
}

TEST(PolicyTest, SystemUsersAndTheAgentMayNot) {
  EXPECT_THAT(Decide({}, Person("daemon", 999), Connected(999)), HasSubstr("below min-uid 1000"));
  EXPECT_EQ(Decide({}, Person("first", 1000), Connected(1000)), "");
  EXPECT_THAT(Decide({}, Person("dtrain", kAgent), Connected(kAgent)), HasSubstr("agent's own"));
}

TEST(PolicyTest, RootNeedsPermissionAndAConnection) {
  Policy allowed;
  allowed.allow_root = true;
  EXPECT_THAT(Decide({}, Person("root", 0), Connected(0)), HasSubstr("allow-root"));
  EXPECT_THAT(Decide(allowed, Person("root", 0), Named("root")), HasSubstr("allow-root"));
  EXPECT_THAT(Decide(allowed, Person("toor", 0), Named("toor")), HasSubstr("allow-root"));
  EXPECT_EQ(Decide(allowed, Person("root", 0), Connected(0)), "");
  allowed.deny_users = {"root"};
  EXPECT_THAT(Decide(allowed, Person("root", 0), Connected(0)), HasSubstr("deny-users"));
}

TEST(PolicyTest, ShellsAndNologin) {
  EXPECT_THAT(Decide({}, Person("a", kUser, "/usr/sbin/nologin"), Connected(kUser)),
              HasSubstr("not in /etc/shells"));
  EXPECT_THAT(Decide({}, Person("a", kUser, ""), Connected(kUser)),
              HasSubstr("not in /etc/shells"));
  EXPECT_THAT(Decide({}, Person("a", kUser, "# shells"), Connected(kUser)),
              HasSubstr("not in /etc/shells"));
  Asked asked = Connected(kUser);
  asked.nologin = true;
  EXPECT_THAT(Decide({}, Person("a", kUser), asked), HasSubstr("logins are disabled"));
  asked = Connected(kUser);
  asked.shells = "";
  EXPECT_THAT(Decide({}, Person("a", kUser), asked), HasSubstr("not in /etc/shells"));
}

TEST(PolicyTest, WhatPamSays) {
  Account person = Person("alice", kUser);
  Put("expired\x1b[2J", person.refused);
  EXPECT_EQ(Decide({}, person, Connected(kUser)),
            "PAM (service dtrain) refuses alice: expired\\x1b[2J: see /etc/pam.d/dtrain");
}

TEST(PolicyTest, GroupsAndDeniedUsers) {
  Policy policy;
  policy.allow_groups = {"gpu"};
  Account person = Person("alice", kUser);
  EXPECT_THAT(Decide(policy, person, Connected(kUser)), HasSubstr("none of allow-groups"))
      << "there is no such group";
  person.allowed_count = 1;
  person.allowed[0] = 51;
  EXPECT_THAT(Decide(policy, person, Connected(kUser)), HasSubstr("none of allow-groups"));
  person.allowed[0] = 50;
  EXPECT_EQ(Decide(policy, person, Connected(kUser)), "");
  policy.deny_users = {"alice"};
  EXPECT_THAT(Decide(policy, person, Connected(kUser)), HasSubstr("deny-users"));
}

TEST(LimitsTest, SizesAreRead) {
  uint64_t size = 0;
  EXPECT_TRUE(ParseSize("4096", &size));
  EXPECT_EQ(size, 4096u);
  EXPECT_TRUE(ParseSize("3K", &size));
  EXPECT_EQ(size, 3u << 10);
  EXPECT_TRUE(ParseSize("512M", &size));
  EXPECT_EQ(size, 512u << 20);
  EXPECT_TRUE(ParseSize("2T", &size));
  EXPECT_EQ(size, uint64_t{2} << 40);
  for (const char* odd : {"", "K", "1k", "1.5G", "+1", " 1", "1MM", "0", "0G",
                          "1152921504606846976", "1048576T", "9999999999999999"}) {
    EXPECT_FALSE(ParseSize(odd, &size)) << odd;
  }
}

}  // namespace
}  // namespace dtrain::spawner
