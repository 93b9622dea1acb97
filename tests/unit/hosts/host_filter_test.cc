// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtrain::hosts {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// "a:? +0,2 -1": slots, the GPUs that are chosen, those that are not to be used.
std::string ShowChoice(const absl::StatusOr<HostList>& list) {
  if (!list.ok()) {
    EXPECT_EQ(list.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(list.status().message());
  }
  std::string out;
  for (const HostEntry& entry : list->entries) {
    absl::StrAppend(&out, out.empty() ? "" : " ", entry.host, ":",
                    entry.slots ? absl::StrCat(*entry.slots) : "?");
    if (!entry.only_gpus.empty()) {
      absl::StrAppend(&out, " +", absl::StrJoin(entry.only_gpus, ","));
    }
    if (!entry.without_gpus.empty()) {
      absl::StrAppend(&out, " -", absl::StrJoin(entry.without_gpus, ","));
    }
  }
  return out;
}

HostList ListOf(absl::string_view text) {
  auto list = ParseHostfile(text, "hosts");
  EXPECT_TRUE(list.ok()) << list.status();
  return *list;
}
HostList FourHosts() { return ListOf("w-0 slots=4\nw-1 slots=4\nw-2 slots=4\nw-3\n"); }

std::string Including(absl::string_view text) {
  return ShowChoice(IncludeHosts(FourHosts(), text));
}
std::string Excluding(absl::string_view text) {
  return ShowChoice(ExcludeHosts(FourHosts(), text));
}

TEST(HostFilter, IncludedHostsKeepTheOrderOfTheListAndGpusTheirOwn) {
  EXPECT_EQ(Including("w-2:3,0@w-0"), "w-0:4 w-2:? +3,0");
  EXPECT_EQ(Including("w-1:0-2,7,4-4"), "w-1:? +0,1,2,7,4");
  EXPECT_EQ(Including(" W-3 @ w-1:0 "), "w-1:? +0 w-3:?");
  EXPECT_EQ(Including("w-[0-1]:0,1"), "w-0:? +0,1 w-1:? +0,1");
}

TEST(HostFilter, ExcludedHostsAndGpusAreLeftOut) {
  EXPECT_EQ(Excluding("w-2:0@w-3:0,1"), "w-0:4 w-1:4 w-2:4 -0 w-3:? -0,1");
  EXPECT_EQ(Excluding("w-[1-3]"), "w-0:4");
}

TEST(HostFilter, AHostOfWhichNothingIsLeftGoes) {
  const HostList list = ListOf("a gpus=2\nb gpus=2\n");
  EXPECT_EQ(ShowChoice(ExcludeHosts(list, "a:0,1")), "b:?");
  EXPECT_THAT(ShowChoice(ExcludeHosts(list, "a@b:1,0")),
              HasSubstr("--exclude, column 1: no host is left"));
}

TEST(HostFilter, AddressesMayBeHosts) {
  const HostList list = ListOf("10.0.0.1\n[2001:db8::7]:4\n2001:db8::8 slots=4\n");
  EXPECT_EQ(ShowChoice(IncludeHosts(list, "[2001:db8::7]:0,1@10.0.0.1:2")),
            "10.0.0.1:? +2 2001:db8::7:? +0,1");
  EXPECT_EQ(ShowChoice(IncludeHosts(list, "2001:db8:0::8")), "2001:db8::8:4");
}

TEST(HostFilter, WhatTheListDoesNotHaveIsNamed) {
  EXPECT_EQ(Including("w-0@w-9:1"),
            "--include, column 5: host is not in the host list: \"w-9\"; its hosts are w-0, w-1, "
            "w-2, w-3");
  EXPECT_THAT(Excluding("w-[3-4]"), HasSubstr("--exclude, column 1: host is not in the host list"));
  EXPECT_THAT(ShowChoice(IncludeHosts(ListOf("h[1-20]"), "x")), HasSubstr("h7, h8 and 12 more"));
  const HostList list = ListOf("a gpus=4\n");
  EXPECT_THAT(ShowChoice(IncludeHosts(list, "a:1,4")),
              HasSubstr("host has no GPU 4 for this job: \"a\"; the host list says gpus=4"));
  EXPECT_THAT(ShowChoice(ExcludeHosts(list, "a:4")), HasSubstr("host has no GPU 4"));
}

TEST(HostFilter, MistakesAreNamedByTheirColumn) {
  EXPECT_THAT(Including("w-0:"), HasSubstr("--include, column 5: GPU has no value"));
  EXPECT_THAT(Including("w-0:0,,1"), HasSubstr("column 7: GPU has no value"));
  EXPECT_THAT(Including("w-0:0,x"), HasSubstr("column 7: GPU is not a whole number: \"x\""));
  EXPECT_THAT(Including("w-0:-1"), HasSubstr("column 5: GPU has no value"));
  EXPECT_THAT(Including("w-0:1024"), HasSubstr("GPU is out of range"));
  EXPECT_THAT(Including("w-0:0-4294967296"), HasSubstr("GPU is out of range"));
  EXPECT_THAT(Including("w-0:3-1"), HasSubstr("range runs backwards"));
  EXPECT_THAT(Including("w-0:1,0-2"), HasSubstr("GPU is named twice: \"1\""));
  EXPECT_THAT(Including("w-0:0@w-0:1"), HasSubstr("column 7: host is named twice: \"w-0\""));
  EXPECT_THAT(Including("w-0@"), HasSubstr("column 5: host name is empty"));
  EXPECT_THAT(Including("w-0:0:1"), HasSubstr("not an IPv6 address"));
  EXPECT_THAT(Including("w-[0-99999999]"), HasSubstr("too many hosts"));
  EXPECT_THAT(Including("\x1b[2J"), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace dtrain::hosts
