// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/inputs.h"

#include <algorithm>

namespace dtrain::runtime {
namespace {

constexpr size_t kCacheBytes = size_t{512} << 10;
constexpr size_t kLargestPiece = size_t{64} << 10;
constexpr size_t kSmallestPiece = size_t{16} << 10;

}  // namespace

size_t Inputs::piece_bytes() const {
  return std::clamp(kCacheBytes / static_cast<size_t>(group_.size()), kSmallestPiece,
                    kLargestPiece);
}

MaybeError Inputs::Read(const Work& work, size_t offset, size_t bytes) {
  const auto size = static_cast<size_t>(group_.size());
  pointers_.resize(size);
  for (size_t i = 0; i < size; ++i) {
    const int index = static_cast<int>(i);
    if (index == group_.mine()) {
      pointers_[i] = work.input() + offset;
      continue;
    }
    const Descriptor& request = group_.request(index);
    if (const char* direct = memory_.Direct(index, request.at.input_at)) {
      pointers_[i] = direct + offset;
      continue;
    }
    const size_t room = std::max(piece_bytes(), bytes);
    if (copies_.size() < size * room) copies_.resize(size * room);
    char* to = copies_.data() + i * room;
    pointers_[i] = to;
    const Stopwatch watch(work.spent.transfer_ns);
    if (MaybeError error = memory_.Read(index, to, request.at.input + offset, bytes)) return error;
  }
  return std::nullopt;
}

MaybeError Inputs::CopyFrom(const Work& work, int index, uint64_t address, int64_t at, size_t bytes,
                            char* to) const {
  if (bytes == 0) return std::nullopt;
  const Stopwatch watch(work.spent.transfer_ns);
  if (const char* direct = memory_.Direct(index, at)) {
    CopyBytes(to, direct, bytes);
    return std::nullopt;
  }
  return memory_.Read(index, to, address, bytes);
}

MaybeError Inputs::CopyInput(const Work& work, int index, size_t offset, size_t bytes,
                             char* to) const {
  if (index == group_.mine()) {
    Copy(work, to, work.input() + offset, bytes);
    return std::nullopt;
  }
  const Descriptor& request = group_.request(index);
  const int64_t at = request.at.input_at;
  return CopyFrom(work, index, request.at.input + offset,
                  at == Descriptor::kElsewhere ? at : at + static_cast<int64_t>(offset), bytes, to);
}

MaybeError Inputs::CopyOutput(const Work& work, int index, size_t offset, size_t bytes,
                              char* to) const {
  const Descriptor& request = group_.request(index);
  const int64_t at = request.at.output_at;
  return CopyFrom(work, index, request.at.output + offset,
                  at == Descriptor::kElsewhere ? at : at + static_cast<int64_t>(offset), bytes, to);
}

}  // namespace dtrain::runtime
