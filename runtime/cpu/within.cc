// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/within.h"

#include <algorithm>

#include "runtime/cpu/places.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;

// From here on, buffers that are all in arenas are read and written where they are.
constexpr size_t kLookBytes = size_t{64} << 10;
// From here on, reading each other's memory beats copying twice through the slots, which takes
// more waits for each other. Not so for an all-reduce, which keeps several pieces in the cache at
// once, unless each wait costs a change of process.
constexpr size_t kDirectBytes = size_t{4} << 20;
constexpr size_t kDirectBytesWhenCrowded = size_t{128} << 10;
// A piece in all slots together should stay in the second-level cache.
constexpr size_t kStagedBytes = size_t{128} << 10;

}  // namespace

Within::Within(LocalGroup& group, const PeerMemory& memory, bool direct)
    : group_(group),
      memory_(memory),
      direct_(direct),
      size_(group.size()),
      mine_(group.mine()),
      inputs_(group, memory),
      from_(static_cast<size_t>(size_)) {}

MaybeError Within::Run(Work& work) {
  entered_ = false;
  MaybeError error = Choose(work);
  work.spent.wait_ns += group_.TakeWaitedNs();
  return error;
}

MaybeError Within::Choose(Work& work) {
  if (work.is(Kind::kBarrier) || work.what.count == 0) return Meet(work);
  // All ranks that ask for the same thing choose the same way; those that do not find out at the
  // first meeting, whichever way it is.
  if (work.is(Kind::kAllreduce) && work.bytes() <= Descriptor::kInlineBytes) {
    return TinyAllreduce(work);
  }
  if (work.bytes() < kLookBytes) return Staged(work, false);
  const bool large = direct_ && ReadsDirectly(work);
  ShowDirectBuffers(work, large);
  if (MaybeError error = Meet(work)) return error;
  // From here on ranks write into each other's buffers, which one that has failed may use again.
  if (MaybeError error = group_.failure()) return error;
  return large || MayReadAll(work) ? Direct(work) : Staged(work, true);
}

bool Within::ReadsDirectly(const Work& work) const {
  if (group_.crowded()) return work.bytes() >= kDirectBytesWhenCrowded;
  return !work.is(Kind::kAllreduce) && work.bytes() >= kDirectBytes;
}

MaybeError Within::Meet(Work& work) {
  if (entered_) return group_.Barrier(work.deadline);
  entered_ = true;
  return group_.Enter(work.request, work.deadline);
}

MaybeError Within::Barrier(Work& work) { return group_.Barrier(work.deadline); }

// ---- Through the slots ----

// Elements per piece: what fits into a slot, which for some kinds holds a part for every rank.
size_t Within::StagedCount(const Work& work) const {
  const bool blocks = work.is(Kind::kReduceScatter) || work.is(Kind::kAlltoall);
  const size_t room = blocks ? LocalGroup::kSlotBytes / static_cast<size_t>(size_) : kStagedBytes;
  return std::max(room / work.width(), size_t{1});
}

MaybeError Within::Staged(Work& work, bool entered) {
  entered_ = entered;
  if (work.is(Kind::kAllreduce)) return StagedAllreduce(work);
  const size_t step = StagedCount(work);
  const Blocks blocks(work.what, size_, mine_);
  for (size_t at = 0; at < work.what.count; at += step, ++turn_) {
    const size_t n = std::min(step, work.what.count - at);
    MaybeError error;
    switch (work.what.kind) {
      case Kind::kBroadcast:
        error = StagedBroadcast(work, at, n);
        break;
      case Kind::kAllgather:
        error = StagedAllgather(work, at, n);
        break;
      case Kind::kReduceScatter:
        error = StagedReduceScatter(work, at, n);
        break;
      case Kind::kAlltoall:
        error = StagedAlltoall(work, blocks, at, n);
        break;
      case Kind::kReduce:
        error = StagedReduce(work, at, n);
        break;
      case Kind::kAllreduce:
      case Kind::kBarrier:
        break;
    }
    if (error) return error;
  }
  return std::nullopt;
}

// This rank's part of elements [at, at + n) of all slots, reduced to its own slot.
MaybeError Within::ReduceSlice(Work& work, size_t n) {
  const size_t width = work.width();
  const Range part = PartOf(n, size_, mine_, kPartUnit);
  for (int i = 0; i < size_; ++i) {
    from_[static_cast<size_t>(i)] = Slot(i) + part.begin * width;
  }
  Reduce(work, Slot(mine_) + part.begin * width, from_.data(), size_, part.size(), work.divisor);
  return Barrier(work);
}

