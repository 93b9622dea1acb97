// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::runtime {

// Which ranks share a node. Nodes are in the order of their first ranks, and ranks of a node, which
// need not follow each other, in rank order; the first of them is the node's leader.
struct Places {
  std::vector<std::vector<int>> nodes;  // ranks
  std::vector<int> before;              // ranks on earlier nodes, by node
  int node = 0;                         // of this rank
  int local = 0;                        // index of this rank in its node
  std::vector<int> names;               // the numbers of all ranks in texts; empty: their own

  int node_count() const { return static_cast<int>(nodes.size()); }
  const std::vector<int>& here() const { return nodes[static_cast<size_t>(node)]; }
  int local_size() const { return static_cast<int>(here().size()); }
  int local_size(int n) const { return static_cast<int>(nodes[static_cast<size_t>(n)].size()); }
  bool leader() const { return local == 0; }
  std::vector<int> leaders() const;  // by node
  int name(int rank) const { return names.empty() ? rank : names[static_cast<size_t>(rank)]; }
  std::vector<int> named(std::vector<int> ranks) const;
  size_t largest() const;
};

// Equal numbers are one node.
Places PlacesOf(int rank, const std::vector<int>& node_of_rank);

// The node number of each of `size` ranks from the launcher's PMI_process_mapping, such as
// "(vector,(0,2,8))"; nullopt when the text is not of that form.
std::optional<std::vector<int>> ParseProcessMapping(std::string_view text, int size);
// And back.
std::string FormatProcessMapping(const std::vector<int>& node_of_rank);

// Equal names are one node; numbers follow the order of first appearance.
std::vector<int> NodesByName(const std::vector<std::string>& name_of_rank);

}  // namespace dtrain::runtime
