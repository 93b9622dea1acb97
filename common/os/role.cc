// SPDX-License-Identifier: Apache-2.0
#include "common/os/role.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "common/os/signals.h"

namespace dtrain::os {

void BeginRole(const char* name, std::initializer_list<int> descriptors) {
  for (const int fd : descriptors) fcntl(fd, F_SETFD, FD_CLOEXEC);
  FailWritesWithoutSignals();
  prctl(PR_SET_NAME, name);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace dtrain::os
