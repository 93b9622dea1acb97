// SPDX-License-Identifier: Apache-2.0
#include "common/view/columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace dtrain::view {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kEpoch = 1'700'000'000'000;

class ColumnsTest : public testing::Test {
 protected:
  void Make(uint32_t ranks, uint32_t of_node = 8) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      ranks_.push_back({RankLetter::kRunning, 2'000'000 + rank, 0, rank / of_node});
    }
    for (uint32_t node = 0; node * of_node < ranks; ++node) {
      nodes_.push_back({NodeLetter::kJoined, absl::StrCat("gpu-node-", node)});
    }
    Update();
  }
  void Update() { columns_.Update(ranks_, nodes_); }

  Columns columns_{kEpoch};
  std::vector<RankRow> ranks_;
  std::vector<NodeRow> nodes_;
};

TEST_F(ColumnsTest, TheFirstAnswerHasEverything) {
  Make(3, 2);
  ranks_[1].state = RankLetter::kFailed;
  ranks_[1].exit = -9;
  Update();
  const Json json = columns_.Since(0);
  EXPECT_EQ(json["full"], true);
  EXPECT_EQ(json["rank"]["state"], "rfr");
  EXPECT_EQ(json["rank"]["node"], Json({0, 0, 1}));
  EXPECT_EQ(json["rank"]["pid"], Json({2000000, 2000001, 2000002}));
  EXPECT_EQ(json["rank"]["exit"], Json({{"1", -9}}));
  EXPECT_EQ(json["node"]["host"], Json({"gpu-node-0", "gpu-node-1"}));
  EXPECT_EQ(json["node"]["state"], "jj");
}

TEST_F(ColumnsTest, LaterOnesHaveOnlyWhatChanged) {
  Make(100);
  const uint64_t seen = columns_.version();
  Update();
  EXPECT_EQ(columns_.version(), seen);
  EXPECT_EQ(columns_.Since(seen).dump(), Json({{"version", seen}, {"full", false}}).dump());
  ranks_[70].state = RankLetter::kHalted;
  Update();
  nodes_[2].state = NodeLetter::kSilent;
  Update();
  EXPECT_EQ(columns_.Since(seen)["rank"].dump(), R"({"state":{"70":"h"}})");
  EXPECT_EQ(columns_.Since(seen)["node"].dump(), R"({"state":{"2":"s"}})");
  // Of 13 letters a whole text is shorter than two that are named.
  nodes_[3].state = NodeLetter::kLost;
  Update();
  EXPECT_EQ(columns_.Since(seen)["node"].dump(), R"({"state":"jjsgjjjjjjjjj"})");
  EXPECT_FALSE(columns_.Since(seen + 1).contains("rank"));
}

// Readers have different versions, and none takes anything away from another.
TEST_F(ColumnsTest, EachReaderCanPutTheWholeTogether) {
  Make(40);
  struct Reader {
    uint64_t version = 0;
    std::string states;
  };
  Reader readers[3];
  for (int step = 0; step < 60; ++step) {
    ranks_[static_cast<size_t>(step * 7 % 40)].state =
        step % 3 == 0 ? RankLetter::kInside : RankLetter::kRunning;
    if (step % 10 == 0) ranks_[0].state = RankLetter::kDone;
    Update();
    for (int i = 0; i < 3; ++i) {
      if (step % (i + 1) != 0) continue;
      const Json json = columns_.Since(readers[i].version);
      readers[i].version = json["version"];
      const Json change = json.value("rank", Json::object()).value("state", Json());
      if (change.is_string()) readers[i].states = change;
      if (change.is_object()) {
        for (const auto& [index, letter] : change.items()) {
          readers[i].states[std::stoul(index)] = letter.get<std::string>()[0];
        }
      }
      std::string expected;
      for (const RankRow& rank : ranks_) expected += static_cast<char>(rank.state);
      EXPECT_EQ(readers[i].states, expected) << "reader " << i << ", step " << step;
    }
  }
}

TEST_F(ColumnsTest, AStrangeVersionGetsEverything) {
  Make(4);
  for (const uint64_t version : {uint64_t{1}, kEpoch - 5, columns_.version() + 1}) {
    EXPECT_EQ(columns_.Since(version)["full"], true) << version;
  }
  EXPECT_EQ(columns_.Since(columns_.version())["full"], false);
}

TEST_F(ColumnsTest, ANewPlanIsAWhole) {
  columns_.Update({}, nodes_);
  const uint64_t before = columns_.version();
  Make(4, 2);
  EXPECT_EQ(columns_.Since(before)["full"], true);
  EXPECT_EQ(columns_.Since(before)["rank"]["state"], "rrrr");
}

// What docs/api.md promises.
TEST_F(ColumnsTest, AThousandRanksAreSmall) {
  Make(1000);
  EXPECT_LT(columns_.Since(0).dump().size(), 25'000u);
  const uint64_t seen = columns_.version();
  // The worst that comes each second: all of them change.
  for (RankRow& rank : ranks_) rank.state = RankLetter::kInside;
  Update();
  EXPECT_LT(columns_.Since(seen).dump().size(), 5'000u);
}

TEST_F(ColumnsTest, NamesOfHostsAreWhatTheyAre) {
  nodes_ = {{NodeLetter::kJoined, "</script>\"\n"}};
  ranks_ = {{}};
  Update();
  EXPECT_EQ(columns_.Since(0)["node"]["host"][0], "</script>\"\n");
}

}  // namespace
}  // namespace dtrain::view
