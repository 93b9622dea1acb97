// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic/seats.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace dtrain::elastic {
namespace {

bool SameSeat(const v1::Seat& left, const v1::Seat& right) {
  return left.rank() == right.rank() && left.size() == right.size() &&
         left.local_rank() == right.local_rank() && left.local_size() == right.local_size() &&
         left.cross_rank() == right.cross_rank() && left.cross_size() == right.cross_size();
}

}  // namespace

std::vector<HostSeats> Assign(const std::vector<uint32_t>& slots, std::optional<uint32_t> most) {
  uint32_t left = most.value_or(std::numeric_limits<uint32_t>::max());
  uint32_t rank = 0;
  std::vector<HostSeats> hosts;
  std::vector<uint32_t> cross;  // by local rank: hosts that have it
  for (const uint32_t wanted : slots) {
    const uint32_t given = std::min(wanted, left);
    left -= given;
    if (cross.size() < given) cross.resize(given);
    HostSeats seats(given);
    for (uint32_t local = 0; local < given; ++local) {
      seats[local].set_rank(rank++);
      seats[local].set_local_rank(local);
      seats[local].set_local_size(given);
      seats[local].set_cross_rank(cross[local]++);
    }
    hosts.push_back(std::move(seats));
  }
  for (HostSeats& seats : hosts) {
    for (v1::Seat& seat : seats) {
      seat.set_size(rank);
      seat.set_cross_size(cross[seat.local_rank()]);
    }
  }
  return hosts;
}

bool Same(const HostSeats& left, const HostSeats& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), SameSeat);
}

}  // namespace dtrain::elastic
