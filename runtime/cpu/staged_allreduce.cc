// SPDX-License-Identifier: Apache-2.0
// All-reduces within a node through the segment: in the line with the request, whole through the
// slots, or piece by piece.
#include <algorithm>

#include "runtime/cpu/places.h"
#include "runtime/cpu/within.h"

namespace dtrain::runtime {
namespace {

// Of all ranks' inputs together: up to here, every rank reduces everything, which saves a wait.
constexpr size_t kWholeBytes = size_t{64} << 10;
// Of a result that is reduced before it is copied: both stay in the first-level cache.
constexpr size_t kBlockBytes = size_t{8} << 10;

}  // namespace

// What each rank gives travels in the line in which it says that it has come.
MaybeError Within::TinyAllreduce(Work& work) {
  std::memcpy(work.request.data, work.what.input, work.bytes());
  if (MaybeError error = Meet(work)) return error;
  for (int i = 0; i < size_; ++i) from_[static_cast<size_t>(i)] = group_.request(i).data;
  Reduce(work, work.output(), from_.data(), size_, work.what.count, work.divisor);
  return std::nullopt;
}

MaybeError Within::WholeAllreduce(Work& work) {
  Copy(work, Slot(mine_), work.input(), work.bytes());
  if (MaybeError error = Meet(work)) return error;
  for (int i = 0; i < size_; ++i) from_[static_cast<size_t>(i)] = Slot(i);
  from_[static_cast<size_t>(mine_)] = work.input();
  Reduce(work, work.output(), from_.data(), size_, work.what.count, work.divisor);
  ++turn_;
  return std::nullopt;
}

// Three pieces are on their way at a time, so that there is one wait for each: while the others'
// parts of one are put into this rank's slot, this rank's part of the one before is reduced, and
// the others' results of the one before that are taken out.
MaybeError Within::StagedAllreduce(Work& work) {
  if (work.bytes() * static_cast<size_t>(size_) <= kWholeBytes) return WholeAllreduce(work);
  const size_t pieces = (work.what.count + StagedCount(work) - 1) / StagedCount(work);
  const size_t step = ((work.what.count - 1) / pieces / kPartUnit + 1) * kPartUnit;
  const auto piece = [&](size_t index) {
    const size_t at = std::min(index * step, work.what.count);
    return Piece{at, std::min(step, work.what.count - at), step, turn_ + index};
  };
  for (size_t phase = 0; phase < pieces + 2; ++phase) {
    if (phase >= 1 && phase - 1 < pieces) ReduceOwnPart(work, piece(phase - 1));
    if (phase >= 2) TakeParts(work, piece(phase - 2));
    if (phase < pieces) PutParts(work, piece(phase));
    if (phase > pieces) break;
    if (MaybeError error = Meet(work)) return error;
  }
  turn_ += pieces;
  return std::nullopt;
}

// Part `index` of a piece. Its place in the slots is that of a whole piece, also in the last one,
// which may be smaller: what is put there must not touch what others still take of an earlier one.
Range Within::PartOfPiece(const Piece& piece, int index) const {
  const Range part = PartOf(piece.step, size_, index, kPartUnit);
  return {std::min(part.begin, piece.n), std::min(part.end, piece.n)};
}

char* Within::InSlot(const Work& work, const Piece& piece, int of, const Range& part) const {
  return group_.slot(of, static_cast<int>(piece.turn % 2)) + part.begin * work.width();
}

void Within::PutParts(Work& work, const Piece& piece) {
  const Stopwatch watch(work.spent.transfer_ns);
  for (int i = 0; i < size_; ++i) {
    const Range part = PartOfPiece(piece, i);
    if (i == mine_ || part.size() == 0) continue;
    CopyBytes(InSlot(work, piece, mine_, part),
              work.input() + (piece.at + part.begin) * work.width(), part.size() * work.width());
  }
}

// To this rank's slot, for the others, and to its output.
void Within::ReduceOwnPart(Work& work, const Piece& piece) {
  const Stopwatch watch(work.spent.reduce_ns);
  const size_t width = work.width();
  const Range part = PartOfPiece(piece, mine_);
  const size_t from = (piece.at + part.begin) * width;
  const size_t block = kBlockBytes / width;
  for (size_t at = 0; at < part.size(); at += block) {
    const size_t n = std::min(block, part.size() - at);
    for (int i = 0; i < size_; ++i) {
      from_[static_cast<size_t>(i)] = InSlot(work, piece, i, part) + at * width;
    }
    from_[static_cast<size_t>(mine_)] = work.input() + from + at * width;
    char* result = InSlot(work, piece, mine_, part) + at * width;
    ReduceAll(result, from_.data(), size_, n, work.what.type, work.what.op, work.divisor);
    CopyBytes(work.output() + from + at * width, result, n * width);
  }
}

void Within::TakeParts(Work& work, const Piece& piece) {
  const Stopwatch watch(work.spent.transfer_ns);
  for (int step = 1; step < size_; ++step) {
    const int i = (mine_ + step) % size_;  // not all from the same one at once
    const Range part = PartOfPiece(piece, i);
    if (part.size() == 0) continue;
    CopyBytes(work.output() + (piece.at + part.begin) * work.width(), InSlot(work, piece, i, part),
              part.size() * work.width());
  }
}

}  // namespace dtrain::runtime
