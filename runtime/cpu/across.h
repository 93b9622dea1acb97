// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/blocks.h"
#include "runtime/boot/topology.h"
#include "runtime/cpu/inputs.h"
#include "runtime/cpu/meeting.h"
#include "runtime/cpu/work.h"
#include "runtime/net/mesh.h"

namespace dtrain::runtime {

// Collectives among the ranks of several nodes, chunk by chunk: the ranks of a node bring a chunk
// into a lane of their segment, reduced where it can be; the leaders exchange it; all take the
// result out. Several chunks are on their way at once.
class Across {
 public:
  // `mesh` only on leaders. `direct`: all ranks of all nodes may read their node's memory.
  Across(const Places& places, LocalGroup& group, const PeerMemory& memory, Mesh* mesh, bool direct,
         size_t lane_bytes);

  // Bytes that a lane needs.
  static size_t LaneBytes(const Places& places);

  MaybeError Run(Work& work);

 private:
  using Kind = Collective::Kind;

  struct Chunk {
    uint64_t number = 0;  // over the life of the communicator
    size_t at = 0;        // elements
    size_t n = 0;
    char* lane = nullptr;
  };

  size_t ChunkCount(const Work& work) const;
  // Whether all that a node gives goes with its greeting.
  bool TravelsWithGreeting(const Work& work) const;
  MaybeError RunAlone(Work& work);
  MaybeError Enter(Work& work);
  MaybeError RunChunks(Work& work, size_t chunks, size_t step);
  Chunk ChunkAt(const Work& work, size_t index, size_t step) const;

  // By every rank.
  MaybeError Fill(Work& work, const Chunk& chunk);
  MaybeError FillReduced(Work& work, const Chunk& chunk);
  MaybeError FillInTurn(Work& work, const Chunk& chunk);
  MaybeError FillReducedBlocks(Work& work, const Chunk& chunk);
  void FillBlocks(Work& work, const Chunk& chunk);
  MaybeError ThroughSlots(Work& work, const char* from, size_t bytes);
  void Take(Work& work, const Chunk& chunk);
  void TakeReduced(Work& work, const Chunk& chunk);
  void TakeReducedBlock(Work& work, const Chunk& chunk);
  void TakeGathered(Work& work, const Chunk& chunk);
  void TakeBlocks(Work& work, const Chunk& chunk);

  // An all-to-all whose blocks differ in length, which lie in the lane without gaps: unequal.cc.
  size_t BytesBetween(const Work& work, const Chunk& chunk, int from, int to) const;
  void FillUnequal(Work& work, const Chunk& chunk);
  void StartUnequal(Work& work, const Chunk& chunk);
  void TakeUnequal(Work& work, const Chunk& chunk);

  // By leaders: the first messages of a chunk; what follows once they are there; the end.
  MaybeError Start(Work& work, const Chunk& chunk);
  MaybeError Greet(Work& work, const Chunk& chunk);
  void StartMessages(Work& work, const Chunk& chunk);
  void StartReduced(Work& work, const Chunk& chunk);
  void StartBroadcast(Work& work, const Chunk& chunk);
  void StartBlocks(Work& work, const Chunk& chunk);
  MaybeError Continue(Work& work, const Chunk& chunk);
  MaybeError Finish(Work& work, const Chunk& chunk);
  void ReduceParts(Work& work, const Chunk& chunk);
  void Sources(const Chunk& chunk, const char* own, size_t each, size_t offset,
               std::vector<const void*>& parts) const;
  // Whether this node's part of what is reduced is the input of its only rank, as it is.
  bool GivesInput(const Work& work) const;
  // This node's part of a chunk that is reduced, and where the result of all nodes goes: a node of
  // one rank uses its own buffers where it can.
  const char* Own(const Work& work, const Chunk& chunk) const;
  char* Reduced(const Work& work, const Chunk& chunk) const;
  bool Wants(const Work& work, int node) const;
  MaybeError AwaitFlight(Work& work, const Chunk& chunk);

  int RootNode(const Work& work) const;
  Flight& flight(const Chunk& chunk) { return flights_[chunk.number % LocalGroup::kLanes]; }
  // Where the part of another node stands among the others'.
  size_t Place(int node) const {
    return static_cast<size_t>(node < places_.node ? node : node - 1);
  }

  const Places& places_;
  LocalGroup& group_;
  Mesh* const mesh_;
  const bool direct_;
  const size_t lane_bytes_;
  const size_t half_;
  const int nodes_;
  const int size_;
  const int node_divisor_;  // a power of two, no less than any node has ranks
  Inputs inputs_;
  std::optional<Blocks> unequal_;  // of the current collective, where they differ in length
  std::unique_ptr<Greetings> greetings_;
  Flight flights_[LocalGroup::kLanes];
  uint64_t next_chunk_ = 0;  // of this node; others may have used fewer
  uint64_t slot_turn_ = 0;
};

}  // namespace dtrain::runtime
