// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/job/cluster.h"

namespace dtrain::job {
namespace {

using testing::ElementsAre;
using Seats = std::vector<std::optional<NodeId>>;

std::vector<uint32_t> After(const std::vector<uint32_t>& present, const Seats& seats) {
  std::vector<NodeId> nodes;
  for (const uint32_t node : present) nodes.emplace_back(node);
  std::vector<uint32_t> seated;
  for (const NodeId node : Seated(nodes, seats)) seated.push_back(node.value());
  return seated;
}

TEST(Seats, WithoutAnyTheListHasTheOrder) {
  EXPECT_THAT(After({0, 2, 3}, {}), ElementsAre(0, 2, 3));
}

TEST(Seats, ASpareTakesThePlaceOfTheOneThatIsGone) {
  const Seats seats = {NodeId(0), std::nullopt, NodeId(1), NodeId(2)};
  EXPECT_THAT(After({0, 1, 2, 3}, seats), ElementsAre(0, 3, 1, 2));
  // It may be in the list, and not there.
  EXPECT_THAT(After({0, 2, 3}, {NodeId(0), NodeId(1), NodeId(2)}), ElementsAre(0, 3, 2));
}

TEST(Seats, OneThatIsBackComesLast) {
  EXPECT_THAT(After({0, 1, 2, 3}, {NodeId(0), NodeId(3), NodeId(2)}), ElementsAre(0, 3, 2, 1));
}

TEST(Seats, WhereNobodyComesOthersCloseUp) {
  EXPECT_THAT(After({0, 2}, {NodeId(0), NodeId(1), NodeId(2)}), ElementsAre(0, 2));
  EXPECT_THAT(After({}, {NodeId(0)}), ElementsAre());
}

}  // namespace
}  // namespace dtrain::job
