// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtrain::hosts {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `user@host port=22 slots=4 max=8 gpus=2`, only what is set.
std::string Show(const HostEntry& entry) {
  std::string out = entry.user.empty() ? entry.host : absl::StrCat(entry.user, "@", entry.host);
  if (entry.port != 0) absl::StrAppend(&out, " port=", entry.port);
  if (entry.slots) absl::StrAppend(&out, " slots=", *entry.slots);
  if (entry.max_slots) absl::StrAppend(&out, " max=", *entry.max_slots);
  if (entry.gpus) absl::StrAppend(&out, " gpus=", *entry.gpus);
  if (entry.way == Way::kTcp) absl::StrAppend(&out, " agent=tcp");
  if (entry.way == Way::kSsh) absl::StrAppend(&out, " agent=ssh");
  return out;
}

std::string Show(const absl::StatusOr<HostList>& list) {
  if (!list.ok()) return std::string(list.status().message());
  return absl::StrJoin(list->entries, " | ", [](std::string* out, const HostEntry& entry) {
    absl::StrAppend(out, Show(entry));
  });
}

std::string Parse(absl::string_view text) { return Show(ParseHostfile(text, "hosts")); }

struct Row {
  std::string text;
  std::string expected;
};

TEST(Hostfile, ReadsEveryFormOfALine) {
  const Row rows[] = {
      {"node1", "node1"},
      {"node1:4", "node1 slots=4"},
      {"node1 slots=4 max_slots=8", "node1 slots=4 max=8"},
      {"node1:4 max_slots=8", "node1 slots=4 max=8"},
      {"node1 max_slots=8 slots=4", "node1 slots=4 max=8"},
      {"node1 max_slots=8", "node1 slots=8 max=8"},
      {"alice@node1", "alice@node1"},
      {"alice@node1:4", "alice@node1 slots=4"},
      {"alice@corp.example@node1", "alice@corp.example@node1"},
      {"node1 user=alice", "alice@node1"},
      {"node1 username=alice", "alice@node1"},
      {"node1 user-name=alice", "alice@node1"},
      {"node1 user_name=alice", "alice@node1"},
      {"node1 port=2222", "node1 port=2222"},
      {"node1 gpus=2", "node1 gpus=2"},
      {"node1 gpus=0 slots=1", "node1 slots=1 gpus=0"},
      {"node1 agent=tcp port=9798", "node1 port=9798 agent=tcp"},
      {"node1 agent=ssh", "node1 agent=ssh"},
      {"node1:1 agent=tcp\nnode1:2", "node1 slots=3 agent=tcp"},
      {"node1 slots = 4  port =22", "node1 port=22 slots=4"},
      {"10.0.0.7:2", "10.0.0.7 slots=2"},
      {"a_b-c.example.com.", "a_b-c.example.com."},
      {"::1", "::1"},
      {"fe80::1%eth0", "fe80::1%eth0"},
      {"[::1]", "::1"},
      {"[::1]:4", "::1 slots=4"},
      {"alice@[2001:db8::7]:4 port=22", "alice@2001:db8::7 port=22 slots=4"},
      {"2001:db8::7 slots=4", "2001:db8::7 slots=4"},
      {"::ffff:10.0.0.1", "::ffff:10.0.0.1"},
      {"node1 slots=65535", "node1 slots=65535"},
      {"node1 slots=0004", "node1 slots=4"},
  };
  for (const Row& row : rows) EXPECT_EQ(Parse(row.text), row.expected) << row.text;
}

TEST(Hostfile, KnowsEverySpellingOfSlots) {
  for (const char* key : {"slots", "slot", "count", "counts", "cpu", "cpus"}) {
    EXPECT_EQ(Parse(absl::StrCat("n ", key, "=4")), "n slots=4") << key;
  }
  for (const char* key : {"max_slots", "max-slots", "slots_max", "slots-max", "max_cpus", "max-cpu",
                          "cpus-max", "cpu_max", "max_slot", "slot-max", "max-count"}) {
    EXPECT_EQ(Parse(absl::StrCat("n slots=2 ", key, "=4")), "n slots=2 max=4") << key;
  }
}

