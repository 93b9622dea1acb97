// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/wish.h"

#include <utility>

#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;

bool Same(const Wish& a, const Wish& b) {
  return a.count == b.count && a.kind == b.kind && a.type == b.type && a.op == b.op &&
         a.root == b.root && a.name == b.name;
}

std::string Text(const Wish& wish) {
  // What another process sent is not to be trusted to be a kind.
  if (wish.kind < 0 || wish.kind > static_cast<int>(Kind::kReduce) || !IsType(wish.type) ||
      !IsOp(wish.op)) {
    return "an unknown collective";
  }
  Collective what;
  what.kind = static_cast<Kind>(wish.kind);
  what.count = wish.count;
  what.type = static_cast<dtrain_type>(wish.type);
  what.op = static_cast<dtrain_op>(wish.op);
  what.root = wish.root;
  return Describe(what);
}

}  // namespace

Wish MakeWish(const Collective& what) {
  Wish wish;
  wish.kind = static_cast<int32_t>(what.kind);
  wish.name = what.name;
  if (what.kind == Kind::kBarrier) return wish;
  wish.count = what.count;
  wish.type = what.type;
  if (what.kind == Kind::kAllreduce || what.kind == Kind::kReduceScatter ||
      what.kind == Kind::kReduce) {
    wish.op = what.op;
  }
  if (what.kind == Kind::kBroadcast || what.kind == Kind::kReduce) wish.root = what.root;
  return wish;
}

MaybeError CompareWishes(const std::vector<Wish>& wishes, const std::vector<std::string>& names) {
  constexpr size_t kMostShown = 8;
  std::vector<std::pair<Wish, std::vector<size_t>>> groups;
  for (size_t r = 0; r < wishes.size(); ++r) {
    size_t g = 0;
    while (g < groups.size() && !Same(groups[g].first, wishes[r])) ++g;
    if (g == groups.size()) groups.push_back({wishes[r], {}});
    groups[g].second.push_back(r);
  }
  if (groups.size() <= 1) return std::nullopt;
  std::string text;
  for (size_t g = 0; g < groups.size() && g < kMostShown; ++g) {
    const auto& ranks = groups[g].second;
    text += g == 0 ? "" : "; ";
    for (size_t i = 0; i < ranks.size() && i < kMostShown; ++i) {
      text += (i == 0 ? "" : ", ") + names[ranks[i]];
    }
    if (ranks.size() > kMostShown) {
      text += " and " + std::to_string(ranks.size() - kMostShown) + " more ranks";
    }
    text += ranks.size() == 1 ? " asks for " : " ask for ";
    text += Text(groups[g].first);
    // The name itself is in the error of each of those ranks.
    if (g > 0 && groups[g].first.name != groups[0].first.name) text += " under another name";
  }
  return Error{DTRAIN_ERROR_MISMATCH, "the ranks do not ask for the same thing: " + text};
}

}  // namespace dtrain::runtime
