// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/collective.h"
#include "runtime/base/result.h"

namespace dtrain::runtime {

// A collective as all ranks must agree on it, in a form that travels: what does not matter for its
// kind is 0. 32 bytes.
struct Wish {
  uint64_t count = 0;
  int32_t kind = 0;
  int32_t type = 0;
  int32_t op = 0;
  int32_t root = 0;
  uint64_t name = 0;  // NameHash
};

Wish MakeWish(const Collective& what);

// DTRAIN_ERROR_MISMATCH naming the ranks (M5), the same text on every rank; nullopt when all agree.
MaybeError CompareWishes(const std::vector<Wish>& wishes, const std::vector<std::string>& names);

}  // namespace dtrain::runtime
