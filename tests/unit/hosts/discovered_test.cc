// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/discovered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace dtrain::hosts {
namespace {

using ::testing::HasSubstr;

std::string Read(absl::string_view text, std::optional<uint32_t> slots = {}) {
  const auto list = ParseDiscovered(text, slots);
  if (!list.ok()) return std::string(list.status().message());
  std::string all;
  for (const HostEntry& entry : list->entries) {
    absl::StrAppend(&all, all.empty() ? "" : " ", entry.host,
                    entry.slots ? absl::StrCat(":", *entry.slots) : "");
  }
  return all;
}

TEST(DiscoveredTest, HostsAndSlots) {
  EXPECT_EQ(Read("a:4\nb:2\n"), "a:4 b:2");
  EXPECT_EQ(Read("  a \r\n\n10.0.0.3:1"), "a 10.0.0.3:1");
  EXPECT_EQ(Read("a\nb:2", 8), "a:8 b:2");
  EXPECT_EQ(Read(""), "");
  EXPECT_EQ(Read("\n \n"), "");
}

TEST(DiscoveredTest, Ipv6AddressesAreAsInAHostFile) {
  EXPECT_EQ(Read("2001:db8::7\n[2001:db8::8]\n[2001:db8::9]:4\nfe80::1%eth0", 2),
            "2001:db8::7:2 2001:db8::8:2 2001:db8::9:4 fe80::1%eth0:2");
  EXPECT_EQ(Read("[::1]:2\n0:0::1"), "0:0::1");
}

TEST(DiscoveredTest, OfAHostThatIsNamedTwiceTheLastLineCounts) {
  EXPECT_EQ(Read("a:1\nb:1\na:3"), "a:3 b:1");
  EXPECT_EQ(Read("a:1\nA:2"), "A:2");
}

TEST(DiscoveredTest, WhatIsNoHost) {
  EXPECT_EQ(Read("a:4\nb:c:d"), "line 2: \"b:c:d\" is not HOST or HOST:SLOTS");
  for (const char* line : {"a:", "a:0", "a:x", "a:-1", "a:99999", "[::1]:", "[::1]:0", "[::1",
                           "[::1]2", "[a]:2", "2001:db8::9]:4"}) {
    EXPECT_THAT(Read(line), HasSubstr("is not HOST or HOST:SLOTS")) << line;
  }
  for (const char* line : {"-oProxyCommand=x", "a b", ":3", "$(reboot)"}) {
    EXPECT_THAT(Read(line), HasSubstr("line 1: ")) << line;
  }
}

}  // namespace
}  // namespace dtrain::hosts
