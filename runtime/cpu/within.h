// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/base/blocks.h"
#include "runtime/cpu/inputs.h"
#include "runtime/cpu/places.h"
#include "runtime/cpu/work.h"

namespace dtrain::runtime {

// Collectives among the ranks of one node, whose ranks and indices are the same. Small ones go
// through the slots of the segment, with one wait for each other; those in arenas by reading and
// writing them there; other large ones by reading each other's memory, or through the slots piece
// by piece where that is faster or the other is not permitted.
class Within {
 public:
  Within(LocalGroup& group, const PeerMemory& memory, bool direct);

  MaybeError Run(Work& work);

 private:
  MaybeError Choose(Work& work);

  // Through the slots.
  MaybeError Staged(Work& work, bool entered);
  MaybeError StagedBroadcast(Work& work, size_t at, size_t n);
  MaybeError StagedAllgather(Work& work, size_t at, size_t n);
  MaybeError StagedReduceScatter(Work& work, size_t at, size_t n);
  MaybeError StagedAlltoall(Work& work, const Blocks& blocks, size_t at, size_t n);
  MaybeError StagedReduce(Work& work, size_t at, size_t n);
  size_t StagedCount(const Work& work) const;
  // Waits for all; the first time in a collective, compares what they ask for too.
  MaybeError Meet(Work& work);
  MaybeError ReduceSlice(Work& work, size_t n);

  // All-reduces through the segment: staged_allreduce.cc.
  struct Piece {
    size_t at;  // elements
    size_t n;
    size_t step;  // n of all pieces but the last
    uint64_t turn;
  };
  MaybeError TinyAllreduce(Work& work);
  MaybeError WholeAllreduce(Work& work);
  MaybeError StagedAllreduce(Work& work);
  Range PartOfPiece(const Piece& piece, int index) const;
  char* InSlot(const Work& work, const Piece& piece, int of, const Range& part) const;
  void PutParts(Work& work, const Piece& piece);
  void ReduceOwnPart(Work& work, const Piece& piece);
  void TakeParts(Work& work, const Piece& piece);

  // By reading each other's memory; all have entered.
  MaybeError Direct(Work& work);
  MaybeError DirectAllreduce(Work& work);
  MaybeError CopyOthersParts(Work& work);
  MaybeError DirectReduceScatter(Work& work);
  MaybeError DirectReduce(Work& work);
  MaybeError DirectMoves(Work& work);
  MaybeError ReducePieces(Work& work, size_t from, size_t bytes, char* to,
                          const std::vector<char*>& copies);
  // Whether memory outside of arenas is read too, where that is permitted.
  bool ReadsDirectly(const Work& work) const;
  void ShowDirectBuffers(Work& work, bool large);
  bool MayReadAll(const Work& work) const;
  MaybeError Barrier(Work& work);

  char* Slot(int index) const { return group_.slot(index, static_cast<int>(turn_ % 2)); }

  LocalGroup& group_;
  const PeerMemory& memory_;
  const bool direct_;
  const int size_;
  const int mine_;
  Inputs inputs_;
  std::vector<const void*> from_;  // what is reduced, by index
  uint64_t turn_ = 0;              // pieces that went through the slots
  bool entered_ = false;
  std::vector<char> kept_;  // an input that would be overwritten, or a part of a result
};

}  // namespace dtrain::runtime
