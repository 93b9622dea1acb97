// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "agent/shepherd/workers.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"

namespace dtrain::shepherd {

// SIGUSR1 and SIGUSR2, for the workers. Slurm (--signal) may give one to the launcher, to our agent
// and to every process here: the workers get it once. Loop thread.
class UserSignals {
 public:
  enum class From {
    kLauncher,
    kAgent,   // our parent, which got it and waited a moment
    kOthers,  // they have signalled us, and the workers, too
  };
  UserSignals(loop::Loop& loop, Workers& workers) : loop_(loop), workers_(workers) {}
  UserSignals(const UserSignals&) = delete;
  UserSignals& operator=(const UserSignals&) = delete;

  void Take(int signal, From from);

 private:
  struct Taken {
    From from;
    TimePoint at;
  };
  loop::Loop& loop_;
  Workers& workers_;
  std::optional<Taken> usr1_, usr2_;  // the last ones
};

}  // namespace dtrain::shepherd
