// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/outline.h"

#include <algorithm>
#include <limits>

#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

constexpr size_t kMostNamed = 8;    // ranks
constexpr size_t kMostParties = 6;  // a text of all of them would not fit
constexpr uint64_t kMostElements = std::numeric_limits<int64_t>::max() / 16;

}  // namespace

Outline OutlineOf(const Collective& what) {
  Outline outline{};
  outline.count = what.count;
  outline.name = what.name;
  outline.number = static_cast<uint32_t>(what.number);
  outline.root = what.root;
  outline.kind = static_cast<uint8_t>(what.kind);
  outline.type = static_cast<uint8_t>(what.type);
  outline.op = static_cast<uint8_t>(what.op);
  return outline;
}

std::optional<Collective> CollectiveOf(const Outline& outline) {
  using Kind = Collective::Kind;
  const auto kind = static_cast<Kind>(outline.kind);
  const bool known = kind <= Kind::kReduce && IsType(outline.type) && IsOp(outline.op) &&
                     outline.count <= kMostElements;
  const bool reduces =
      kind == Kind::kAllreduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
  if (!known || (reduces && outline.type == DTRAIN_BYTE)) return std::nullopt;
  Collective what;
  what.kind = kind;
  what.number = outline.number;
  what.count = outline.count;
  what.type = static_cast<dtrain_type>(outline.type);
  what.op = static_cast<dtrain_op>(outline.op);
  what.root = outline.root;
  what.name = outline.name;
  return what;
}

std::string Describe(const Outline& outline) {
  const auto known = CollectiveOf(outline);
  return known ? Describe(*known) : "an unknown collective";
}

std::string NameRanks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > kMostNamed) {
    text += " and " + std::to_string(ranks.size() - kMostNamed) + " more";
  }
  return text;
}

std::string DescribeDisagreement(const std::vector<Party>& parties) {
  std::string text = "the ranks do not ask for the same thing: ";
  for (size_t i = 0; i < std::min(parties.size(), kMostParties); ++i) {
    if (i > 0) text += "; ";
    text += NameRanks(parties[i].ranks) + " for " + parties[i].wants;
  }
  if (parties.size() > kMostParties) text += "; and others";
  return text;
}

}  // namespace dtrain::runtime
