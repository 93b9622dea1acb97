// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/distribution.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "absl/strings/str_cat.h"

namespace dtrain::stage {
namespace {

using manifest::File;

std::vector<File> Files(const std::vector<uint64_t>& sizes) {
  std::vector<File> files;
  for (const uint64_t size : sizes) {
    files.push_back({File::Kind::kData, absl::StrCat(100 + files.size()), size, "", ""});
  }
  return files;
}

TEST(DistributionTest, NothingIsSentBeforeAllHaveAnswered) {
  const auto files = Files({10, 20});
  Distribution distribution(files, {NodeId(0), NodeId(1)});
  ASSERT_TRUE(distribution.OnMissing(NodeId(0), {1}).ok());
  EXPECT_FALSE(distribution.Next());
  ASSERT_TRUE(distribution.OnStaged(NodeId(1)).ok());
  const auto message = distribution.Next();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->nodes, std::vector<NodeId>{NodeId(0)});
  EXPECT_EQ(message->pieces, (std::vector<Distribution::Piece>{{1, 0, 20}}));
  EXPECT_FALSE(distribution.Next());
  ASSERT_TRUE(distribution.OnTaken(NodeId(0), 1).ok());
  ASSERT_TRUE(distribution.OnStaged(NodeId(0)).ok());
  EXPECT_TRUE(distribution.all_staged());
  EXPECT_EQ(distribution.files_sent(), 1u);
  EXPECT_EQ(distribution.nodes_sent_to(), 1u);
}

TEST(DistributionTest, ASlowNodeHoldsUpWhatItLacksToo) {
  const auto files = Files({Distribution::kMostData * 20});
  Distribution distribution(files, {NodeId(0), NodeId(1)});
  ASSERT_TRUE(distribution.OnMissing(NodeId(0), {0}).ok());
  ASSERT_TRUE(distribution.OnMissing(NodeId(1), {0}).ok());
  size_t sent = 0;
  while (distribution.Next()) ++sent;
  EXPECT_EQ(sent, Distribution::kAhead);
  ASSERT_TRUE(distribution.OnTaken(NodeId(0), 8).ok());
  EXPECT_FALSE(distribution.Next());
  ASSERT_TRUE(distribution.OnTaken(NodeId(1), 1).ok());
  EXPECT_TRUE(distribution.Next());
  EXPECT_FALSE(distribution.Next());
}

TEST(DistributionTest, WhatNoNodeOfOursSays) {
  auto files = Files({10, 0, 10});
  files[2].kind = File::Kind::kLink;
  Distribution distribution(files, {NodeId(0)});
  EXPECT_FALSE(distribution.OnMissing(NodeId(7), {0}).ok());
  EXPECT_FALSE(distribution.OnMissing(NodeId(0), {3}).ok());
  EXPECT_FALSE(distribution.OnMissing(NodeId(0), {1}).ok());
  EXPECT_FALSE(distribution.OnMissing(NodeId(0), {2}).ok());
  EXPECT_FALSE(distribution.OnMissing(NodeId(0), {0, 0}).ok());
  EXPECT_FALSE(distribution.OnTaken(NodeId(0), 1).ok());
  EXPECT_TRUE(distribution.OnMissing(NodeId(0), {0}).ok());
  EXPECT_FALSE(distribution.OnMissing(NodeId(0), {0}).ok());
  EXPECT_TRUE(distribution.OnStaged(NodeId(0)).ok());
  EXPECT_FALSE(distribution.OnStaged(NodeId(0)).ok());
}

// Each node gets what it lacks, whole, in order, and never more than it may have.
TEST(DistributionTest, RandomNodes) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<uint64_t> sizes;
    for (int i = 0; i < 30; ++i) sizes.push_back(1 + random() % (random() % 3 ? 5000 : 900000));
    const auto files = Files(sizes);
    std::vector<NodeId> nodes;
    for (uint32_t i = 0; i < 5; ++i) nodes.emplace_back(i);
    Distribution distribution(files, nodes);
    std::map<uint32_t, std::map<uint32_t, uint64_t>> due;  // bytes, by node and file
    for (const NodeId node : nodes) {
      std::vector<uint32_t> missing;
      for (uint32_t i = 0; i < files.size(); ++i) {
        if (random() % 2 == 0) missing.push_back(i);
      }
      for (const uint32_t file : missing) due[node.value()][file] = files[file].size;
      ASSERT_TRUE(distribution.OnMissing(node, missing).ok());
    }
    std::map<uint32_t, size_t> untaken;
    for (bool stuck = false; !stuck;) {
      stuck = true;
      while (auto message = distribution.Next()) {
        stuck = false;
        size_t bytes = 0;
        for (const auto& piece : message->pieces) bytes += piece.size;
        ASSERT_LE(bytes, Distribution::kMostData);
        for (const NodeId node : message->nodes) {
          ASSERT_LE(++untaken[node.value()], Distribution::kAhead);
          for (const auto& piece : message->pieces) {
            uint64_t& left = due[node.value()][piece.file];
            ASSERT_EQ(piece.offset, files[piece.file].size - left);
            ASSERT_LE(piece.size, left);
            left -= piece.size;
          }
        }
      }
      for (auto& [node, count] : untaken) {
        if (count == 0) continue;
        ASSERT_TRUE(distribution.OnTaken(NodeId(node), 1).ok());
        --count;
        stuck = false;
      }
    }
    for (const auto& [node, rest] : due) {
      for (const auto& [file, left] : rest) EXPECT_EQ(left, 0u) << node << " " << file;
    }
  }
}

}  // namespace
}  // namespace dtrain::stage
