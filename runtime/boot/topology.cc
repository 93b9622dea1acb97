// SPDX-License-Identifier: Apache-2.0
#include "runtime/boot/topology.h"

#include <algorithm>
#include <charconv>
#include <map>

namespace dtrain::runtime {
namespace {

struct Block {
  int first_node;
  int nodes;
  int ranks_per_node;
};

bool Eat(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

constexpr int kLargest = 1'000'000'000;  // so that sums fit

bool EatInt(std::string_view& text, int lowest, int& value) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < lowest || value > kLargest) return false;
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  return true;
}

bool EatBlock(std::string_view& text, Block& block) {
  return Eat(text, ",(") && EatInt(text, 0, block.first_node) && Eat(text, ",") &&
         EatInt(text, 1, block.nodes) && Eat(text, ",") && EatInt(text, 1, block.ranks_per_node) &&
         Eat(text, ")");
}

}  // namespace

std::optional<std::vector<int>> ParseProcessMapping(std::string_view text, int size) {
  if (!Eat(text, "(vector")) return std::nullopt;
  std::vector<Block> blocks;
  while (text.starts_with(",")) {
    Block block;
    if (!EatBlock(text, block)) return std::nullopt;
    blocks.push_back(block);
  }
  if (text != ")" || blocks.empty()) return std::nullopt;

  const auto wanted = static_cast<size_t>(size);
  std::vector<int> node_of_rank;
  // Ranks that remain after the last block start over with the first one.
  for (size_t b = 0; node_of_rank.size() < wanted; b = (b + 1) % blocks.size()) {
    const Block& block = blocks[b];
    for (int n = 0; n < block.nodes && node_of_rank.size() < wanted; ++n) {
      const size_t room = wanted - node_of_rank.size();
      node_of_rank.insert(node_of_rank.end(),
                          std::min(room, static_cast<size_t>(block.ranks_per_node)),
                          block.first_node + n);
    }
  }
  return node_of_rank;
}

std::vector<int> NodesByName(const std::vector<std::string>& name_of_rank) {
  std::map<std::string_view, int> numbers;
  std::vector<int> node_of_rank;
  for (const std::string& name : name_of_rank) {
    node_of_rank.push_back(numbers.emplace(name, static_cast<int>(numbers.size())).first->second);
  }
  return node_of_rank;
}

// Nodes in a row that follow each other and have as many ranks each are one block.
std::string FormatProcessMapping(const std::vector<int>& node_of_rank) {
  std::vector<Block> blocks;
  for (size_t r = 0; r < node_of_rank.size();) {
    const size_t first = r;
    const int node = node_of_rank[first];
    while (r < node_of_rank.size() && node_of_rank[r] == node) ++r;
    const auto ranks = static_cast<int>(r - first);
    if (!blocks.empty() && blocks.back().ranks_per_node == ranks &&
        blocks.back().first_node + blocks.back().nodes == node) {
      ++blocks.back().nodes;
    } else {
      blocks.push_back({node, 1, ranks});
    }
  }
  std::string text = "(vector";
  for (const Block& block : blocks) {
    text += ",(" + std::to_string(block.first_node) + "," + std::to_string(block.nodes) + "," +
            std::to_string(block.ranks_per_node) + ")";
  }
  return text + ")";
}

std::vector<int> Places::named(std::vector<int> ranks) const {
  for (int& rank : ranks) rank = name(rank);
  return ranks;
}

Places PlacesOf(int rank, const std::vector<int>& node_of_rank) {
  Places places;
  std::map<int, size_t> numbers;
  for (size_t r = 0; r < node_of_rank.size(); ++r) {
    const auto [found, added] = numbers.emplace(node_of_rank[r], places.nodes.size());
    if (added) places.nodes.emplace_back();
    auto& ranks = places.nodes[found->second];
    if (static_cast<int>(r) == rank) {
      places.node = static_cast<int>(found->second);
      places.local = static_cast<int>(ranks.size());
    }
    ranks.push_back(static_cast<int>(r));
  }
  int before = 0;
  for (const auto& ranks : places.nodes) {
    places.before.push_back(before);
    before += static_cast<int>(ranks.size());
  }
  return places;
}

std::vector<int> Places::leaders() const {
  std::vector<int> first;
  for (const auto& ranks : nodes) first.push_back(ranks[0]);
  return first;
}

size_t Places::largest() const {
  size_t most = 0;
  for (const auto& ranks : nodes) most = std::max(most, ranks.size());
  return most;
}

}  // namespace dtrain::runtime
