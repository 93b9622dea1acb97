// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/seats.h"

#include <algorithm>
#include <iterator>

namespace dtrain::job {

std::vector<NodeId> Seated(const std::vector<NodeId>& present,
                           const std::vector<std::optional<NodeId>>& seats) {
  std::vector<NodeId> coming;
  std::copy_if(present.begin(), present.end(), std::back_inserter(coming), [&seats](NodeId node) {
    return std::find(seats.begin(), seats.end(), node) == seats.end();
  });
  std::vector<NodeId> seated;
  auto next = coming.begin();
  for (const std::optional<NodeId>& seat : seats) {
    if (seat && std::find(present.begin(), present.end(), *seat) != present.end()) {
      seated.push_back(*seat);
    } else if (next != coming.end()) {
      seated.push_back(*next++);
    }
  }
  seated.insert(seated.end(), next, coming.end());
  return seated;
}

}  // namespace dtrain::job