TEST(Hostfile, ExpandsRanges) {
  const Row rows[] = {
      {"gpu[1-3]", "gpu1 | gpu2 | gpu3"},
      {"gpu[09-11,20]:8", "gpu09 slots=8 | gpu10 slots=8 | gpu11 slots=8 | gpu20 slots=8"},
      {"n[01-3]", "n01 | n02 | n03"},
      {"n[8-10]", "n8 | n9 | n10"},
      {"n[7]", "n7"},
      {"n[2,1]", "n2 | n1"},
      {"rack[0-1]node[1-2]", "rack0node1 | rack0node2 | rack1node1 | rack1node2"},
      {"n[1-2].x.example slots=2", "n1.x.example slots=2 | n2.x.example slots=2"},
      {"bob@n[1-2]b port=22", "bob@n1b port=22 | bob@n2b port=22"},
      {"[1-2]n", "1n | 2n"},
      {"10.0.0.[8-9]", "10.0.0.8 | 10.0.0.9"},
      {"n[1-1][1-2]", "n11 | n12"},
  };
  for (const Row& row : rows) EXPECT_EQ(Parse(row.text), row.expected) << row.text;
}

TEST(Hostfile, DropsCommentsAnywhere) {
  EXPECT_EQ(Parse("# first\n"
                  "a:1 # tail\n"
                  "  // whole line\n"
                  "b slots=2//tail\n"
                  "c#tail\n"
                  "/* over\n"
                  " lines */ d /* inside */ slots=3\n"
                  "e/*x*/ # /* not opened\n"
                  "f // */\n"),
            "a slots=1 | b slots=2 | c | d slots=3 | e | f");
}

// A10
TEST(Hostfile, ReadsCrLfByteOrderMarkTabsAndBlankLines) {
  EXPECT_EQ(Parse("\xEF\xBB\xBF"
                  "a\tslots=2\r\n\r\n \t\r\nb\t\tslots=3 \t\r\n\n\nc"),
            "a slots=2 | b slots=3 | c");
}

TEST(Hostfile, KeepsTheFilesOrderAndTheFirstMentionsPlace) {
  auto list = ParseHostfile("\n  z slots=1\na slots=1\nz slots=1\n", "hosts");
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->entries.size(), 2u);
  EXPECT_EQ(list->entries[0].host, "z");
  EXPECT_EQ(list->entries[0].line, 2u);
  EXPECT_EQ(list->entries[0].column, 3u);
  EXPECT_EQ(list->entries[1].line, 3u);
  EXPECT_EQ(list->entries[1].column, 1u);
}

// A6
TEST(Hostfile, AddsUpTheSlotsOfARepeatedHost) {
  const Row rows[] = {
      {"a:2\nb:1\na:3", "a slots=5 | b slots=1"},
      {"a\na\na\nb\n", "a slots=3 | b slots=1"},       // a PBS node file
      {"a slots=4\na\nb\n", "a slots=5 | b slots=1"},  // one more for each line without
      {"a slots=4\na slots=2\nb\n", "a slots=6 | b"},  // b is still as large as it is
      {"a:2 max_slots=3\na:1 max_slots=4", "a slots=3 max=7"},
      {"a:2 max_slots=3\na:4", "a slots=6 max=7"},
      {"Node1:1\nnode1:2", "Node1 slots=3"},
      {"::1 slots=1\n[0:0::1]:2", "::1 slots=3"},
      {"n[1-2]:1\nn[2-3]:1", "n1 slots=1 | n2 slots=2 | n3 slots=1"},
      {"a:1\nbob@a:1\na:1 port=22", "bob@a port=22 slots=3"},
      {"a:1 gpus=2\na:1 gpus=2\na:1", "a slots=3 gpus=2"},
  };
  for (const Row& row : rows) EXPECT_EQ(Parse(row.text), row.expected) << row.text;
}

TEST(Hostfile, WarnsWhenAHostIsNamedWithAndWithoutSlots) {
  auto list = ParseHostfile("a slots=4\na\nb:2\nb\n", "hosts");
  ASSERT_TRUE(list.ok());
  EXPECT_THAT(list->warnings,
              ElementsAre("hosts: host a (and 1 more) is named with slots and, on line 2, without; "
                          "each mention without slots counts as one slot"));
  EXPECT_THAT(ParseHostfile("a\na\nb\n", "hosts")->warnings, IsEmpty());
  EXPECT_THAT(ParseHostfile("a:1\na:2\nb\n", "hosts")->warnings, IsEmpty());
}

