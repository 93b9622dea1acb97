// SPDX-License-Identifier: Apache-2.0
// What ranks ask of their launcher while they meet, and what they make of bad answers.
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/dtrain.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/bootstrap.h"
#include "runtime/boot/bootstrap.h"
#include "tests/component/runtime/ranks.h"

namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<int> Zeros(int n) { return std::vector<int>(static_cast<size_t>(n), 0); }

// "3" of "cmd=get kvsname=kvs_test_0 key=dtrain-0.1-3-0": whose entry a line is about.
std::string OwnerIn(const std::string& line) {
  const std::string key = " key=dtrain-0.";
  const size_t at = line.find(key);
  if (at == std::string::npos) return "";
  const size_t begin = line.find('-', at + key.size()) + 1;
  return line.substr(begin, line.find('-', begin) - begin);
}

// What the PMI server of a job is asked for, until all ranks have joined and left.
struct Asked {
  std::map<int, int> gets;             // by rank
  std::map<int, std::set<int>> peers;  // whose entries, by rank
  int barriers = 0;                    // of rank 0
};

Asked Start(int n, std::optional<std::string> mapping) {
  Asked asked;
  RanksOptions options;
  options.mapping = std::move(mapping);
  options.rejoin = true;
  options.environment["DTRAIN_ADDRESS"] = "127.0.0.1";
  options.environment["DTRAIN_BACKEND"] = "cpu";
  options.instead = [&](int rank, const std::string& line) -> std::optional<std::string> {
    if (rank == 0 && line == "cmd=barrier_in") ++asked.barriers;
    const std::string owner = OwnerIn(line);
    if (line.starts_with("cmd=get ") && !owner.empty()) {
      ++asked.gets[rank];
      asked.peers[rank].insert(std::atoi(owner.c_str()));
    }
    return std::nullopt;
  };
  const auto ends = Ranks::Run(
      n,
      [&](int) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        int32_t one = 1;
        ASSERT_EQ(dtrain_allreduce(&one, &one, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK);
        EXPECT_EQ(one, n);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      options);
  EXPECT_EQ(ends, Zeros(n));
  return asked;
}

using Gets = std::map<int, int>;
using Peers = std::map<int, std::set<int>>;

// The cards of all ranks of the node, and the verdict; the leader also how all have got on.
TEST(StartTest, RanksOfOneNodeAskForTheirNodeOnce) {
  const Asked asked = Start(6, "(vector,(0,1,6))");
  EXPECT_EQ(asked.gets, (Gets{{0, 13}, {1, 7}, {2, 7}, {3, 7}, {4, 7}, {5, 7}}));
  EXPECT_EQ(asked.barriers, 4) << "three to join, and one to leave";
}

// Ranks times ranks values would be a thousand times as many in a job of a thousand ranks.
TEST(StartTest, RanksOfSeveralNodesAskForTheirNodeAndLeadersForLeaders) {
  const Asked asked = Start(6, "(vector,(0,3,2))");
  EXPECT_EQ(asked.peers, (Peers{{0, {0, 1, 2, 4}},
                                {1, {0, 1}},
                                {2, {0, 2, 3, 4}},
                                {3, {0, 2, 3}},
                                {4, {0, 2, 4, 5}},
                                {5, {0, 4, 5}}}));
  EXPECT_EQ(asked.gets, (Gets{{0, 10}, {1, 3}, {2, 7}, {3, 3}, {4, 7}, {5, 3}}));
  EXPECT_EQ(asked.barriers, 5);
}

TEST(StartTest, RanksWithANodeEachAskLikeLeaders) {
  const Asked asked = Start(4, "(vector,(0,4,1))");
  EXPECT_EQ(asked.gets, (Gets{{0, 9}, {1, 5}, {2, 5}, {3, 5}}));
  EXPECT_EQ(asked.barriers, 4);
}

// Rank 0 hears the names of all nodes and numbers them.
TEST(StartTest, WithoutAMappingOneRankReadsAllNames) {
  const Asked asked = Start(4, std::nullopt);
  EXPECT_EQ(asked.gets, (Gets{{0, 14}, {1, 6}, {2, 6}, {3, 6}}));
  EXPECT_EQ(asked.barriers, 6);
}

// What all get to see instead of the entry that `rank` made in one of the exchanges.
struct Garbage {
  const char* name;
  int exchange;
  int rank;
  std::string value;
  std::string says;
};

std::string Put(std::string_view bytes) {
  const std::string text = EncodeText(bytes);
  return std::to_string(text.size()) + ":" + text;
}

class GarbageTest : public testing::TestWithParam<Garbage> {};

// On two nodes: 0 is the exchange of cards, 1 is that of how ranks have got on within nodes, 2 that
// of leaders, 3 the verdict.
std::vector<Garbage> AllGarbage() {
  const std::string slash = "5:1/x/y", garbled = "entry is garbled: 5:1/x/y";
  const std::string gone, missing = "entry is not in the launcher's table";
  const std::string old = Put("dtrain-3\n0\n\n1\n2\nhost");
  const std::string version =
      "does not speak as this version of libdtrain does: it begins with 'dtrain-3'";
  const std::string broken = Put(Versioned("3:abc")), unreadable = "published cannot be read";
  const std::string huge = Put("V1:91:11:11:1" + std::string("4:boot1:71:199:99999999999:"));
  return {{"LeadersCardIsGarbled", 0, 0, slash, garbled},
          {"FarLeadersCardIsGarbled", 0, 2, slash, garbled},
          {"CardIsGarbled", 0, 3, slash, garbled},
          {"CardIsMissing", 0, 1, gone, missing},
          {"CardIsOfAnotherVersion", 0, 3, old, version},
          {"LeadersCardIsOfAnotherVersion", 0, 2, old, version},
          {"CardIsBroken", 0, 1, broken, unreadable},
          {"LongEntryEndsEarly", 0, 3, "1000000:abc", missing},
          {"StandingIsGarbled", 1, 3, slash, garbled},
          {"StandingIsNone", 1, 1, Put("hello"), unreadable},
          {"StandingIsBroken", 1, 3, Put("V2:"), unreadable},
          {"StandingClaimsTooMuch", 1, 3, huge, unreadable},
          {"ErrorHasNoCode", 1, 3, Put("E3:0:x"), unreadable},
          {"LeadersStandingIsGarbled", 2, 2, slash, garbled},
          {"LeadersStandingIsMissing", 2, 2, gone, missing},
          {"LeadersStandingIsBroken", 2, 0, Put("V"), unreadable},
          {"VerdictIsGarbled", 3, 0, slash, garbled},
          {"VerdictIsBroken", 3, 0, Put("V7:"), unreadable}};
}

INSTANTIATE_TEST_SUITE_P(All, GarbageTest, testing::ValuesIn(AllGarbage()),
                         [](const auto& info) { return info.param.name; });

TEST_P(GarbageTest, NamesItsRankOnAllRanksAtOnce) {
  const Garbage& garbage = GetParam();
  RanksOptions options;
  options.mapping = "(vector,(0,2,2))";
  options.environment["DTRAIN_ADDRESS"] = "127.0.0.1";
  options.environment["DTRAIN_TIMEOUT_SECONDS"] = "40";
  options.deadline = std::chrono::seconds(20);
  const std::string entry =
      "key=dtrain-0." + std::to_string(garbage.exchange) + "-" + std::to_string(garbage.rank) + "-";
  options.instead = [&](int, const std::string& line) -> std::optional<std::string> {
    if (!line.starts_with("cmd=get ") || line.find(entry) == std::string::npos) return std::nullopt;
    if (garbage.value.empty() || !line.ends_with("-0")) {
      return "cmd=get_result rc=-1 msg=not_found value=unknown";
    }
    return "cmd=get_result rc=0 msg=success value=" + garbage.value;
  };
  const auto ends = Ranks::Run(
      4,
      [&](int rank) {
        EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_LAUNCHER);
        EXPECT_THAT(
            dtrain_last_error(),
            AllOf(HasSubstr("rank " + std::to_string(rank) + " of 4 could not join"),
                  HasSubstr("rank " + std::to_string(garbage.rank)), HasSubstr(garbage.says)));
      },
      options);
  EXPECT_EQ(ends, Zeros(4));
}

// Ranks that leave with this error must not be the failure that slower ones see.
TEST(StartTest, DifferentBackendsAreToldOnEveryNode) {
  RanksOptions options;
  options.mapping = "(vector,(0,2,2))";
  options.environment["DTRAIN_ADDRESS"] = "127.0.0.1";
  for (int run = 0; run < 20; ++run) {
    const auto ends = Ranks::Run(
        4,
        [](int rank) {
          setenv("DTRAIN_BACKEND", rank == 3 ? "auto" : "cpu", 1);
          EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_ENVIRONMENT);
          EXPECT_THAT(dtrain_last_error(),
                      HasSubstr("DTRAIN_BACKEND is cpu on rank 0, but auto on rank 3"));
        },
        options);
    ASSERT_EQ(ends, Zeros(4));
  }
}

}  // namespace
}  // namespace dtrain::runtime
