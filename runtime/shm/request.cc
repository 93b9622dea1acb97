// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/base/types.h"
#include "runtime/shm/local_group.h"

namespace dtrain::runtime {
namespace {

constexpr size_t kNamed = 8;

// Another process may have sent anything.
std::string Text(const Descriptor& request) {
  const bool known = IsType(request.type) && IsOp(request.op);
  return known ? Describe(CollectiveOf(request)) : "an unknown collective";
}

}  // namespace

Collective CollectiveOf(const Descriptor& descriptor) {
  Collective what;
  what.kind = static_cast<Collective::Kind>(descriptor.kind);
  what.number = descriptor.number;
  what.count = descriptor.count;
  what.type = static_cast<dtrain_type>(descriptor.type);
  what.op = static_cast<dtrain_op>(descriptor.op);
  what.root = descriptor.root;
  what.name = descriptor.name;
  return what;
}

bool SameRequest(const Descriptor& a, const Descriptor& b) {
  return a.number == b.number && a.name == b.name && a.count == b.count && a.root == b.root &&
         a.kind == b.kind && a.type == b.type && a.op == b.op;
}

Error LeavingError(int leaver, int waiter, const Collective& what) {
  return {DTRAIN_ERROR_MISMATCH,
          "rank " + std::to_string(leaver) +
              " is leaving the job (it has called dtrain_finalize, or its program has ended) while "
              "rank " +
              std::to_string(waiter) + " is in " + Describe(what)};
}

std::string NameRanks(const std::vector<int>& ranks) {
  std::string text;
  const size_t named = ranks.size() > kNamed + 1 ? kNamed : ranks.size();
  for (size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == ranks.size();
    text += (i == 0 ? "rank " : last ? " and rank " : ", rank ") + std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

MaybeError CompareRequests(const std::vector<int>& ranks, const std::vector<Descriptor>& requests) {
  struct Camp {
    Descriptor request;
    std::vector<int> ranks;
  };
  std::vector<Camp> camps;
  bool numbers_differ = false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    numbers_differ |= requests[i].number != requests[0].number;
    const auto camp = std::find_if(camps.begin(), camps.end(), [&](const Camp& c) {
      return SameRequest(c.request, requests[i]);
    });
    if (camp == camps.end()) {
      camps.push_back({requests[i], {ranks[i]}});
    } else {
      camp->ranks.push_back(ranks[i]);
    }
  }
  if (camps.size() < 2) return std::nullopt;
  std::string text = "the ranks do not ask for the same thing: ";
  for (size_t i = 0; i < camps.size() && i < kNamed; ++i) {
    if (i > 0) text += "; ";
    text += NameRanks(camps[i].ranks) + ": " + Text(camps[i].request);
    // The name itself is in the error of each of those ranks.
    if (i > 0 && camps[i].request.name != camps[0].request.name) text += " under another name";
    if (numbers_differ) text += " as number " + std::to_string(camps[i].request.number);
  }
  if (camps.size() > kNamed) text += "; and others";
  return Error{DTRAIN_ERROR_MISMATCH, text};
}

}  // namespace dtrain::runtime
