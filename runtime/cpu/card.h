// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/bootstrap.h"
#include "runtime/base/result.h"
#include "runtime/net/endpoint.h"

namespace dtrain::runtime {

// What a rank tells those of its node before they are connected, and a leader also the other
// leaders.
struct RankCard {
  std::string processors;  // it may run on: a '0' or '1' each
  pid_t pid = 0;
  uint64_t probe = 0;  // an address in it whose content is known
  int arena_fd = -1;
  size_t arena_bytes = 0;
  uint64_t arena_cookie = 0;
  // A leader's: the segment of its node, and where it listens.
  int segment_fd = -1;
  uint64_t segment_cookie = 0;
  NodeEndpoint endpoint;
};
std::string EncodeCard(const RankCard& card);
// An error names the rank, which `text` is from.
Result<RankCard> DecodeCard(int rank, const std::string& text);

// Ranks of one machine, which several nodes may share.
struct Machine {
  std::string boot;  // tells machines apart
  int node = 0;
  bool several_nodes = false;
  int64_t ranks = 1;
  std::string processors;  // of any of them

  void Add(const Machine& more);
  // Whether the ranks outnumber the processors.
  bool crowded() const;
};

// How ranks have got on with connecting, and what all of them can do.
struct Standing {
  int64_t ranks = 1;
  bool attached = false;  // to the memory of their nodes
  bool may_read = false;  // the memory of the others of their nodes
  bool arenas = false;    // are shared within their nodes
  // Once all ranks are told of: crowded ones of several nodes. Ranks see all of a single node.
  std::vector<Machine> machines;
};
std::string EncodeStanding(const Standing& standing);
Result<Standing> DecodeStanding(int rank, const std::string& text);

// Puts together those of the group's `size` ranks.
Fold FoldStandings(int size);

}  // namespace dtrain::runtime
