// SPDX-License-Identifier: Apache-2.0
#include "agent/auth/places.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dtrain::auth {

Places::Places(const Limits& limits)
    : taken_{{limits.handshake, 0, {}},
             {limits.tls, 0, {}},
             {limits.unix_socket, 0, {}},
             {limits.lookup, 0, {}},
             {limits.kept, 0, {}}} {}

void Places::Ticket::Leave() {
  Places* places = places_.release();
  if (places == nullptr) return;
  Taken& pool = places->taken_[pool_];
  --pool.all;
  auto mine = pool.by.find(of_);
  if (--mine->second == 0) pool.by.erase(mine);
}

absl::StatusOr<Places::Ticket> Places::TakeFrom(int pool, size_t most, const std::string& of) {
  Taken& taken = taken_[pool];
  const auto mine = taken.by.find(of);
  const size_t of_one = mine == taken.by.end() ? 0 : mine->second;
  if (taken.all >= most || of_one >= taken.limit.of_one) {
    return absl::ResourceExhaustedError(absl::StrCat("it has ", of_one, " connections of ",
                                                     taken.all, " here; the limits are ",
                                                     taken.limit.of_one, " and ", most));
  }
  ++taken.all;
  ++taken.by[of];
  Ticket out;
  out.places_.reset(this);
  out.pool_ = pool;
  out.of_ = of;
  return out;
}

absl::StatusOr<Places::Ticket> Places::Take(Pool pool, const std::string& of, Rank rank) {
  const int number = static_cast<int>(pool);
  auto ticket = TakeFrom(number, taken_[number].limit.all, of);
  if (ticket.ok() || rank == Rank::kOrdinary) return ticket;
  const size_t kept = taken_[kKept].limit.all;
  auto spare = TakeFrom(kKept, rank == Rank::kAdmin ? kept : kept / 2, of);
  return spare.ok() ? std::move(spare) : std::move(ticket);
}

std::string Places::WhoIsToYield(Pool pool, const std::string& of) const {
  const Taken& taken = taken_[static_cast<int>(pool)];
  const auto mine = taken.by.find(of);
  const size_t of_one = mine == taken.by.end() ? 0 : mine->second;
  if (of_one >= taken.limit.of_one) return of;
  if (taken.all < taken.limit.all || taken.by.empty()) return "";
  const auto most =
      std::max_element(taken.by.begin(), taken.by.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (of_one < most->second) return most->first;
  return of_one > 0 ? of : "";
}

}  // namespace dtrain::auth
