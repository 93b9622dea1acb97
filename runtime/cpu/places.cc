// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/places.h"

#include <algorithm>
#include <map>

namespace dtrain::runtime {

size_t Places::largest() const {
  size_t most = 0;
  for (const auto& ranks : nodes) most = std::max(most, ranks.size());
  return most;
}

Places PlacesByName(int rank, const std::vector<std::string>& node_of_rank) {
  Places places;
  std::map<std::string, int> numbers;
  for (size_t r = 0; r < node_of_rank.size(); ++r) {
    const auto [found, added] =
        numbers.emplace(node_of_rank[r], static_cast<int>(places.nodes.size()));
    if (added) places.nodes.emplace_back();
    auto& ranks = places.nodes[static_cast<size_t>(found->second)];
    if (static_cast<int>(r) == rank) {
      places.node = found->second;
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

Range PartOf(size_t n, int parts, int part, size_t unit) {
  const size_t units = (n + unit - 1) / unit;
  const auto p = static_cast<size_t>(parts);
  const size_t each = (units + p - 1) / p * unit;
  const size_t begin = std::min(n, each * static_cast<size_t>(part));
  return {begin, std::min(n, begin + each)};
}

}  // namespace dtrain::runtime
