// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/ourselves.h"

#include <unistd.h>

#include "absl/time/clock.h"
#include "common/os/process_tree.h"

namespace dtrain::detached {

v1::Launcher Ourselves() {
  v1::Launcher self;
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) self.set_host(host);
  self.set_boot_id(os::BootId());
  self.set_pid(static_cast<uint32_t>(getpid()));
  self.set_start_time(os::StartTime(getpid()).value_or(0));
  self.set_unix_nanos(absl::GetCurrentTimeNanos());
  return self;
}

bool IsHere(const v1::Launcher& process) {
  return process.pid() != 0 && !process.boot_id().empty() && process.boot_id() == os::BootId() &&
         os::StartTime(static_cast<pid_t>(process.pid())) == process.start_time();
}

bool IsSameProcess(const v1::Launcher& a, const v1::Launcher& b) {
  return a.pid() == b.pid() && a.start_time() == b.start_time() && a.boot_id() == b.boot_id() &&
         a.host() == b.host();
}

}  // namespace dtrain::detached
