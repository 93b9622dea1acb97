// SPDX-License-Identifier: Apache-2.0
#include "common/os/leave.h"

#include <unistd.h>

#include <cstdio>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace dtrain::os {

void Leave(int exit_code) {
  std::fflush(stdout);
  std::fflush(stderr);
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();
#endif
  _exit(exit_code);
}

}  // namespace dtrain::os
