// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/registrations.h"

#include <algorithm>
#include <utility>

#include "runtime/base/blocks.h"
#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

// What NCCL is given of this rank's memory, in bytes.
struct Buffers {
  const char* input = nullptr;
  const char* output = nullptr;
  size_t in = 0, out = 0;
};

Buffers BuffersOf(const Collective& what, int rank, int size) {
  const size_t element = ElementSize(what.type);
  const size_t one = what.count * element, all = one * static_cast<size_t>(size);
  Buffers buffers{static_cast<const char*>(what.input), static_cast<const char*>(what.output), one,
                  one};
  switch (what.kind) {
    case Kind::kBarrier:
      return {};
    case Kind::kBroadcast:
      buffers.input = buffers.output;
      break;
    case Kind::kAllgather:
      buffers.out = all;
      break;
    case Kind::kReduceScatter:
      buffers.in = all;
      break;
    case Kind::kAlltoall: {
      const Blocks blocks(what, size, rank);
      buffers.in = buffers.out = 0;
      for (int r = 0; r < size; ++r) {
        buffers.in += blocks.Length(rank, r) * element;
        buffers.out += blocks.Length(r, rank) * element;
      }
      // A rank with nothing for the others is no reason to copy everybody's.
      buffers.in = std::max<size_t>(buffers.in, 1);
      buffers.out = std::max<size_t>(buffers.out, 1);
      break;
    }
    case Kind::kReduce:
      if (rank != what.root) buffers.out = 0;
      break;
    case Kind::kAllreduce:
      break;
  }
  return buffers;
}

}  // namespace

void Registrations::Add(const Entry& entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(entry);
  some_.store(true);
}

std::optional<Registrations::Entry> Registrations::Take(const void* begin) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.begin == begin; });
  if (found == entries_.end()) return std::nullopt;
  const Entry entry = *found;
  entries_.erase(found);
  some_.store(!entries_.empty());
  return entry;
}

std::vector<Registrations::Entry> Registrations::TakeAll() {
  const std::lock_guard lock(mutex_);
  some_.store(false);
  return std::exchange(entries_, {});
}

Registrations::Place Registrations::Find(const void* begin, size_t bytes) const {
  Place place;
  const auto at = reinterpret_cast<uintptr_t>(begin);
  if (at == 0 || bytes == 0) return place;
  for (const Entry& entry : entries_) {
    const auto first = reinterpret_cast<uintptr_t>(entry.begin);
    if (at >= first + entry.bytes || at + bytes <= first) continue;
    place = {true, at >= first && at + bytes <= first + entry.bytes, entry.id, at - first};
  }
  return place;
}

Registrations::Use Registrations::UseOf(const Collective& what, int rank, int size) const {
  // Most programs register nothing.
  if (!some_.load() || what.count == 0) return {};
  const Buffers buffers = BuffersOf(what, rank, size);
  Place in, out;
  {
    const std::lock_guard lock(mutex_);
    in = Find(buffers.input, buffers.in);
    out = Find(buffers.output, buffers.out);
  }
  Use use;
  use.any = in.touches || out.touches;
  if (!use.any) return use;
  // Of a reduction to one rank, the others have no output that could be like its.
  use.allowed = in.touches == in.inside && out.touches == out.inside && what.kind != Kind::kReduce;
  const size_t mine = static_cast<size_t>(rank) * what.count * ElementSize(what.type);
  const bool in_place = buffers.input + (what.kind == Kind::kReduceScatter ? mine : 0) ==
                        buffers.output + (what.kind == Kind::kAllgather ? mine : 0);
  // A rank's own block lies where it likes, or at its number; the rest at one offset, by which
  // NCCL addresses that of all ranks at once.
  if (what.kind == Kind::kAllgather || what.kind == Kind::kAlltoall) in.offset = 0;
  if (what.kind == Kind::kReduceScatter || what.kind == Kind::kAlltoall) out.offset = 0;
  for (const uint64_t word : {in.id, in.offset, out.id, out.offset, uint64_t{in_place ? 1U : 0U}}) {
    use.key = Mix(use.key, word);
  }
  use.key |= 1;  // never 0
  return use;
}

}  // namespace dtrain::runtime
