// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/base/clock.h"

// Which hosts an elastic job may use, and in which order. Pure. Outlives the job's attempts.
namespace dtrain::elastic {

struct HostSlots {
  std::string host;
  uint32_t slots = 0;
  bool operator==(const HostSlots&) const = default;
};

// For how long a host at which something has failed is not used: --cool-down.
struct CoolDown {
  Duration low;
  Duration high;
};

// What a list of hosts has changed: Horovod's HostUpdateResult, whose values may be combined.
using HostChange = uint8_t;
inline constexpr HostChange kNoChange = 0;
inline constexpr HostChange kHostsRemoved = 1;
inline constexpr HostChange kHostsAdded = 2;

class HostBook {
 public:
  // Without a range a denied host is never used again.
  HostBook(std::optional<CoolDown> range, uint64_t seed);

  // All hosts that are there. A host without slots is not. Of one named twice the last number
  // counts. Hosts keep their order; new ones follow, in that of the list.
  HostChange Found(TimePoint now, const std::vector<HostSlots>& hosts);
  // Hosts whose time is over are used again, after all others.
  HostChange OnTime(TimePoint now);

  // Something has failed there: it is not used for low × 2^n and up to `low` more, n counting such
  // times from 1, and not for longer than `high`. While that runs, a failure does not prolong it.
  // Nor is the host used before `not_before`, when the workers of a lost one have ended.
  void Deny(TimePoint now, const std::string& host, TimePoint not_before);
  // Not a failure.
  void NotBefore(TimePoint now, const std::string& host, TimePoint at);

  // Another attempt begins, with nothing of the last: hosts that were denied for ever get another
  // chance.
  void OnAttempt();

  std::vector<HostSlots> usable() const;
  // Usable or not, by name.
  const std::map<std::string, uint32_t>& found() const { return slots_; }
  bool IsDeniedForEver(const std::string& host) const;
  TimePoint NextDeadline() const;

 private:
  struct Denial {
    uint32_t times = 0;
    bool denied = false;
    TimePoint cool_until = TimePoint::min();
    TimePoint dead_at = TimePoint::min();
    TimePoint until() const { return cool_until > dead_at ? cool_until : dead_at; }
  };

  Duration Wait(uint32_t times);

  std::optional<CoolDown> range_;
  std::mt19937_64 random_;
  std::map<std::string, uint32_t> slots_;  // of the hosts that are there
  std::vector<std::string> listed_;        // these, as the last list had them
  std::vector<std::string> order_;         // the usable ones
  std::map<std::string, Denial> denials_;  // of hosts that were denied at some time
};

}  // namespace dtrain::elastic
