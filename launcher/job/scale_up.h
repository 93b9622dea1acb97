// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/clock.h"

namespace dtrain::job {

// Whether a job that goes on without some of its hosts is to be started again with them
// (--scale-up): which hosts are absent, since when they can be reached again, and whether the
// program has written a checkpoint since then. Pure: a part of CampaignCore.
class ScaleUp {
 public:
  enum class Next { kNothing, kLookAtCheckpoint, kRestart };

  // Hosts must be back for `after`; zero: nothing is ever looked for.
  ScaleUp(Duration after, size_t hosts);

  // An attempt runs on `present`. `usable`: by host, whether the job may use it. `most`: it has use
  // for so many.
  void Begin(const std::vector<uint32_t>& present, const std::vector<bool>& usable, uint32_t most);
  // It ends.
  void End();
  void OnHost(TimePoint now, uint32_t host, bool reachable);
  // The answer to kLookAtCheckpoint. Ignored if too few hosts are back by now.
  void OnCheckpoint(TimePoint now, bool newer);
  // What is due. After kRestart the attempt is to be ended.
  Next Decide(TimePoint now);
  TimePoint NextDeadline() const;

  // To be looked for.
  std::vector<uint32_t> absent() const;
  // Those that had been there for long enough when a look or a restart was decided.
  const std::vector<uint32_t>& back() const { return back_; }
  uint32_t nodes() const { return nodes_; }  // after that restart

 private:
  struct Host {
    bool absent = false;
    TimePoint since = kNever;  // it is back
    int tries = 0;             // restarts for its sake that it has not joined
  };
  TimePoint ReadyAt(const Host& host) const;
  TimePoint ReadyAt() const;  // as many as are needed; kNever: too few are back

  const Duration after_;
  std::vector<Host> hosts_;
  uint32_t wanted_ = 0;  // so many of the absent ones; 0: the job has all it may, or none runs
  uint32_t nodes_ = 0;
  bool has_checkpoint_ = false;           // written since the hosts are back
  TimePoint look_at_ = TimePoint::min();  // at its checkpoint, next
  std::vector<uint32_t> back_;
};

}  // namespace dtrain::job