// A1
TEST(Hostfile, RefusesAFileWithoutHosts) {
  for (const char* text : {"", "\n", "\n\n", "# none\n", "# only\n  # comments\n", "\xEF\xBB\xBF",
                           "\xEF\xBB\xBF\r\n", "  \t\r\n // x\n /* y */"}) {
    EXPECT_EQ(Parse(text), "no hosts in hosts; name at least one");
  }
}

TEST(Hostfile, RefusesBadLinesWithLineColumnAndText) {
  const Row rows[] = {
      {"a\nb sluts=4\n", "hosts:2:3: unknown key: \"sluts\"; did you mean slots=?"},
      {"a prot=4", "hosts:1:3: unknown key: \"prot\"; did you mean port=?"},
      {"a gpu=4", "hosts:1:3: unknown key: \"gpu\"; did you mean gpus=?"},
      {"a max-slot s=4",
       "hosts:1:3: not a setting: \"max-slot\"; "
       "write one host a line, then key=value such as slots=4"},
      {"a sockets=2",
       "hosts:1:3: unknown key: \"sockets\"; "
       "known keys are slots=, max_slots=, port=, user=, gpus= and agent="},
      {"a binding=user:0",
       "hosts:1:3: unknown key: \"binding\"; "
       "known keys are slots=, max_slots=, port=, user=, gpus= and agent="},
      {"a agent=grpc",
       "hosts:1:9: agent is neither ssh nor tcp: \"grpc\"; "
       "write agent=tcp for a resident agent with TLS"},
      {"a =4",
       "hosts:1:3: unknown key: \"\"; "
       "known keys are slots=, max_slots=, port=, user=, gpus= and agent="},
      {"a b",
       "hosts:1:3: not a setting: \"b\"; "
       "write one host a line, then key=value such as slots=4"},
      {"a slots=4 count=4", "hosts:1:11: given twice for one line: \"count\"; keep one of them"},
      {"a:4 slots=4", "hosts:1:5: given twice for one line: \"slots\"; keep one of them"},
      {"u@a user=u", "hosts:1:5: given twice for one line: \"user\"; keep one of them"},
      {"a port=1 port=1", "hosts:1:10: given twice for one line: \"port\"; keep one of them"},
      {"a:4 max_slots=3", "hosts:1:15: max_slots is smaller than slots: \"3\"; slots is 4"},
      {"a max_slots=3 slots=4", "hosts:1:21: max_slots is smaller than slots: \"4\"; slots is 4"},
      {"rank 0=a slot=0",
       "hosts:1:1: a line of a rankfile: \"rank\"; "
       "give this file with --rankfile"},
      {"a\n/* b\nc", "hosts:2:1: comment is never closed: \"/*\"; close it with */"},
      {"a:1\nb:1\na:1 port=2\n\na:1 port=3",
       "hosts:5:1: host has port 3 here, but port 2 before (first named on line 1): \"a\"; "
       "make all mentions of a host agree"},
      {"u@a:1\nv@a:1",
       "hosts:2:1: host has user v here, but user u before (first named on line 1):"
       " \"a\"; make all mentions of a host agree"},
      {"a agent=ssh\na agent=tcp",
       "hosts:2:1: host has agent tcp here, but agent ssh before (first named on line 1): \"a\"; "
       "make all mentions of a host agree"},
      {"a gpus=1\na gpus=2",
       "hosts:2:1: host has gpus 2 here, but gpus 1 before (first named on line 1): \"a\"; "
       "make all mentions of a host agree"},
      {"a:65535\na:1",
       "hosts:2:1: too many slots for one host: \"a\"; "
       "one host has at most 65535 slots"},
      {"a:1:2",
       "hosts:1:1: not an IPv6 address: \"a:1:2\"; "
       "write host:slots, or [address]:slots for IPv6"},
      {"u@[::g]",
       "hosts:1:3: not an IPv6 address: \"[::g]\"; "
       "write host:slots, or [address]:slots for IPv6"},
      {"[::1]4",
       "hosts:1:6: text after an IPv6 address: \"[::1]4\"; "
       "write host:slots, or [address]:slots for IPv6"},
  };
  for (const Row& row : rows) EXPECT_EQ(Parse(row.text), row.expected) << row.text;
}

