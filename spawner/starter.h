// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <string>

#include "spawner/children.h"
#include "spawner/policy.h"
#include "spawner/protocol.h"

namespace dtrain::spawner {

// What a starter, a child in the job's cgroup, is to become.
struct Start {
  const Account& account;
  const std::string& program;
  int cgroup, words, link, lease;  // fds: a directory; the shepherd's 2, 3 and 4
  rlimit files;                    // RLIMIT_NOFILE
};

// What failed, as it is written to the report pipe; that closes without it when the program runs.
struct StartReport {
  Stage stage{};
  int32_t error = 0;
};

// False: errno says why. `report` is non-blocking.
bool StartShepherd(const Start& start, Fd* pidfd, Fd* report);

}  // namespace dtrain::spawner
