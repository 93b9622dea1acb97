// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <vector>

namespace dtrain::shepherd {

// A process, as far as it matters who of a rank gets SIGTERM.
struct Kin {
  pid_t pid = 0;
  pid_t parent = 0;
  bool catches = false;   // has a handler for SIGTERM
  bool is_shell = false;  // runs its handler only when the command that it waits for has ended
};

// Who of a rank's processes can act on a SIGTERM, `rank` being its first one: that one, if it has a
// handler, or else those below it that do, with all processes that lead to them. Processes beside
// and below those are helpers (DataLoader workers, `tee`, a queue's feeder): their end would keep
// a program from saving. A shell leads to the command that it waits for. Empty: nobody can act, and
// SIGTERM is for all of the rank's process group. Pure.
std::vector<pid_t> WhoActs(pid_t rank, const std::vector<Kin>& all);

}  // namespace dtrain::shepherd
