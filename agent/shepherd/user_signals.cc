// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/user_signals.h"

#include <signal.h>

#include <chrono>

namespace dtrain::shepherd {
namespace {

// One that has come by two ways comes by both within this.
constexpr Duration kBothWays = std::chrono::seconds(5);

}  // namespace

void UserSignals::Take(int signal, From from) {
  std::optional<Taken>& last = signal == SIGUSR1 ? usr1_ : usr2_;
  const TimePoint now = loop_.Now();
  if (last && last->from != from && now - last->at < kBothWays) return;
  last = Taken{from, now};
  if (from != From::kOthers) workers_.PassOn(signal);
}

}  // namespace dtrain::shepherd
