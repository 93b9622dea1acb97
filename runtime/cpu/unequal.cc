// SPDX-License-Identifier: Apache-2.0
// Between nodes, an all-to-all whose blocks differ in length. A chunk is a range of all blocks, of
// which a short one may have less or nothing; what there is lies in the lane without gaps, in the
// same order as in across.cc and lanes.cc: for each node a region, in it for each rank that sends a
// row, in it a block for each rank that receives.
#include "runtime/cpu/across.h"

namespace dtrain::runtime {

// What the ranks of node `from` have in the chunk for those of node `to`.
size_t Across::BytesBetween(const Work& work, const Chunk& chunk, int from, int to) const {
  size_t elements = 0;
  for (const int sender : places_.nodes[static_cast<size_t>(from)]) {
    for (const int receiver : places_.nodes[static_cast<size_t>(to)]) {
      elements += unequal_->Part(sender, receiver, chunk.at, chunk.n);
    }
  }
  return elements * work.width();
}

void Across::FillUnequal(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  const int rank = places_.here()[static_cast<size_t>(places_.local)];
  char* to = chunk.lane;
  for (const auto& ranks : places_.nodes) {
    for (const int sender : places_.here()) {
      for (const int receiver : ranks) {
        const size_t bytes = unequal_->Part(sender, receiver, chunk.at, chunk.n) * width;
        // Who sends nothing may have no buffer.
        if (sender == rank && bytes > 0) {
          Copy(work, to, work.input() + (unequal_->InInput(receiver) + chunk.at) * width, bytes);
        }
        to += bytes;
      }
    }
  }
}

void Across::StartUnequal(Work& work, const Chunk& chunk) {
  std::vector<size_t> out(1), in(1);  // where the regions begin, and where the last one ends
  for (int node = 0; node < nodes_; ++node) {
    out.push_back(out.back() + BytesBetween(work, chunk, places_.node, node));
    in.push_back(in.back() + BytesBetween(work, chunk, node, places_.node));
  }
  for (int step = 1; step < nodes_; ++step) {
    const int node = (places_.node + step) % nodes_;
    const auto at = static_cast<size_t>(node);
    mesh_->Receive(node, chunk.lane + half_ + in[at], in[at + 1] - in[at], flight(chunk));
    mesh_->Send(node, chunk.lane + out[at], out[at + 1] - out[at], flight(chunk));
  }
}

void Across::TakeUnequal(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  const int rank = places_.here()[static_cast<size_t>(places_.local)];
  size_t in = 0, out = 0;
  for (int node = 0; node < nodes_; ++node) {
    const char* from = node == places_.node ? chunk.lane + out : chunk.lane + half_ + in;
    for (const int sender : places_.nodes[static_cast<size_t>(node)]) {
      for (const int receiver : places_.here()) {
        const size_t bytes = unequal_->Part(sender, receiver, chunk.at, chunk.n) * width;
        if (receiver == rank && bytes > 0) {
          Copy(work, work.output() + (unequal_->InOutput(sender) + chunk.at) * width, from, bytes);
        }
        from += bytes;
      }
    }
    in += BytesBetween(work, chunk, node, places_.node);
    out += BytesBetween(work, chunk, places_.node, node);
  }
}

}  // namespace dtrain::runtime