TEST(Hostfile, ErrorsAreInvalidArgument) {
  EXPECT_EQ(ParseHostfile("", "hosts").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseHostfile("a b", "hosts").status().code(), absl::StatusCode::kInvalidArgument);
}

// A5
TEST(Hostfile, RefusesBadNumbersAndNamesTheField) {
  const std::vector<std::string> bad = {"0",
                                        "-1",
                                        "65536",
                                        "65536000000",
                                        "4294967297",
                                        "18446744073709551617",
                                        "1e20",
                                        "8x",
                                        "+4",
                                        "0x4",
                                        "99999999999999999999",
                                        "0x10",
                                        "4,",
                                        "1.5",
                                        "4.0",
                                        "\"4\"",
                                        "four"};
  for (const char* field : {"slots", "max_slots", "count", "port"}) {
    for (const std::string& value : bad) {
      std::string error = Parse(absl::StrCat("ok\nhost1 ", field, "=", value));
      EXPECT_THAT(error,
                  HasSubstr(absl::StrCat("hosts:2:", 8 + strlen(field), ": ", field, " is ")));
      EXPECT_THAT(error, HasSubstr("give a number from 1 to 65535"));
    }
  }
  for (const std::string& value : bad) {
    EXPECT_THAT(Parse(absl::StrCat("h:", value)), HasSubstr("hosts:1:3: slots is ")) << value;
  }
  const Row rows[] = {
      {"h slots=65536",
       "hosts:1:9: slots is out of range: \"65536\"; "
       "give a number from 1 to 65535"},
      {"h slots=8x",
       "hosts:1:9: slots is not a whole number: \"8x\"; "
       "give a number from 1 to 65535"},
      {"# first\nnode0 port=",
       "hosts:2:12: port has no value: \"\"; give a number from 1 to 65535"},
      {"h slots=", "hosts:1:9: slots has no value: \"\"; give a number from 1 to 65535"},
      {"h:", "hosts:1:3: slots has no value: \"\"; give a number from 1 to 65535"},
      {"[::1]:", "hosts:1:7: slots has no value: \"\"; give a number from 1 to 65535"},
      {"[::1]:0", "hosts:1:7: slots is out of range: \"0\"; give a number from 1 to 65535"},
      {"h port=", "hosts:1:8: port has no value: \"\"; give a number from 1 to 65535"},
      {"h gpus=-1",
       "hosts:1:8: gpus is not a whole number: \"-1\"; "
       "give a number from 0 to 65535"},
  };
  for (const Row& row : rows) EXPECT_EQ(Parse(row.text), row.expected) << row.text;
}

TEST(Hostfile, RefusesBadRanges) {
  const Row rows[] = {
      {"n[3-1]", "hosts:1:3: range runs backwards: \"3-1\"; write the lower number first"},
      {"n[4-1]", "hosts:1:3: range runs backwards: \"4-1\"; write the lower number first"},
      {"n[1-3",
       "hosts:1:2: '[' without ']': \"n[1-3\"; "
       "write ranges like node[1-4,7] or node[01-16]"},
      {"n[1-2",
       "hosts:1:2: '[' without ']': \"n[1-2\"; "
       "write ranges like node[1-4,7] or node[01-16]"},
      {"n1-2]",
       "hosts:1:5: host name must not contain ']': \"n1-2]\"; "
       "use letters, digits, '.', '_' and '-', not '-' or '.' first"},
      {"n[]",
       "hosts:1:3: not a range of numbers: \"\"; "
       "write ranges like node[1-4,7] or node[01-16]"},
      {"n[1,]",
       "hosts:1:5: not a range of numbers: \"\"; "
       "write ranges like node[1-4,7] or node[01-16]"},
      {"n[1-2-3]",
       "hosts:1:3: not a range of numbers: \"1-2-3\"; "
       "write ranges like node[1-4,7] or node[01-16]"},
      {"n[1,a]",
       "hosts:1:5: not a range of numbers: \"a\"; "
       "write ranges like node[1-4,7] or node[01-16]"},
      {"n[[1]]",
       "hosts:1:3: not a range of numbers: \"[1\"; "
       "write ranges like node[1-4,7] or node[01-16]"},
      {"n[0-10/2]",
       "hosts:1:3: ranges with steps are not supported: \"0-10/2\"; "
       "list the numbers instead"},
      {"n[0000000000000000001-2]",
       "hosts:1:3: number too long in a range: \"0000000000000000001-2\"; use at most 18 digits"},
      {"-[1-2]",
       "hosts:1:1: host name starts with '-': \"-[1-2]\"; "
       "use letters, digits, '.', '_' and '-', not '-' or '.' first"},
      {"n[1-2];x",
       "hosts:1:7: host name must not contain ';': \"n[1-2];x\"; "
       "use letters, digits, '.', '_' and '-', not '-' or '.' first"},
  };
  for (const Row& row : rows) EXPECT_EQ(Parse(row.text), row.expected) << row.text;
}