MaybeError Within::StagedReduce(Work& work, size_t at, size_t n) {
  const size_t width = work.width();
  Copy(work, Slot(mine_), work.input() + at * width, n * width);
  if (MaybeError error = Meet(work)) return error;
  if (MaybeError error = ReduceSlice(work, n)) return error;
  for (int i = 0; i < size_ && mine_ == work.what.root; ++i) {
    const Range part = PartOf(n, size_, i, kPartUnit);
    Copy(work, work.output() + (at + part.begin) * width, Slot(i) + part.begin * width,
         part.size() * width);
  }
  return std::nullopt;
}

MaybeError Within::StagedBroadcast(Work& work, size_t at, size_t n) {
  const size_t width = work.width();
  char* part = work.output() + at * width;
  if (mine_ == work.what.root) Copy(work, Slot(mine_), part, n * width);
  if (MaybeError error = Meet(work)) return error;
  if (mine_ != work.what.root) Copy(work, part, Slot(work.what.root), n * width);
  return std::nullopt;
}

MaybeError Within::StagedAllgather(Work& work, size_t at, size_t n) {
  const size_t width = work.width();
  Copy(work, Slot(mine_), work.input() + at * width, n * width);
  if (MaybeError error = Meet(work)) return error;
  for (int i = 0; i < size_; ++i) {
    const size_t block = static_cast<size_t>(i) * work.what.count;
    Copy(work, work.output() + (block + at) * width, Slot(i), n * width);
  }
  return std::nullopt;
}

MaybeError Within::StagedReduceScatter(Work& work, size_t at, size_t n) {
  const size_t width = work.width();
  for (int i = 0; i < size_; ++i) {
    const auto block = static_cast<size_t>(i);
    Copy(work, Slot(mine_) + block * n * width,
         work.input() + (block * work.what.count + at) * width, n * width);
  }
  if (MaybeError error = Meet(work)) return error;
  for (int i = 0; i < size_; ++i) {
    from_[static_cast<size_t>(i)] = Slot(i) + static_cast<size_t>(mine_) * n * width;
  }
  Reduce(work, work.output() + at * width, from_.data(), size_, n, work.divisor);
  return std::nullopt;
}

MaybeError Within::StagedAlltoall(Work& work, const Blocks& blocks, size_t at, size_t n) {
  const size_t width = work.width();
  // Who sends or gets nothing may have no buffer.
  for (int i = 0; i < size_; ++i) {
    const size_t bytes = blocks.Part(mine_, i, at, n) * width;
    if (bytes == 0) continue;
    Copy(work, Slot(mine_) + static_cast<size_t>(i) * n * width,
         work.input() + (blocks.InInput(i) + at) * width, bytes);
  }
  if (MaybeError error = Meet(work)) return error;
  for (int i = 0; i < size_; ++i) {
    const size_t bytes = blocks.Part(i, mine_, at, n) * width;
    if (bytes == 0) continue;
    Copy(work, work.output() + (blocks.InOutput(i) + at) * width,
         Slot(i) + static_cast<size_t>(mine_) * n * width, bytes);
  }
  return std::nullopt;
}

// ---- By reading each other's memory ----

// What the others may read while this rank is busy must stay as it is until all are done.
void Within::ShowDirectBuffers(Work& work, bool large) {
  // Buffers without elements may be in the same place, too.
  const bool in_place = work.what.counts == nullptr && work.what.input == work.what.output;
  if (work.is(Kind::kAlltoall) && in_place && !large) {
    work.request.at.input_at = Descriptor::kElsewhere;
  } else if (work.is(Kind::kAlltoall) && in_place) {
    const size_t bytes = work.bytes() * static_cast<size_t>(size_);
    kept_.resize(std::max(kept_.size(), bytes));
    Copy(work, kept_.data(), work.input(), bytes);
    work.request.at.input = reinterpret_cast<uint64_t>(kept_.data());
    work.request.at.input_at = Descriptor::kElsewhere;
  }
  if (work.is(Kind::kReduce) && mine_ != work.what.root) {
    const Range part = PartOf(work.what.count, size_, mine_, kPartUnit);
    kept_.resize(std::max(kept_.size(), part.size() * work.width()));
    work.request.at.output = reinterpret_cast<uint64_t>(kept_.data());
    work.request.at.output_at = Descriptor::kElsewhere;
  }
}

// True when all that the collective reads in other processes lies in arenas.
bool Within::MayReadAll(const Work& work) const {
  for (int i = 0; i < size_; ++i) {
    const Descriptor& request = group_.request(i);
    const bool input = memory_.Direct(i, request.at.input_at) != nullptr || i == mine_;
    const bool in = request.at.input_at != Descriptor::kElsewhere && input;
    const bool out = request.at.output_at != Descriptor::kElsewhere;
    switch (work.what.kind) {
      case Kind::kBroadcast:
        if (i == work.what.root && !out) return false;
        break;
      case Kind::kAllreduce:
        if (!in || !out) return false;
        break;
      case Kind::kReduce:
        if (!in || (i == work.what.root && !out)) return false;
        break;
      default:
        if (!in) return false;
    }
  }
  return true;
}

