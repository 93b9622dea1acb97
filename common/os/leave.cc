// SPDX-License-Identifier: Apache-2.0
#include "common/os/leave.h"

#include <unistd.h>

#include <cstdio>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>

// What gRPC's threads hold at the moment, as they are not waited for: those it starts and those
// that end. What we give it is made by operator new.
extern "C" const char* __lsan_default_suppressions() { return "leak:gpr_malloc\n"; }
// Tests take each word of a sanitizer for a failure.
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }
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
