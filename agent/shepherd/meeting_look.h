// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/shepherd_core.h"
#include "agent/shepherd/workers.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Looks now and then for ranks that try in vain to meet the others on their own machine, while the
// rank that they look for is elsewhere: the program has set MASTER_ADDR to localhost. Tells the
// launcher once. Loop thread.
class MeetingLook {
 public:
  // `core`: it looks while workers run. `part`: of the job, here before Begin. All must stay.
  MeetingLook(loop::Loop& loop, const ShepherdCore& core, const v1::JobPart& part,
              const Workers& workers, LauncherLine& launcher)
      : core_(core), part_(part), workers_(workers), launcher_(launcher), timer_(loop) {}

  void Begin();  // the workers run

 private:
  struct Tries {
    pid_t process = 0;  // the rank's own, or one below it
    uint16_t port = 0;  // its own, of the last that has failed
    int looks = 0;      // each with another one
  };
  void Look();
  void LookAt(uint32_t rank, pid_t process);
  void Tell(const std::vector<uint32_t>& ranks);

  const ShepherdCore& core_;
  const v1::JobPart& part_;
  const Workers& workers_;
  LauncherLine& launcher_;
  loop::Timer timer_;
  TimePoint begun_{};
  std::map<uint32_t, Tries> tries_;  // by rank
};

}  // namespace dtrain::shepherd
