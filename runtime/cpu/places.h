// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace dtrain::runtime {

// Parts of a buffer begin at multiples of so many elements, which are whole cache lines.
constexpr size_t kPartUnit = 64;

// Part number `part` of [0, n) in `parts` nearly equal ones that begin at multiples of `unit`.
struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};
Range PartOf(size_t n, int parts, int part, size_t unit);

}  // namespace dtrain::runtime
