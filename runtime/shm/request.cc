// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/shm/local_group.h"

namespace dtrain::runtime {

namespace {
constexpr char kLeaving[] =
    " is leaving the job (it has called dtrain_finalize, or its program has ended)";
}  // namespace

bool IsLeaving(const std::string& text) { return text.find(kLeaving) != std::string::npos; }

Error LeavingError(int leaver, int waiter, const Collective& what) {
  return {DTRAIN_ERROR_MISMATCH, "rank " + std::to_string(leaver) + kLeaving + " while rank " +
                                     std::to_string(waiter) + " is in " + Describe(what)};
}

MaybeError CompareRequests(const std::vector<int>& ranks, const std::vector<Descriptor>& requests) {
  std::vector<Party> parties;
  std::vector<Outline> outlines;  // of each party
  bool numbers_differ = false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Outline& outline = requests[i].what;
    numbers_differ |= outline.number != requests[0].what.number;
    const auto found = std::find(outlines.begin(), outlines.end(), outline);
    if (found == outlines.end()) {
      outlines.push_back(outline);
      parties.push_back({{ranks[i]}, Describe(outline)});
    } else {
      parties[static_cast<size_t>(found - outlines.begin())].ranks.push_back(ranks[i]);
    }
  }
  if (parties.size() < 2) return std::nullopt;
  for (size_t i = 0; i < parties.size(); ++i) {
    // The name itself is in the error of each of those ranks.
    if (outlines[i].name != outlines[0].name) parties[i].wants += " under another name";
    if (numbers_differ) parties[i].wants += " as number " + std::to_string(outlines[i].number);
  }
  return Error{DTRAIN_ERROR_MISMATCH, DescribeDisagreement(parties)};
}

}  // namespace dtrain::runtime
