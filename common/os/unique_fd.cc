// SPDX-License-Identifier: Apache-2.0
#include "common/os/unique_fd.h"

#include <unistd.h>

namespace dtrain::os {

void UniqueFd::Reset(int fd) {
  int old = std::exchange(fd_, fd);
  if (old >= 0) close(old);
}

}  // namespace dtrain::os