MaybeError Within::Direct(Work& work) {
  switch (work.what.kind) {
    case Kind::kAllreduce:
      return DirectAllreduce(work);
    case Kind::kReduceScatter:
      return DirectReduceScatter(work);
    case Kind::kReduce:
      return DirectReduce(work);
    default:
      return DirectMoves(work);
  }
}

// Bytes [from, from + bytes) of all inputs, reduced to `to`, and from there to each of `copies`.
MaybeError Within::ReducePieces(Work& work, size_t from, size_t bytes, char* to,
                                const std::vector<char*>& copies) {
  const size_t piece = inputs_.piece_bytes();
  for (size_t at = 0; at < bytes; at += piece) {
    const size_t n = std::min(piece, bytes - at);
    if (MaybeError error = inputs_.Read(work, from + at, n)) return error;
    Reduce(work, to + at, inputs_.pointers(), size_, n / work.width(), work.divisor);
    for (char* copy : copies) Copy(work, copy + at, to + at, n);
  }
  return std::nullopt;
}

MaybeError Within::DirectAllreduce(Work& work) {
  bool all_reachable = true;  // every rank writes its part of the result to all outputs
  for (int i = 0; i < size_; ++i) {
    all_reachable &= group_.request(i).at.output_at != Descriptor::kElsewhere;
  }
  const size_t width = work.width();
  const Range part = PartOf(work.what.count, size_, mine_, kPartUnit);
  const size_t from = part.begin * width;
  std::vector<char*> reachable;
  for (int i = 0; i < size_; ++i) {
    char* output = memory_.Direct(i, group_.request(i).at.output_at);
    if (i != mine_ && output != nullptr) reachable.push_back(output + from);
  }
  if (MaybeError error =
          ReducePieces(work, from, part.size() * width, work.output() + from, reachable)) {
    return error;
  }
  if (MaybeError error = Barrier(work)) return error;
  if (all_reachable) return std::nullopt;
  if (MaybeError error = CopyOthersParts(work)) return error;
  return Barrier(work);  // the caller may change its output
}

// What the others could not write to this rank's output.
MaybeError Within::CopyOthersParts(Work& work) {
  if (work.request.at.output_at != Descriptor::kElsewhere) return std::nullopt;
  for (int step = 1; step < size_; ++step) {
    const int i = (mine_ + step) % size_;  // not all from the same one at once
    const Range theirs = PartOf(work.what.count, size_, i, kPartUnit);
    const size_t offset = theirs.begin * work.width();
    if (MaybeError error = inputs_.CopyOutput(work, i, offset, theirs.size() * work.width(),
                                              work.output() + offset)) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError Within::DirectReduceScatter(Work& work) {
  const size_t from = static_cast<size_t>(mine_) * work.bytes();
  if (MaybeError error = ReducePieces(work, from, work.bytes(), work.output(), {})) return error;
  return Barrier(work);
}

MaybeError Within::DirectReduce(Work& work) {
  const size_t width = work.width();
  const int root = work.what.root;
  const Range part = PartOf(work.what.count, size_, mine_, kPartUnit);
  const size_t from = part.begin * width;
  const int64_t at = group_.request(root).at.output_at;
  char* to = mine_ == root                  ? work.output() + from
             : at != Descriptor::kElsewhere ? memory_.Direct(root, at) + from
                                            : kept_.data();
  if (MaybeError error = ReducePieces(work, from, part.size() * width, to, {})) return error;
  if (MaybeError error = Barrier(work)) return error;
  if (at != Descriptor::kElsewhere) return std::nullopt;
  for (int i = 0; i < size_ && mine_ == root; ++i) {
    if (i == mine_) continue;
    const Range theirs = PartOf(work.what.count, size_, i, kPartUnit);
    if (MaybeError error = inputs_.CopyOutput(work, i, 0, theirs.size() * width,
                                              work.output() + theirs.begin * width)) {
      return error;
    }
  }
  return Barrier(work);
}

MaybeError Within::DirectMoves(Work& work) {
  const size_t bytes = work.bytes(), width = work.width();
  const Blocks blocks(work.what, size_, mine_);
  MaybeError error;
  for (int step = 0; step < size_ && !error; ++step) {
    const int i = (mine_ + step) % size_;
    const size_t block = static_cast<size_t>(i) * bytes;
    if (work.is(Kind::kAllgather)) {
      error = inputs_.CopyInput(work, i, 0, bytes, work.output() + block);
    } else if (work.is(Kind::kAlltoall)) {
      error =
          inputs_.CopyInput(work, i, blocks.InInputOf(i) * width, blocks.Length(i, mine_) * width,
                            work.output() + blocks.InOutput(i) * width);
    } else if (i == work.what.root && i != mine_) {
      error = inputs_.CopyOutput(work, i, 0, bytes, work.output());
    }
  }
  if (error) return error;
  return Barrier(work);
}

}  // namespace dtrain::runtime
