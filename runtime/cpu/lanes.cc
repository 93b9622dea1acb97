// SPDX-License-Identifier: Apache-2.0
// What every rank does for a chunk on its way between nodes: into the lane and out of it.
#include <algorithm>

#include "runtime/cpu/across.h"
#include "runtime/cpu/places.h"

namespace dtrain::runtime {

// ---- Into the lane ----

MaybeError Across::Fill(Work& work, const Chunk& chunk) {
  const size_t bytes = chunk.n * work.width();
  if (bytes == 0) return std::nullopt;
  switch (work.what.kind) {
    case Kind::kAllreduce:
    case Kind::kReduce:
      return FillReduced(work, chunk);
    case Kind::kReduceScatter:
      return FillReducedBlocks(work, chunk);
    case Kind::kBroadcast:
      if (places_.here()[static_cast<size_t>(places_.local)] == work.what.root) {
        Copy(work, chunk.lane, work.output() + chunk.at * work.width(), bytes);
      }
      return std::nullopt;
    case Kind::kAllgather:
      Copy(work, chunk.lane + static_cast<size_t>(places_.local) * bytes,
           work.input() + chunk.at * work.width(), bytes);
      return std::nullopt;
    case Kind::kAlltoall:
      unequal_ ? FillUnequal(work, chunk) : FillBlocks(work, chunk);
      return std::nullopt;
    case Kind::kBarrier:
      return std::nullopt;
  }
  return std::nullopt;
}

// Copies to this rank's slot, and waits until all have.
MaybeError Across::ThroughSlots(Work& work, const char* from, size_t bytes) {
  Copy(work, group_.slot(places_.local, static_cast<int>(slot_turn_ % 2)), from, bytes);
  const Stopwatch watch(work.spent.wait_ns);
  return group_.Barrier(work.deadline);
}

// One rank after the other adds its input to what is there, while the next chunk is with the one
// before it. Nobody's memory is read but one's own.
MaybeError Across::FillInTurn(Work& work, const Chunk& chunk) {
  const char* input = work.input() + chunk.at * work.width();
  if (places_.leader()) {
    Copy(work, chunk.lane, input, chunk.n * work.width());
    return std::nullopt;
  }
  {
    const Stopwatch watch(work.spent.wait_ns);
    if (MaybeError error = group_.AwaitEarlier(chunk.number, work.deadline)) return error;
  }
  const void* const parts[] = {chunk.lane, input};
  Reduce(work, chunk.lane, parts, 2, chunk.n, 1);
  return std::nullopt;
}

MaybeError Across::FillReduced(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  const int locals = places_.local_size();
  if (GivesInput(work)) return std::nullopt;  // see Own
  // Sums of half precision are rounded once, so that they are all made in one go.
  if (group_.crowded() && width > 2) return FillInTurn(work, chunk);
  const Range part = PartOf(chunk.n, locals, places_.local, kPartUnit);
  const size_t from = (chunk.at + part.begin) * width;
  char* to = chunk.lane + part.begin * width;
  if (direct_) {
    const size_t piece = inputs_.piece_bytes();
    for (size_t at = 0; at < part.size() * width; at += piece) {
      const size_t n = std::min(piece, part.size() * width - at);
      if (MaybeError error = inputs_.Read(work, from + at, n)) return error;
      Reduce(work, to + at, inputs_.pointers(), locals, n / width, work.node_divisor);
    }
    return std::nullopt;
  }
  if (MaybeError error = ThroughSlots(work, work.input() + chunk.at * width, chunk.n * width)) {
    return error;
  }
  std::vector<const void*> slots;
  for (int i = 0; i < locals; ++i) {
    slots.push_back(group_.slot(i, static_cast<int>(slot_turn_ % 2)) + part.begin * width);
  }
  Reduce(work, to, slots.data(), locals, part.size(), work.node_divisor);
  ++slot_turn_;
  return std::nullopt;
}

// All ranks' blocks, in the order of the nodes, each reduced over this node by one of its ranks.
MaybeError Across::FillReducedBlocks(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  const size_t bytes = chunk.n * width;
  const int locals = places_.local_size();
  if (!direct_ && locals > 1) {
    char* slot = group_.slot(places_.local, static_cast<int>(slot_turn_ % 2));
    for (int r = 0; r < size_; ++r) {
      const size_t block = static_cast<size_t>(r) * work.what.count;
      Copy(work, slot + static_cast<size_t>(r) * bytes, work.input() + (block + chunk.at) * width,
           bytes);
    }
    if (MaybeError error = ThroughSlots(work, slot, 0)) return error;
  }
  size_t position = 0;
  for (const auto& ranks : places_.nodes) {
    for (const int rank : ranks) {
      const auto r = static_cast<size_t>(rank);
      char* to = chunk.lane + position * bytes;
      if (static_cast<int>(position++ % static_cast<size_t>(locals)) != places_.local) continue;
      std::vector<const void*> from;
      if (direct_ || locals == 1) {
        if (MaybeError error =
                inputs_.Read(work, (r * work.what.count + chunk.at) * width, bytes)) {
          return error;
        }
        from.assign(inputs_.pointers(), inputs_.pointers() + locals);
      } else {
        for (int i = 0; i < locals; ++i) {
          from.push_back(group_.slot(i, static_cast<int>(slot_turn_ % 2)) + r * bytes);
        }
      }
      Reduce(work, to, from.data(), locals, chunk.n, work.node_divisor);
    }
  }
  if (!direct_ && locals > 1) ++slot_turn_;
  return std::nullopt;
}

// For each node a region, in it for each rank here a row, in it a block for each rank there.
void Across::FillBlocks(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  const size_t bytes = chunk.n * width;
  const auto locals = static_cast<size_t>(places_.local_size());
  size_t region = 0;
  for (const auto& ranks : places_.nodes) {
    char* row = chunk.lane + (region + static_cast<size_t>(places_.local) * ranks.size()) * bytes;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const size_t block = static_cast<size_t>(ranks[i]) * work.what.count;
      Copy(work, row + i * bytes, work.input() + (block + chunk.at) * width, bytes);
    }
    region += locals * ranks.size();
  }
}

