// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/run_shepherd.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>

#include <string>
#include <utility>

#include "agent/shepherd/shepherd.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/os/process_tree.h"
#include "common/os/signals.h"

namespace dtrain::shepherd {

int RunShepherd(int socket_fd, std::string agent) {
  fcntl(socket_fd, F_SETFD, FD_CLOEXEC);
  os::FailWritesWithoutSignals();
  prctl(PR_SET_NAME, "dtrain-shepherd");  // else "exe", in ps, top and at a shutdown
  absl::Status subreaper = os::BecomeSubreaper();
  if (!subreaper.ok()) log::Warn(std::string(subreaper.message()));
  loop::Loop loop;
  Shepherd shepherd(loop, std::move(agent), os::UniqueFd(socket_fd));
  loop.Run();
  // All is over: a signal that comes now must not make it look like a death.
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  return 0;
}

}  // namespace dtrain::shepherd
