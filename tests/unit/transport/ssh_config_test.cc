// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(SshSettings, ReadsWhatOpenSshPrints) {
  SshSettings s = ParseSshSettings(
      "host node1\nuser ann\nhostname 10.0.0.1\nport 2222\nidentitiesonly yes\n"
      "stricthostkeychecking accept-new\nidentityfile ~/.ssh/a\nidentityfile /b c\n"
      "userknownhostsfile /x /y\nproxyjump none\nproxycommand nc %h %p\nunheardof x\n\nport\n");
  EXPECT_EQ(s.user, "ann");
  EXPECT_EQ(s.host_name, "10.0.0.1");
  EXPECT_EQ(s.port, 2222);
  EXPECT_TRUE(s.identities_only);
  EXPECT_EQ(s.host_key_check, SshSettings::HostKeyCheck::kAcceptNew);
  EXPECT_THAT(s.identity_files, ElementsAre("~/.ssh/a", "/b c"));
  EXPECT_THAT(s.user_known_hosts, ElementsAre("/x", "/y"));
  EXPECT_EQ(s.proxy_jump, "");
  EXPECT_EQ(s.proxy_command, "nc %h %p");
}

// B1: whatever we do not know is the strict kind.
TEST(SshSettings, HostKeysAreCheckedUnlessTheUserSaysOtherwise) {
  using Check = SshSettings::HostKeyCheck;
  EXPECT_EQ(ParseSshSettings("").host_key_check, Check::kStrict);
  for (const char* value : {"ask", "true", "yes", "maybe"}) {
    EXPECT_EQ(ParseSshSettings(std::string("stricthostkeychecking ") + value).host_key_check,
              Check::kStrict);
  }
  EXPECT_EQ(ParseSshSettings("stricthostkeychecking false").host_key_check, Check::kOff);
}

TEST(SshSettings, WhatLibsshDoesNotObeyIsRememberedWhereItIsSet) {
  const auto only = [](const char* dump) { return ParseSshSettings(dump).only_openssh; };
  EXPECT_THAT(only("revokedhostkeys none\nhostbasedauthentication no\nverifyhostkeydns false\n"
                   "preferredauthentications gssapi-with-mic,publickey\nrequiredrsasize 3072\n"),
              ElementsAre());
  EXPECT_THAT(only("revokedhostkeys /r\nhostbasedauthentication yes\nverifyhostkeydns ask\n"
                   "preferredauthentications keyboard-interactive\nrequiredrsasize lots\n"),
              ElementsAre("RevokedHostKeys", "HostbasedAuthentication", "VerifyHostKeyDNS",
                          "PreferredAuthentications", "RequiredRSASize"));
  EXPECT_EQ(ParseSshSettings("requiredrsasize 3072").required_rsa_size, 3072);
}

TEST(ExpandTokens, ReplacesWhatOpenSshReplaces) {
  TokenValues values{"10.0.0.1", "node1", "2222", "ann", "me", "/home/me"};
  EXPECT_EQ(ExpandTokens("~/.ssh/%n-%h-%p-%r-%u-100%%", values).value(),
            "/home/me/.ssh/node1-10.0.0.1-2222-ann-me-100%");
  EXPECT_EQ(ExpandTokens("%d/k~/", values).value(), "/home/me/k~/");
  EXPECT_THAT(ExpandTokens("%C", values).status().message(), HasSubstr("uses %C"));
  EXPECT_FALSE(ExpandTokens("50%", values).ok());
}

TEST(FastCiphersFirst, KeepsTheSetAndTheOrderWithin) {
  EXPECT_EQ(FastCiphersFirst("chacha20-poly1305@openssh.com,aes128-ctr,aes128-gcm@openssh.com,"
                             "aes256-gcm@openssh.com"),
            "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,"
            "aes128-ctr");
  EXPECT_EQ(FastCiphersFirst(""), "");
}

}  // namespace
}  // namespace dtrain::transport
