// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "common/base/clock.h"

namespace dtrain::elastic {

// When rank 0 is told that the hosts have changed. Pure. Horovod takes a notice only if its
// timestamp is greater than that of the last one it acted on, and may lose one that comes while it
// resets: the same is sent again for as long as it is due.
class Notices {
 public:
  // Of the round before, nothing is due any more.
  void OnRound();
  // Whether there is something to tell.
  void SetDue(bool due);
  bool MaySend(TimePoint now) const { return due_ && !on_its_way_ && now >= next_; }
  // It is sent now, with this timestamp.
  uint32_t Send();
  // True: it has failed so often that the user should know; once.
  bool OnDone(TimePoint now, uint32_t timestamp, bool delivered);
  TimePoint NextDeadline() const { return due_ && !on_its_way_ ? next_ : kNever; }

 private:
  bool due_ = false;
  bool on_its_way_ = false;
  bool numbered_ = false;   // in this round
  uint32_t timestamp_ = 0;  // one for each round in which something is due
  uint32_t delivered_ = 0;  // times, in this round
  uint32_t failed_ = 0;     // in a row
  bool warned_ = false;
  TimePoint next_ = TimePoint::min();
};

}  // namespace dtrain::elastic
