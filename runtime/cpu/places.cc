// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/places.h"

#include <algorithm>

namespace dtrain::runtime {

Range PartOf(size_t n, int parts, int part, size_t unit) {
  const size_t units = (n + unit - 1) / unit;
  const auto p = static_cast<size_t>(parts);
  const size_t each = (units + p - 1) / p * unit;
  const size_t begin = std::min(n, each * static_cast<size_t>(part));
  return {begin, std::min(n, begin + each)};
}

}  // namespace dtrain::runtime
