// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/departure.h"

namespace dtrain::shepherd {
namespace {

// For an agent that is restarted this is enough. When the machine goes down none comes, and its
// service manager waits for all processes.
constexpr Duration kGoingDownLimit = std::chrono::seconds(5);
// An agent that takes nothing more has been given up by its launcher.
constexpr Duration kSaidLimit = std::chrono::seconds(30);

}  // namespace

void Departure::Hurry() {
  hurried_ = true;
  if (leaving_) line_.WaitAtMost(kGoingDownLimit);
}

void Departure::Leave() {
  leaving_ = true;
  // Given up while there still is an agent, why must reach it.
  if (line_.lost()) return LeaveOnceSaid();
  if (line_.kept() != nullptr) {
    if (hurried_) line_.WaitAtMost(kGoingDownLimit);
    return;
  }
  // It waits for as long as there is an agent to read it.
  logs_.WhenAllDelivered([this] { LeaveOnceSaid(); });
}

void Departure::LeaveOnceSaid() {
  line_.WhenSaid([this] { loop_.Stop(); });
  limit_.After(kSaidLimit, [this] { loop_.Stop(); });
}

}  // namespace dtrain::shepherd
