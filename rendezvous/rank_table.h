// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace dtrain::rendezvous {

struct RankRow {
  Rank rank;
  uint32_t node = 0;  // node rank
  uint32_t local_rank = 0;
  uint32_t local_size = 0;
  uint32_t cross_rank = 0;  // Horovod's: earlier nodes that also have this local rank
  uint32_t cross_size = 0;  // nodes that have it
};

// `node_of_rank[r]` is the node rank of rank r, below `node_count`. Ranks of a node get local ranks
// in their order.
std::vector<RankRow> MakeRankTable(const std::vector<uint32_t>& node_of_rank, size_t node_count);

// A PMI value holds 1024 bytes at least; longer mappings than this are left to the clients' own
// way, which is to exchange host names.
inline constexpr size_t kMaxProcessMapping = 600;

// PMI_process_mapping, "(vector,(0,2,8))": blocks of (first node, nodes, ranks per node), starting
// over when ranks remain. Empty when it would be longer than kMaxProcessMapping, or without ranks.
std::string ProcessMapping(const std::vector<uint32_t>& node_of_rank);

}  // namespace dtrain::rendezvous
