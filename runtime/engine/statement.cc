// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/statement.h"

#include <algorithm>

namespace dtrain::runtime {
namespace {

std::string FirstOf(const PendingList& list) {
  if (list.joined) return "dtrain_join, which works with sums and averages only";
  std::string text = Describe(list.pending[0].outline);
  if (list.shape.starts_with(kRowsOf)) {
    text = text.substr(0, text.find(" of ")) + " of any number of " + list.shape;
  } else if (!list.shape.empty()) {
    text += " of shape " + list.shape;
  }
  if (!list.name.empty()) text += " \"" + list.name + "\"";
  return text;
}

// Texts may have been cut, so the hashes count too.
bool SameFirst(const PendingList& one, const PendingList& other) {
  if (one.joined || other.joined) return one.joined && other.joined;
  const Pending &a = one.pending[0], &b = other.pending[0];
  return a.signature == b.signature && a.outline == b.outline && one.name == other.name;
}

}  // namespace

std::string CompareFirst(const std::vector<PendingList>& lists, const std::vector<int>& names) {
  std::vector<const PendingList*> different;
  std::vector<Party> parties;
  for (size_t r = 0; r < lists.size(); ++r) {
    const auto found =
        std::find_if(different.begin(), different.end(),
                     [&](const PendingList* other) { return SameFirst(lists[r], *other); });
    const auto at = static_cast<size_t>(found - different.begin());
    if (found == different.end()) {
      different.push_back(&lists[r]);
      parties.push_back({{}, FirstOf(lists[r])});
    }
    parties[at].ranks.push_back(names.empty() ? static_cast<int>(r) : names[r]);
  }
  return DescribeDisagreement(parties);
}

}  // namespace dtrain::runtime