// A11
TEST(Hostfile, CapsRangeBombsBeforeTheyAreExpanded) {
  const Row rows[] = {
      {"n[0-999999999]",
       "hosts:1:3: range names too many hosts: \"0-999999999\"; "
       "one list names at most 65536 hosts"},
      {"n[0-999999999999999999]",
       "hosts:1:3: range names too many hosts: \"0-999999999999999999\";"
       " one list names at most 65536 hosts"},
      {"n[0-9999][0-9999]",
       "hosts:1:10: ranges name too many hosts: \"n[0-9999][0-9999]\"; "
       "one list names at most 65536 hosts"},
      {"n[1-300][1-300]",
       "hosts:1:9: ranges name too many hosts: \"n[1-300][1-300]\"; "
       "one list names at most 65536 hosts"},
      {"n[1-60000]\nm[1-60000]",
       "hosts:2:1: too many hosts: \"120000\"; "
       "one list names at most 65536 hosts"},
      {"n[1-60000]\nn[1-60000]",
       "hosts:2:1: too many hosts: \"120000\"; "
       "one list names at most 65536 hosts"},
  };
  for (const Row& row : rows) EXPECT_EQ(Parse(row.text), row.expected) << row.text;
  std::string groups = "n";
  for (int i = 0; i < 100000; ++i) groups += "[1-9]";
  EXPECT_THAT(Parse(groups), HasSubstr("ranges name too many hosts"));
  groups = "n";
  for (int i = 0; i < 100000; ++i) groups += "[1]";
  EXPECT_THAT(Parse(groups), HasSubstr("host name is too long"));
  EXPECT_EQ(ParseHostfile("n[1-65536]", "hosts")->entries.size(), kMaxHosts);
}

TEST(Hostfile, CapsTheNumberOfHostsAlsoWithoutRanges) {
  std::string text = "n[1-65536]\n";
  EXPECT_TRUE(ParseHostfile(text + "n5\n", "hosts").ok());
  EXPECT_THAT(Parse(text + "m\n"), HasSubstr("hosts:2:1: too many hosts"));
}

// A10
TEST(Hostfile, ReadsTenThousandHosts) {
  std::string text;
  for (int i = 0; i < 10000; ++i) absl::StrAppend(&text, "node", i, ".example.com slots=8\n");
  auto list = ParseHostfile(text, "hosts");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->entries.size(), 10000u);
  EXPECT_EQ(list->entries[9999].host, "node9999.example.com");
  EXPECT_EQ(list->entries[9999].line, 10000u);
}

// A10
TEST(Hostfile, RefusesALineOfAMebibyteInAShortMessage) {
  for (char c : {'a', ',', '[', ':', '@', '=', '/', '*', '\x01'}) {
    std::string error = Parse(std::string(1 << 20, c));
    EXPECT_LT(error.size(), 1000u) << c;
  }
  EXPECT_THAT(Parse(std::string(1 << 20, 'a')), HasSubstr("host name is too long"));
  EXPECT_THAT(Parse("a " + std::string(1 << 20, 'k') + "=1"), HasSubstr("unknown key"));
  EXPECT_EQ(Parse("a slots=" + std::string(1 << 20, '0') + "7"), "a slots=7");
  EXPECT_EQ(Parse("a" + std::string(1 << 20, ' ') + "slots=7"), "a slots=7");
}

}  // namespace
}  // namespace dtrain::hosts
