// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

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

// OpenSSH 7.4 to 10.2, as printed for a host without any configuration, and Debian's patches.
// Values that forbid nothing and ask for nothing must not cost anybody libssh.
TEST(SshSettings, NothingOfAnEmptyConfigurationNeedsOpenSsh) {
  EXPECT_THAT(
      ParseSshSettings(
          "host n1\nuser me\nhostname n1\nport 22\naddressfamily any\nbatchmode no\n"
          "canonicalizefallbacklocal yes\ncanonicalizehostname "
          "false\nchallengeresponseauthentication "
          "yes\ncheckhostip no\ncompression no\ncontrolmaster false\nenablesshkeysign no\n"
          "clearallforwardings no\nexitonforwardfailure no\nfingerprinthash SHA256\nforwardx11 no\n"
          "forwardx11trusted yes\ngatewayports no\ngssapiauthentication yes\ngssapikeyexchange no\n"
          "gssapidelegatecredentials no\ngssapitrustdns no\ngssapirenewalforcesrekey no\n"
          "gssapikexalgorithms gss-group14-sha256-\nhashknownhosts yes\nhostbasedauthentication "
          "no\n"
          "identitiesonly no\nkbdinteractiveauthentication yes\nnohostauthenticationforlocalhost "
          "no\n"
          "passwordauthentication yes\npermitlocalcommand no\nproxyusefdpass no\n"
          "pubkeyauthentication true\nrequesttty auto\nsessiontype default\nstdinnull no\n"
          "forkafterauthentication no\nstreamlocalbindunlink no\nstricthostkeychecking ask\n"
          "tcpkeepalive yes\ntunnel false\nverifyhostkeydns false\nvisualhostkey no\n"
          "updatehostkeys true\nenableescapecommandline no\ncanonicalizemaxdots 1\n"
          "connectionattempts 1\nforwardx11timeout 1200\nnumberofpasswordprompts 3\n"
          "serveralivecountmax 3\nserveraliveinterval 0\nrequiredrsasize 1024\n"
          "obscurekeystroketiming yes\nciphers a\nhostkeyalgorithms a\nhostbasedacceptedalgorithms "
          "a\nkexalgorithms a\ncasignaturealgorithms a\nloglevel INFO\nmacs a\n"
          "securitykeyprovider internal\npubkeyacceptedalgorithms a\nxauthlocation /usr/bin/xauth\n"
          "identityfile ~/.ssh/id_rsa\ncanonicaldomains none\nglobalknownhostsfile /a /b\n"
          "userknownhostsfile /a\nlogverbose none\nchanneltimeout none\nversionaddendum none\n"
          "permitremoteopen any\naddkeystoagent false\nforwardagent no\nconnecttimeout none\n"
          "tunneldevice any:any\ncanonicalizePermittedcnames none\ncontrolpersist no\n"
          "escapechar ~\nipqos lowdelay throughput\nrekeylimit 0 0\nstreamlocalbindmask 0177\n"
          "syslogfacility USER\nsendenv LANG\nsendenv LC_*\nwarnweakcrypto yes\nipqos ef none\n"
          "refuseconnection none\ntag none\nprotocol 2\nuseprivilegedport no\n"
          "pubkeyacceptedkeytypes a\nhostbasedkeytypes a\n")
          .only_openssh,
      ElementsAre());
}

// Each of them, and whatever a newer OpenSSH has.
TEST(SshSettings, WhatIsNeitherObeyedNorWithoutMeaningIsOpenSshs) {
  for (const char* line : {"ForkAfterAuthentication yes",
                           "StdinNull yes",
                           "SessionType none",
                           "SetEnv A=1",
                           "PermitLocalCommand yes",
                           "Tunnel point-to-point",
                           "ForwardAgent yes",
                           "RekeyLimit 1073741824 0",
                           "IPQoS throughput",
                           "BindInterface eth1",
                           "CertificateFile /c",
                           "HostbasedAuthentication yes",
                           "KnownHostsCommand /k",
                           "NoHostAuthenticationForLocalhost yes",
                           "PKCS11Provider /p",
                           "ProxyUseFdpass yes",
                           "RefuseConnection because",
                           "RevokedHostKeys /r",
                           "VerifyHostKeyDNS true",
                           "ForbidsSomething yes"}) {
    const std::string keyword = std::string(line).substr(0, std::string(line).find(' '));
    const auto only = ParseSshSettings(absl::AsciiStrToLower(line)).only_openssh;
    ASSERT_EQ(only.size(), 1u) << line;
    EXPECT_TRUE(absl::EqualsIgnoreCase(only[0], keyword)) << line;
  }
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
