// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/base/collective.h"

namespace dtrain::runtime {

// Where the blocks of an all-to-all lie in the buffers of the ranks, in elements: all of the same
// length, or as its `counts` say.
class Blocks {
 public:
  Blocks(const Collective& what, int size, int rank);

  size_t Length(int from, int to) const {
    return counts_ == nullptr ? count_ : counts_[Index(from) * size_ + Index(to)];
  }
  // How much of elements [at, at + n) that block has.
  size_t Part(int from, int to, size_t at, size_t n) const {
    const size_t length = Length(from, to);
    return length <= at ? 0 : length - at < n ? length - at : n;
  }
  // The block for `to` in this rank's input, that of `from` in its output, and this rank's block in
  // the input of `from`.
  size_t InInput(int to) const { return At(in_input_, to, to); }
  size_t InOutput(int from) const { return At(in_output_, from, from); }
  size_t InInputOf(int from) const { return At(in_input_of_, from, rank_); }

 private:
  static size_t Index(int rank) { return static_cast<size_t>(rank); }
  size_t At(const std::vector<size_t>& offsets, int index, int block) const {
    return counts_ == nullptr ? Index(block) * count_ : offsets[Index(index)];
  }

  const size_t count_;
  const uint64_t* const counts_;
  const bool alike_;
  const size_t size_;
  const int rank_;
  std::vector<size_t> in_input_, in_output_, in_input_of_;  // with `counts` only
};

}  // namespace dtrain::runtime
