// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/across.h"

#include <algorithm>
#include <bit>

#include "runtime/cpu/places.h"

namespace dtrain::runtime {
namespace {

// Large enough to keep a connection busy, small enough that the chunks on their way stay in the
// caches.
constexpr size_t kChunkBytes = size_t{512} << 10;
// With many nodes, what one sends to another must not become too small for a system call.
constexpr size_t kPartBytes = size_t{32} << 10;
// Chunks that are filled before the first is taken out; less than the lanes.
constexpr size_t kDepth = 2;
static_assert(kDepth < LocalGroup::kLanes);
constexpr std::chrono::milliseconds kCourtesy{1000};

size_t ChunkBytes(const Places& places) {
  return std::max(kChunkBytes, places.nodes.size() * kPartBytes);
}

size_t Size(const Places& places) {
  size_t n = 0;
  for (const auto& ranks : places.nodes) n += ranks.size();
  return n;
}

}  // namespace

size_t Across::LaneBytes(const Places& places) {
  // One element of every rank's block for every rank of a node must fit.
  const size_t least = Size(places) * places.largest() * 8;
  // Slices of a chunk are rounded up to whole units.
  const size_t slices = ChunkBytes(places) + places.nodes.size() * kPartUnit * 8;
  return 2 * ((std::max(slices, least) + 4095) / 4096 * 4096);
}

Across::Across(const Places& places, LocalGroup& group, const PeerMemory& memory, Mesh* mesh,
               bool direct, size_t lane_bytes)
    : places_(places),
      group_(group),
      mesh_(mesh),
      direct_(direct),
      lane_bytes_(lane_bytes),
      half_(lane_bytes / 2),
      nodes_(places.node_count()),
      size_(static_cast<int>(Size(places))),
      node_divisor_(static_cast<int>(std::bit_ceil(places.largest()))),
      inputs_(group, memory) {
  if (mesh_ == nullptr) return;
  greetings_ = std::make_unique<Greetings>(*mesh_, places_);
}

int Across::RootNode(const Work& work) const {
  for (int node = 0; node < nodes_; ++node) {
    const auto& ranks = places_.nodes[static_cast<size_t>(node)];
    if (std::binary_search(ranks.begin(), ranks.end(), work.what.root)) return node;
  }
  return 0;
}

// Elements per chunk, the same on all ranks.
size_t Across::ChunkCount(const Work& work) const {
  size_t bytes = half_;
  const bool reduces = work.is(Kind::kAllreduce) || work.is(Kind::kReduce);
  if (reduces || work.is(Kind::kBroadcast)) bytes = std::min(bytes, ChunkBytes(places_));
  if (reduces && !direct_) bytes = std::min(bytes, LocalGroup::kSlotBytes);
  const auto size = static_cast<size_t>(size_);
  if (work.is(Kind::kAllgather)) bytes /= size;
  if (work.is(Kind::kReduceScatter)) {
    bytes /= size;
    if (!direct_) bytes = LocalGroup::kSlotBytes / size;
    bytes /= static_cast<size_t>(nodes_);  // the others' parts
  }
  if (work.is(Kind::kAlltoall)) bytes /= size * places_.largest();
  return std::max(bytes / work.width(), size_t{1});
}

Across::Chunk Across::ChunkAt(const Work& work, size_t index, size_t step) const {
  Chunk chunk;
  chunk.number = next_chunk_ + index;
  chunk.at = index * step;
  chunk.n = std::min(step, work.what.count - std::min(work.what.count, chunk.at));
  chunk.lane = group_.lane(chunk.number);
  return chunk;
}

bool Across::TravelsWithGreeting(const Work& work) const {
  if (work.is(Kind::kBarrier) || work.what.count == 0) return true;
  return (work.is(Kind::kAllreduce) || work.is(Kind::kReduce)) &&
         work.bytes() * static_cast<size_t>(nodes_ - 1) <= Greetings::kRoom;
}

MaybeError Across::Run(Work& work) {
  // The sum of a node may be too large for float16 although the average is not. Dividing it by a
  // power of two changes no other bit, unless it becomes subnormal.
  if (work.what.op == DTRAIN_AVG && work.what.type == DTRAIN_FLOAT16) {
    work.node_divisor = node_divisor_;
    work.divisor /= node_divisor_;
  }
  const size_t step = ChunkCount(work);
  const bool empty = work.is(Kind::kBarrier) || work.what.count == 0;
  const size_t chunks = empty ? 1 : (work.what.count + step - 1) / step;
  unequal_.reset();
  if (work.what.counts != nullptr) {
    unequal_.emplace(work.what, size_, places_.here()[static_cast<size_t>(places_.local)]);
  }
  if (MaybeError error = Enter(work)) return error;
  if (GivesInput(work) && TravelsWithGreeting(work)) return RunAlone(work);
  MaybeError error = RunChunks(work, chunks, step);
  next_chunk_ += chunks;
  // What this rank takes out, all have filled in: nobody reads its input any more.
  return error;
}

MaybeError Across::Enter(Work& work) {
  const Stopwatch watch(work.spent.wait_ns);
  if (MaybeError error = group_.Enter(work.request, work.deadline)) return error;
  // Those who know more speak first: a node that waits for one of its own ranks, then leaders.
  work.deadline += mesh_ != nullptr ? kCourtesy : 2 * kCourtesy;
  if (mesh_ == nullptr || TravelsWithGreeting(work)) return std::nullopt;
  greetings_->Send(work.request, nullptr, 0);
  return std::nullopt;
}

// A small collective on a node that gives its input: nothing but the greetings.
MaybeError Across::RunAlone(Work& work) {
  const bool barrier = work.is(Kind::kBarrier);
  const size_t bytes = barrier ? 0 : work.bytes();
  {
    const Stopwatch watch(work.spent.wait_ns);
    greetings_->Send(work.request, work.input(), bytes);
    if (MaybeError error = greetings_->Await(work.deadline)) return error;
  }
  const int rank = places_.here()[0];
  if (bytes == 0 || (work.is(Kind::kReduce) && rank != work.what.root)) return std::nullopt;
  std::vector<const void*> parts;
  for (int node = 0; node < nodes_; ++node) {
    parts.push_back(node == places_.node ? work.input() : greetings_->given(node));
  }
  Reduce(work, work.output(), parts.data(), nodes_, work.what.count, work.divisor);
  return std::nullopt;
}

MaybeError Across::RunChunks(Work& work, size_t chunks, size_t step) {
  for (size_t i = 0; i < chunks + kDepth; ++i) {
    if (i < chunks) {
      const Chunk chunk = ChunkAt(work, i, step);
      if (MaybeError error = group_.AwaitFree(chunk.number, work.deadline)) return error;
      if (MaybeError error = Fill(work, chunk)) return error;
      group_.Filled(chunk.number);
    }
    if (mesh_ != nullptr) {
      if (i < chunks) {
        if (MaybeError error = Start(work, ChunkAt(work, i, step))) return error;
      }
      if (i >= 1 && i - 1 < chunks) {
        if (MaybeError error = Continue(work, ChunkAt(work, i - 1, step))) return error;
      }
      if (i >= 2 && i - 2 < chunks) {
        if (MaybeError error = Finish(work, ChunkAt(work, i - 2, step))) return error;
      }
    }
    if (i >= kDepth) {
      const Chunk chunk = ChunkAt(work, i - kDepth, step);
      {
        const Stopwatch watch(work.spent.wait_ns);
        if (MaybeError error = group_.AwaitMet(chunk.number, work.deadline)) return error;
      }
      Take(work, chunk);
      group_.Taken(chunk.number);
    }
  }
  return std::nullopt;
}

// ---- Between the leaders ----

bool Across::GivesInput(const Work& work) const {
  return places_.local_size() == 1 && work.node_divisor == 1;
}

const char* Across::Own(const Work& work, const Chunk& chunk) const {
  return GivesInput(work) ? work.input() + chunk.at * work.width() : chunk.lane;
}

// Whether the ranks of `node` want the result of a reduction.
bool Across::Wants(const Work& work, int node) const {
  return work.is(Kind::kAllreduce) || node == RootNode(work);
}

char* Across::Reduced(const Work& work, const Chunk& chunk) const {
  const bool straight = places_.local_size() == 1 && Wants(work, places_.node);
  return straight ? work.output() + chunk.at * work.width() : chunk.lane;
}

MaybeError Across::AwaitFlight(Work& work, const Chunk& chunk) {
  const Stopwatch watch(work.spent.transfer_ns);
  return mesh_->Await(flight(chunk), work.deadline);
}

MaybeError Across::Start(Work& work, const Chunk& chunk) {
  {
    const Stopwatch watch(work.spent.wait_ns);
    if (MaybeError error = group_.AwaitFilled(chunk.number, work.deadline)) return error;
  }
  if (TravelsWithGreeting(work)) return Greet(work, chunk);
  const bool first = chunk.number == next_chunk_;
  const auto greeted = [&] {
    const Stopwatch watch(work.spent.wait_ns);
    return greetings_->Await(work.deadline);
  };
  MaybeError error;
  if (first && greetings_->in_rounds()) error = greeted();
  if (error) return error;
  StartMessages(work, chunk);
  if (first && !greetings_->in_rounds()) error = greeted();
  return error;
}

// The only chunk of a small collective, which comes and goes with the greetings.
MaybeError Across::Greet(Work& work, const Chunk& chunk) {
  const Stopwatch watch(work.spent.wait_ns);
  const size_t bytes = work.is(Kind::kBarrier) ? 0 : chunk.n * work.width();
  greetings_->Send(work.request, chunk.lane, bytes);
  if (MaybeError error = greetings_->Await(work.deadline)) return error;
  for (int node = 0; node < nodes_ && bytes > 0; ++node) {
    if (node == places_.node) continue;
    std::memcpy(chunk.lane + half_ + Place(node) * bytes, greetings_->given(node), bytes);
  }
  return std::nullopt;
}

void Across::StartMessages(Work& work, const Chunk& chunk) {
  const Stopwatch watch(work.spent.transfer_ns);
  switch (work.what.kind) {
    case Kind::kAllreduce:
    case Kind::kReduce:
      return StartReduced(work, chunk);
    case Kind::kBroadcast:
      return StartBroadcast(work, chunk);
    case Kind::kReduceScatter:
    case Kind::kAllgather:
    case Kind::kAlltoall:
      return unequal_ ? StartUnequal(work, chunk) : StartBlocks(work, chunk);
    case Kind::kBarrier:
      return;
  }
}

// Every leader gets its slice of the chunk from all.
void Across::StartReduced(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  const Range mine = PartOf(chunk.n, nodes_, places_.node, kPartUnit);
  for (int step = 1; step < nodes_; ++step) {
    const int node = (places_.node + step) % nodes_;
    const Range theirs = PartOf(chunk.n, nodes_, node, kPartUnit);
    const size_t part = mine.size() * width;
    mesh_->Receive(node, chunk.lane + half_ + Place(node) * part, part, flight(chunk));
    mesh_->Send(node, Own(work, chunk) + theirs.begin * width, theirs.size() * width,
                flight(chunk));
  }
}

// From the root's node along a binomial tree; those below wait in Continue.
void Across::StartBroadcast(Work& work, const Chunk& chunk) {
  const int root = RootNode(work);
  const int me = (places_.node - root + nodes_) % nodes_;
  if (me == 0) return;
  int bit = 1;
  while ((me & bit) == 0) bit <<= 1;
  mesh_->Receive((me - bit + root) % nodes_, chunk.lane, chunk.n * work.width(), flight(chunk));
}

void Across::StartBlocks(Work& work, const Chunk& chunk) {
  const size_t bytes = chunk.n * work.width();
  const auto locals = static_cast<size_t>(places_.local_size());
  for (int step = 1; step < nodes_; ++step) {
    const int node = (places_.node + step) % nodes_;
    const auto there = static_cast<size_t>(places_.local_size(node));
    const auto before = static_cast<size_t>(places_.before[static_cast<size_t>(node)]);
    size_t out = 0, out_bytes = 0, in = 0, in_bytes = 0;
    if (work.is(Kind::kAllgather)) {
      out_bytes = locals * bytes;
      in = before * bytes;
      in_bytes = there * bytes;
    } else if (work.is(Kind::kAlltoall)) {
      out = in = before * locals * bytes;
      out_bytes = in_bytes = there * locals * bytes;
    } else {  // reduce-scatter
      out = before * bytes;
      out_bytes = there * bytes;
      in = Place(node) * locals * bytes;
      in_bytes = locals * bytes;
    }
    mesh_->Receive(node, chunk.lane + half_ + in, in_bytes, flight(chunk));
    mesh_->Send(node, chunk.lane + out, out_bytes, flight(chunk));
  }
}

MaybeError Across::Continue(Work& work, const Chunk& chunk) {
  if (MaybeError error = AwaitFlight(work, chunk)) return error;
  if (work.is(Kind::kBroadcast)) {
    const int root = RootNode(work);
    const int me = (places_.node - root + nodes_) % nodes_;
    for (int bit = 1; bit < nodes_ && (me & bit) == 0; bit <<= 1) {
      if (me + bit >= nodes_) continue;
      mesh_->Send((me + bit + root) % nodes_, chunk.lane, chunk.n * work.width(), flight(chunk));
    }
    return std::nullopt;
  }
  const bool reduces = work.is(Kind::kAllreduce) || work.is(Kind::kReduce);
  if (reduces && !TravelsWithGreeting(work)) ReduceParts(work, chunk);
  return std::nullopt;
}

// This node's slice of the chunk over all nodes, and from there to those that want it. What comes
// may take the place of what was sent before: who reduced a slice has received it.
void Across::ReduceParts(Work& work, const Chunk& chunk) {
  const size_t width = work.width();
  const Range mine = PartOf(chunk.n, nodes_, places_.node, kPartUnit);
  char* to = Reduced(work, chunk);
  std::vector<const void*> parts;
  Sources(chunk, Own(work, chunk) + mine.begin * width, mine.size() * width, 0, parts);
  Reduce(work, to + mine.begin * width, parts.data(), nodes_, mine.size(), work.divisor);
  const Stopwatch watch(work.spent.transfer_ns);
  for (int step = 1; step < nodes_; ++step) {
    const int node = (places_.node + step) % nodes_;
    const Range theirs = PartOf(chunk.n, nodes_, node, kPartUnit);
    if (Wants(work, places_.node)) {
      mesh_->Receive(node, to + theirs.begin * width, theirs.size() * width, flight(chunk));
    }
    if (Wants(work, node)) {
      mesh_->Send(node, to + mine.begin * width, mine.size() * width, flight(chunk));
    }
  }
}

MaybeError Across::Finish(Work& work, const Chunk& chunk) {
  if (MaybeError error = AwaitFlight(work, chunk)) return error;
  group_.Met(chunk.number);
  return std::nullopt;
}

}  // namespace dtrain::runtime
