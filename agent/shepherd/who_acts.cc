// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/who_acts.h"

#include <unordered_map>

namespace dtrain::shepherd {
namespace {

using Children = std::unordered_map<pid_t, std::vector<const Kin*>>;

// Adds those at and below `kin` who act, and who leads to them. False: there are none. The tree is
// as deep as its user likes, and a picture of /proc may be torn.
bool Add(const Kin& kin, Children& children, int depth, std::vector<pid_t>& out) {
  constexpr int kDeepest = 64;
  bool acts = kin.catches && !kin.is_shell;
  if (!acts && depth < kDeepest) {
    const std::vector<const Kin*> below = std::move(children[kin.pid]);
    children[kin.pid].clear();
    for (const Kin* child : below) acts |= Add(*child, children, depth + 1, out);
  }
  if (acts) out.push_back(kin.pid);
  return acts;
}

}  // namespace

std::vector<pid_t> WhoActs(pid_t rank, const std::vector<Kin>& all) {
  Children children;
  const Kin* first = nullptr;
  for (const Kin& kin : all) {
    if (kin.pid == rank) first = &kin;
    children[kin.parent].push_back(&kin);
  }
  std::vector<pid_t> out;
  if (first != nullptr) (void)Add(*first, children, 0, out);
  return out;
}

}  // namespace dtrain::shepherd
