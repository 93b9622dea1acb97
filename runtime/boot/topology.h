// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::runtime {

// Where one rank stands among the nodes of the job.
struct Topology {
  int local_rank = 0;
  int local_size = 1;
  int node_rank = 0;
  int nodes = 1;
};

// The node number of each of `size` ranks from the launcher's PMI_process_mapping, such as
// "(vector,(0,2,8))"; nullopt when the text is not of that form.
std::optional<std::vector<int>> ParseProcessMapping(std::string_view text, int size);

// Equal names are one node; numbers follow the order of first appearance.
std::vector<int> NodesByName(const std::vector<std::string>& name_of_rank);

// `node_of_rank` has an entry for `rank`.
Topology PlaceOf(int rank, const std::vector<int>& node_of_rank);

}  // namespace dtrain::runtime
