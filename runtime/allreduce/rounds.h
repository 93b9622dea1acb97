// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace dtrain::allreduce {

// Every two ranks once, in rounds whose pairs are measured at the same time: one pair each, or,
// with more than kMostOneByOne ranks, as many as there can be without a rank in two of them.
inline constexpr int kMostOneByOne = 16;
inline std::vector<std::vector<std::pair<int, int>>> Rounds(int ranks) {
  std::vector<std::vector<std::pair<int, int>>> rounds;
  if (ranks <= kMostOneByOne) {
    for (int a = 0; a < ranks; ++a) {
      for (int b = a + 1; b < ranks; ++b) rounds.push_back({{a, b}});
    }
    return rounds;
  }
  // As a tournament is drawn up: one stays, the others move on by one place each round.
  const int places = ranks + ranks % 2;
  for (int round = 0; round < places - 1; ++round) {
    rounds.emplace_back();
    const auto at = [&](int place) {
      return place == 0 ? 0 : 1 + (place - 1 + round) % (places - 1);
    };
    for (int i = 0; i < places / 2; ++i) {
      const auto [a, b] = std::minmax({at(i), at(places - 1 - i)});
      if (b < ranks) rounds.back().emplace_back(a, b);
    }
  }
  return rounds;
}

}  // namespace dtrain::allreduce
