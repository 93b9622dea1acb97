// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "common/base/clock.h"
#include "common/loop/loop.h"

namespace dtrain::shepherd {

// How long a shepherd is without an agent, and how long it may be. Only time counts in which this
// process runs. Loop thread.
class AgentAbsence {
 public:
  // `on_over`: no agent has come in time. On the loop, from none of the methods.
  AgentAbsence(loop::Loop& loop, loop::Task on_over);
  AgentAbsence(const AgentAbsence&) = delete;
  AgentAbsence& operator=(const AgentAbsence&) = delete;

  // There is none from now on, and the next has so long.
  void Begin(Duration lease);
  // One is there, or none will come.
  void End();
  // In this absence, from now on, and in each later one the next has so long at most. What was said
  // first holds.
  void LimitTo(Duration limit);

 private:
  void Look();

  loop::Loop& loop_;
  loop::Task on_over_;
  loop::Timer timer_;
  bool lasts_ = false;
  Duration lease_ = Duration::zero();
  TimePoint since_{};
  std::optional<Duration> limit_;
  TimePoint limited_since_{};
};

}  // namespace dtrain::shepherd
