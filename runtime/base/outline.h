// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/collective.h"

namespace dtrain::runtime {

// What ranks must agree on in a collective, as one process tells another.
struct Outline {
  uint64_t count;
  uint32_t name;    // NameHash, 0 for none
  uint32_t number;  // wraps around
  int32_t root;
  uint8_t kind;
  uint8_t type;
  uint8_t op;
  uint8_t unused;
  bool operator==(const Outline&) const = default;
};
static_assert(sizeof(Outline) == 24);

Outline OutlineOf(const Collective& what);
// nullopt when no rank of this version says so: another process may have sent anything.
std::optional<Collective> CollectiveOf(const Outline& outline);
// As of the collective, or "an unknown collective".
std::string Describe(const Outline& outline);

// "rank 3", "ranks 1, 2", "ranks 1, 2 and 7 more".
std::string NameRanks(const std::vector<int>& ranks);

// Ranks that ask for the same thing.
struct Party {
  std::vector<int> ranks;
  std::string wants;
};
// One sentence: which ranks ask for what. Of many parties, the first.
std::string DescribeDisagreement(const std::vector<Party>& parties);

}  // namespace dtrain::runtime
