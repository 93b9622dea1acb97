// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/rank_table.h"

#include "absl/strings/str_cat.h"

namespace dtrain::rendezvous {
namespace {

struct Block {
  uint32_t first = 0;
  uint32_t nodes = 0;
  uint32_t per_node = 0;
};

std::vector<Block> MakeBlocks(const std::vector<uint32_t>& node_of_rank) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < node_of_rank.size();) {
    size_t end = i;
    while (end < node_of_rank.size() && node_of_rank[end] == node_of_rank[i]) ++end;
    const auto count = static_cast<uint32_t>(end - i);
    if (!blocks.empty() && blocks.back().per_node == count &&
        blocks.back().first + blocks.back().nodes == node_of_rank[i]) {
      ++blocks.back().nodes;
    } else {
      blocks.push_back({node_of_rank[i], 1, count});
    }
    i = end;
  }
  return blocks;
}

// Whether the first `length` blocks, over and over, give exactly this placement.
bool Repeats(const std::vector<Block>& blocks, size_t length,
             const std::vector<uint32_t>& node_of_rank) {
  size_t rank = 0;
  while (rank < node_of_rank.size()) {
    for (size_t b = 0; b < length; ++b) {
      for (uint32_t n = 0; n < blocks[b].nodes; ++n) {
        for (uint32_t p = 0; p < blocks[b].per_node; ++p, ++rank) {
          if (rank == node_of_rank.size()) return true;
          if (node_of_rank[rank] != blocks[b].first + n) return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

std::vector<RankRow> MakeRankTable(const std::vector<uint32_t>& node_of_rank, size_t node_count) {
  std::vector<uint32_t> local_size(node_count, 0);
  std::vector<RankRow> rows(node_of_rank.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r].rank = Rank(static_cast<uint32_t>(r));
    rows[r].node = node_of_rank[r];
    rows[r].local_rank = local_size[rows[r].node]++;
  }
  // cross_rank[n] for one local rank is the number of earlier nodes with more ranks than that.
  std::vector<std::vector<uint32_t>> cross_rank(node_count);
  std::vector<uint32_t> cross_size;
  for (size_t n = 0; n < node_count; ++n) {
    if (cross_size.size() < local_size[n]) cross_size.resize(local_size[n], 0);
    cross_rank[n].reserve(local_size[n]);
    for (uint32_t l = 0; l < local_size[n]; ++l) cross_rank[n].push_back(cross_size[l]++);
  }
  for (RankRow& row : rows) {
    row.local_size = local_size[row.node];
    row.cross_rank = cross_rank[row.node][row.local_rank];
    row.cross_size = cross_size[row.local_rank];
  }
  return rows;
}

std::string ProcessMapping(const std::vector<uint32_t>& node_of_rank) {
  if (node_of_rank.empty()) return "";
  const std::vector<Block> blocks = MakeBlocks(node_of_rank);
  std::string text = "(vector";
  for (size_t length = 1; length <= blocks.size(); ++length) {
    const Block& block = blocks[length - 1];
    absl::StrAppend(&text, ",(", block.first, ",", block.nodes, ",", block.per_node, ")");
    if (text.size() + 1 > kMaxProcessMapping) return "";
    if (Repeats(blocks, length, node_of_rank)) return text + ")";
  }
  return text + ")";
}

}  // namespace dtrain::rendezvous
