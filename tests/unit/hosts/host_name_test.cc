// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::hosts {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Error(absl::string_view text) {
  auto list = ParseHostfile(text, "F");
  return list.ok() ? "" : std::string(list.status().message());
}

// A3
TEST(HostName, ThatLooksLikeAnOptionIsRefused) {
  EXPECT_THAT(Error("ok\n-oProxyCommand=touch /tmp/x\n"),
              HasSubstr("F:2:1: host name starts with '-': \"-oProxyCommand=touch\""));
  EXPECT_THAT(Error("u@-host"), HasSubstr("F:1:3: host name starts with '-'"));
  EXPECT_THAT(Error("-lroot@host"), HasSubstr("F:1:1: user name starts with '-'"));
  EXPECT_THAT(Error("host user=-lroot"), HasSubstr("F:1:11: user name starts with '-'"));
  EXPECT_FALSE(ParseHostList("a,-oProxyCommand=x").ok());
}

// A4: everything that OpenSSH's valid_hostname refuses, and more.
TEST(HostName, WithADangerousCharacterIsRefusedWhereItStands) {
  for (char c : std::string("'`\"$\\;&<>|(){},!*?~^%+=\x01\x1b\x7f\v\f\r")) {
    std::string error = Error(absl::StrCat("ok\nab", std::string(1, c), "cd"));
    EXPECT_THAT(error, HasSubstr("F:2:3: host name must not contain '")) << static_cast<int>(c);
    EXPECT_THAT(error, Not(HasSubstr("\x1b")));
  }
  for (char c : std::string("'`\"$\\;&<>|(){},!*?~^%=/[]:\x01\x1b\x7f")) {
    EXPECT_THAT(Error(absl::StrCat("ok\nab", std::string(1, c), "cd@host")),
                HasSubstr("F:2:3: user name"))
        << c;
    std::string error = Error(absl::StrCat("host user=ab", std::string(1, c), "cd"));
    EXPECT_THAT(error, HasSubstr("F:1:13: user name must not contain '")) << c;
  }
  EXPECT_EQ(Error("a;rm"),
            "F:1:2: host name must not contain ';': \"a;rm\"; "
            "use letters, digits, '.', '_' and '-', not '-' or '.' first");
  EXPECT_THAT(Error("$(id)"), HasSubstr("F:1:1: host name must not contain '$'"));
}

// A4
TEST(HostName, WithNulEscapeOrLookAlikeIsShownEscaped) {
  EXPECT_THAT(Error(std::string("a\0b", 3)),
              HasSubstr("F:1:2: host name must not contain '\\x00': \"a\\x00b\""));
  EXPECT_THAT(Error("n\x1b]0;x\x07"),
              HasSubstr("host name must not contain '\\x1b': \"n\\x1b]0;x\\x07\""));
  // Cyrillic o
  EXPECT_THAT(Error("n\xD0\xBE"
                    "de1"),
              HasSubstr("F:1:2: host name must not contain '\\xd0': \"n\\xd0\\xbede1\""));
  EXPECT_THAT(Error("ro\xD0\xBEt@n"), HasSubstr("F:1:3: user name must not contain '\\xd0'"));
  // A no-break space is no blank.
  EXPECT_THAT(Error("a\xC2\xA0slots=4"), HasSubstr("F:1:2: host name must not contain '\\xc2'"));
}

// A3, A4: each in a file and in a list.
TEST(HostName, ThatIsDangerousIsRefusedEverywhere) {
  const std::string names[] = {
      "-oProxyCommand=touch /root/work/pwned",
      "-oProxyCommand=touch${IFS}/root/work/pwned",
      "a;touch /root/work/pwned",
      "$(touch /root/work/pwned)",
      "`touch /root/work/pwned`",
      "a\x1b[31m",
      "n\xD0\xBE"
      "de0",
      "a|b",
      "a&b",
      "a'b",
      "a\"b",
      "a\\b",
      "us;er@node0",
      "-l@node0",
  };
  for (const std::string& name : names) {
    std::string error = Error("node0\n" + name + "\n");
    EXPECT_THAT(error, HasSubstr("F:2:")) << name;
    EXPECT_THAT(error, Not(HasSubstr("\x1b")));
    for (const std::string& list : {name, "node0," + name}) {
      const auto parsed = ParseHostList(list);
      EXPECT_FALSE(parsed.ok()) << list;
      EXPECT_THAT(std::string(parsed.status().message()),
                  AllOf(HasSubstr("--hosts, column "), Not(HasSubstr("\x1b"))));
    }
  }
}

TEST(HostName, WithoutCharactersIsRefused) {
  EXPECT_THAT(Error("u@"), HasSubstr("F:1:3: host name is empty"));
  EXPECT_THAT(Error("@h"), HasSubstr("F:1:1: user name is empty"));
  EXPECT_THAT(Error(":4"), HasSubstr("F:1:1: host name is empty"));
  EXPECT_THAT(Error("h user="), HasSubstr("F:1:8: user name is empty"));
}

TEST(HostName, WithEmptyLabelsIsRefused) {
  EXPECT_THAT(Error(".."), HasSubstr("F:1:1: host name starts with '.'"));
  EXPECT_THAT(Error(".ssh"), HasSubstr("F:1:1: host name starts with '.'"));
  EXPECT_THAT(Error("a..b"), HasSubstr("F:1:2: host name contains '..'"));
  EXPECT_EQ(Error("a.b."), "");
}

TEST(HostName, HasAtMost253Characters) {
  EXPECT_EQ(Error(std::string(253, 'a')), "");
  EXPECT_THAT(Error(std::string(254, 'a')), HasSubstr("F:1:1: host name is too long"));
  EXPECT_EQ(Error(std::string(251, 'a') + "[1-99]"), "");
  EXPECT_THAT(Error(std::string(251, 'a') + "[1-100]"), HasSubstr("host name is too long"));
  EXPECT_THAT(Error(std::string(254, 'u') + "@h"), HasSubstr("user name has 254 characters"));
}

TEST(HostName, MayBeAnIpv6AddressWithAPlainZone) {
  EXPECT_EQ(Error("fe80::1%eth0"), "");
  EXPECT_EQ(Error("[fe80::1%br-0.7]:2"), "");
  for (const char* bad : {"fe80::1%", "fe80::1%a;b", "fe80::1%-x", "fe80::1%sixteencharacters",
                          "1:2:3:4:5:6:7:8:9", ":::", "1::2::3", "12345::", "[::1", "[1-2:3]"}) {
    EXPECT_NE(Error(bad), "") << bad;
  }
  EXPECT_FALSE(ParseHostfile(std::string("::1\0", 4), "F").ok());
}

TEST(CheckHostName, FollowsTheSameRules) {
  EXPECT_TRUE(CheckHostName("node1.example.com").ok());
  EXPECT_TRUE(CheckHostName("fe80::1%eth0").ok());
  for (const char* bad : {"", "-x", "a b", "a;b", "a:4", "[::1]", "u@h", "n[1-2]", "a\nb"}) {
    EXPECT_FALSE(CheckHostName(bad).ok()) << bad;
  }
  EXPECT_EQ(CheckHostName("a b").message(),
            "host name must not contain ' ': \"a b\"; "
            "use letters, digits, '.', '_' and '-', not '-' or '.' first");
}

}  // namespace
}  // namespace dtrain::hosts