// ---- Out of the lane ----

void Across::Take(Work& work, const Chunk& chunk) {
  const size_t bytes = chunk.n * work.width();
  const int rank = places_.here()[static_cast<size_t>(places_.local)];
  if (bytes == 0) return;
  switch (work.what.kind) {
    case Kind::kAllreduce:
      return TakeReduced(work, chunk);
    case Kind::kReduce:
      if (rank == work.what.root) TakeReduced(work, chunk);
      return;
    case Kind::kReduceScatter:
      return TakeReducedBlock(work, chunk);
    case Kind::kBroadcast:
      if (rank != work.what.root) {
        Copy(work, work.output() + chunk.at * work.width(), chunk.lane, bytes);
      }
      return;
    case Kind::kAllgather:
      return TakeGathered(work, chunk);
    case Kind::kAlltoall:
      return unequal_ ? TakeUnequal(work, chunk) : TakeBlocks(work, chunk);
    case Kind::kBarrier:
      return;
  }
}

// All nodes' parts in the order of the nodes: this node's at `own`, the others' `each` bytes apart
// behind the half.
void Across::Sources(const Chunk& chunk, const char* own, size_t each, size_t offset,
                     std::vector<const void*>& parts) const {
  for (int node = 0; node < nodes_; ++node) {
    const char* part = node == places_.node ? own : chunk.lane + half_ + Place(node) * each;
    parts.push_back(part + offset);
  }
}

void Across::TakeReduced(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  char* to = work.output() + chunk.at * width;
  if (!TravelsWithGreeting(work)) return Copy(work, to, Reduced(work, chunk), chunk.n * width);
  std::vector<const void*> parts;
  Sources(chunk, Own(work, chunk), chunk.n * width, 0, parts);
  Reduce(work, to, parts.data(), nodes_, chunk.n, work.divisor);
}

void Across::TakeReducedBlock(Work& work, const Chunk& chunk) {
  const size_t bytes = chunk.n * work.width();
  const auto here = static_cast<size_t>(places_.before[static_cast<size_t>(places_.node)]);
  std::vector<const void*> parts;
  Sources(chunk, chunk.lane + here * bytes, static_cast<size_t>(places_.local_size()) * bytes,
          static_cast<size_t>(places_.local) * bytes, parts);
  Reduce(work, work.output() + chunk.at * work.width(), parts.data(), nodes_, chunk.n,
         work.divisor);
}

void Across::TakeGathered(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  const size_t bytes = chunk.n * width;
  for (int node = 0; node < nodes_; ++node) {
    const auto& ranks = places_.nodes[static_cast<size_t>(node)];
    const auto before = static_cast<size_t>(places_.before[static_cast<size_t>(node)]);
    const char* from = node == places_.node ? chunk.lane : chunk.lane + half_ + before * bytes;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const size_t block = static_cast<size_t>(ranks[i]) * work.what.count;
      Copy(work, work.output() + (block + chunk.at) * width, from + i * bytes, bytes);
    }
  }
}

void Across::TakeBlocks(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  const size_t bytes = chunk.n * width;
  const auto locals = static_cast<size_t>(places_.local_size());
  for (int node = 0; node < nodes_; ++node) {
    const auto& ranks = places_.nodes[static_cast<size_t>(node)];
    // Regions of earlier nodes are `locals` rows of their ranks long, here as in what they sent.
    const size_t before = static_cast<size_t>(places_.before[static_cast<size_t>(node)]) * locals;
    const char* from = chunk.lane + (node == places_.node ? 0 : half_) + before * bytes;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const size_t block = static_cast<size_t>(ranks[i]) * work.what.count;
      Copy(work, work.output() + (block + chunk.at) * width,
           from + (i * locals + static_cast<size_t>(places_.local)) * bytes, bytes);
    }
  }
}

}  // namespace dtrain::runtime
