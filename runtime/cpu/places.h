// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dtrain::runtime {

// Which ranks share a node. Nodes are in the order of their first ranks, and ranks of a node, which
// need not follow each other, in rank order; the first of them is the node's leader.
struct Places {
  std::vector<std::vector<int>> nodes;  // ranks
  std::vector<int> before;              // ranks on earlier nodes, by node
  int node = 0;                         // of this rank
  int local = 0;                        // index of this rank in its node

  int node_count() const { return static_cast<int>(nodes.size()); }
  const std::vector<int>& here() const { return nodes[static_cast<size_t>(node)]; }
  int local_size() const { return static_cast<int>(here().size()); }
  int local_size(int n) const { return static_cast<int>(nodes[static_cast<size_t>(n)].size()); }
  bool leader() const { return local == 0; }
  size_t largest() const;
};

// Equal names are one node.
Places PlacesByName(int rank, const std::vector<std::string>& node_of_rank);

// Parts of a buffer begin at multiples of so many elements, which are whole cache lines.
constexpr size_t kPartUnit = 64;

// Part number `part` of [0, n) in `parts` nearly equal ones that begin at multiples of `unit`.
struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};
Range PartOf(size_t n, int parts, int part, size_t unit);

}  // namespace dtrain::runtime
