// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/blocks.h"

namespace dtrain::runtime {

Blocks::Blocks(const Collective& what, int size, int rank)
    : count_(what.count),
      counts_(what.counts),
      alike_(what.alike),
      size_(Index(size)),
      rank_(rank) {
  if (counts_ == nullptr) return;
  size_t sent = 0, received = 0;
  for (int r = 0; r < size; ++r) {
    in_input_.push_back(sent);
    in_output_.push_back(received);
    if (!alike_) sent += Length(rank, r);
    received += Length(r, rank);
    size_t before = 0;
    for (int to = 0; to < rank && !alike_; ++to) before += Length(r, to);
    in_input_of_.push_back(before);
  }
}

}  // namespace dtrain::runtime
