// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/allreduce/bench.h"
#include "runtime/allreduce/options.h"

namespace dtrain::allreduce {

// Bytes of host memory that a rank needs for a size, of elements of `width` bytes.
inline size_t Needed(const Options& options, size_t bytes, size_t width, size_t ranks) {
  const Shape shape = ShapeOf(options.kind, std::max<size_t>(bytes / width, 1), ranks);
  return (shape.output + (options.in_place ? 0 : shape.input)) * width;
}

// What /proc/meminfo says is there to be used, in bytes; as much as there can be where it does not.
inline size_t AvailableBytes(std::string_view meminfo) {
  constexpr std::string_view kName = "MemAvailable:";
  const size_t at = meminfo.find(kName);
  if (at == std::string_view::npos) return SIZE_MAX;
  meminfo.remove_prefix(at + kName.size());
  meminfo.remove_prefix(std::min(meminfo.find_first_not_of(' '), meminfo.size()));
  uint64_t kib = 0;
  const auto [end, error] = std::from_chars(meminfo.data(), meminfo.data() + meminfo.size(), kib);
  return error == std::errc() ? static_cast<size_t>(kib) << 10 : SIZE_MAX;
}

// What one of `local_ranks` on a machine may take of it: something is left for everything else.
inline size_t RoomPerRank(size_t available, size_t local_ranks) {
  return available / 8 * 7 / std::max<size_t>(local_ranks, 1);
}

inline std::string Gibibytes(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

// Takes out of `sizes` those that a rank with `room` has no memory for, and returns what to say
// about that; "" when all fit.
inline std::string LeaveOutTooLarge(const Options& options, size_t width, size_t ranks, size_t room,
                                    std::vector<size_t>& sizes) {
  std::string names;
  size_t most = 0;
  std::vector<size_t> fitting;
  for (const size_t bytes : sizes) {
    const size_t needed = Needed(options, bytes, width, ranks);
    if (needed <= room) {
      fitting.push_back(bytes);
      continue;
    }
    names += (names.empty() ? "" : ", ") + std::to_string(bytes);
    most = std::max(most, needed);
  }
  sizes = fitting;
  if (names.empty()) return "";
  return "no memory for " + names + " bytes: that takes up to " + Gibibytes(most) +
         " per rank, and there are " + Gibibytes(room) + " for each rank of the fullest machine";
}

}  // namespace dtrain::allreduce
