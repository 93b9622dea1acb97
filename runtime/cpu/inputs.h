// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/cpu/work.h"

namespace dtrain::runtime {

// What the ranks of a node gave as the input of a collective, as this process can read it: its own
// and those in arenas where they are, others copied to memory of this object. After Enter.
class Inputs {
 public:
  Inputs(const LocalGroup& group, const PeerMemory& memory) : group_(group), memory_(memory) {}

  // Bytes [offset, offset + bytes) of all inputs, by index; valid until the next call.
  MaybeError Read(const Work& work, size_t offset, size_t bytes);
  const void* const* pointers() const { return pointers_.data(); }

  // Copies a part of rank `index`'s input, or output, to `to`.
  MaybeError CopyInput(const Work& work, int index, size_t offset, size_t bytes, char* to) const;
  MaybeError CopyOutput(const Work& work, int index, size_t offset, size_t bytes, char* to) const;

  // How much to ask Read for at a time, so that it all stays in the second-level cache.
  size_t piece_bytes() const;

 private:
  MaybeError CopyFrom(const Work& work, int index, uint64_t address, int64_t at, size_t bytes,
                      char* to) const;

  const LocalGroup& group_;
  const PeerMemory& memory_;
  std::vector<const void*> pointers_;
  std::vector<char> copies_;
};

}  // namespace dtrain::runtime
