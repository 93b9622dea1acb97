// SPDX-License-Identifier: Apache-2.0
// The values are those that Horovod's get_host_assignments gives for the same hosts.
#include "launcher/elastic/seats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::elastic {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// As Horovod's client reads them: rank,size,local_rank,local_size,cross_rank,cross_size.
std::vector<std::string> Lines(const HostSeats& seats) {
  std::vector<std::string> lines;
  for (const v1::Seat& seat : seats) {
    lines.push_back(absl::StrCat(seat.rank(), ",", seat.size(), ",", seat.local_rank(), ",",
                                 seat.local_size(), ",", seat.cross_rank(), ",",
                                 seat.cross_size()));
  }
  return lines;
}

TEST(SeatsTest, OneHost) {
  EXPECT_THAT(Lines(Assign({2}, {})[0]), ElementsAre("0,2,0,2,0,1", "1,2,1,2,0,1"));
}

TEST(SeatsTest, HostsAlike) {
  const std::vector<HostSeats> hosts = Assign({2, 2}, 4);
  EXPECT_THAT(Lines(hosts[0]), ElementsAre("0,4,0,2,0,2", "1,4,1,2,0,2"));
  EXPECT_THAT(Lines(hosts[1]), ElementsAre("2,4,0,2,1,2", "3,4,1,2,1,2"));
}

TEST(SeatsTest, AHostWithFewerSlotsIsMissingFromTheHigherLocalRanks) {
  const std::vector<HostSeats> hosts = Assign({3, 1, 2}, {});
  EXPECT_THAT(Lines(hosts[0]), ElementsAre("0,6,0,3,0,3", "1,6,1,3,0,2", "2,6,2,3,0,1"));
  EXPECT_THAT(Lines(hosts[1]), ElementsAre("3,6,0,1,1,3"));
  EXPECT_THAT(Lines(hosts[2]), ElementsAre("4,6,0,2,2,3", "5,6,1,2,1,2"));
}

TEST(SeatsTest, AFirstHostWithFewerSlots) {
  const std::vector<HostSeats> hosts = Assign({1, 3}, {});
  EXPECT_THAT(Lines(hosts[0]), ElementsAre("0,4,0,1,0,2"));
  EXPECT_THAT(Lines(hosts[1]), ElementsAre("1,4,0,3,1,2", "2,4,1,3,0,1", "3,4,2,3,0,1"));
}

TEST(SeatsTest, TheMostCutsAHost) {
  const std::vector<HostSeats> hosts = Assign({2, 4, 2}, 5);
  ASSERT_EQ(hosts.size(), 3U);
  EXPECT_THAT(Lines(hosts[0]), ElementsAre("0,5,0,2,0,2", "1,5,1,2,0,2"));
  EXPECT_THAT(Lines(hosts[1]), ElementsAre("2,5,0,3,1,2", "3,5,1,3,1,2", "4,5,2,3,0,1"));
  EXPECT_THAT(hosts[2], IsEmpty());
}

TEST(SeatsTest, NoHostsAndNoSlots) {
  EXPECT_THAT(Assign({}, 3), IsEmpty());
  EXPECT_THAT(Assign({2, 2}, 0), ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_THAT(Lines(Assign({0, 1}, {})[1]), ElementsAre("0,1,0,1,0,1"));
}

TEST(SeatsTest, SameSeesEachNumber) {
  const HostSeats seats = Assign({2, 1}, {})[0];
  EXPECT_TRUE(Same(seats, seats));
  EXPECT_FALSE(Same(seats, {}));
  for (int field = 0; field < 6; ++field) {
    HostSeats other = seats;
    if (field == 0) other[1].set_rank(9);
    if (field == 1) other[1].set_size(9);
    if (field == 2) other[1].set_local_rank(9);
    if (field == 3) other[1].set_local_size(9);
    if (field == 4) other[1].set_cross_rank(9);
    if (field == 5) other[1].set_cross_size(9);
    EXPECT_FALSE(Same(seats, other)) << field;
  }
}

}  // namespace
}  // namespace dtrain::elastic
