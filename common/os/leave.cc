// SPDX-License-Identifier: Apache-2.0
#include "common/os/leave.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "common/base/posix_error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>

// What gRPC's threads hold at the moment, as they are not waited for: those it starts and those
// that end. What we give it is made by operator new.
extern "C" const char* __lsan_default_suppressions() { return "leak:gpr_malloc\n"; }
// Tests take each word of a sanitizer for a failure.
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }
#endif

namespace dtrain::os {

absl::Status FinishStdout() {
  const bool failed_before = std::ferror(stdout) != 0;
  const int error = std::fflush(stdout) == 0 ? 0 : errno;
  if (error == 0 && !failed_before) return absl::OkStatus();
  pollfd reader{STDOUT_FILENO, 0, 0};
  const bool reader_left = poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0;
  if (error == EPIPE || reader_left) return absl::OkStatus();
  if (error != 0) return PosixError(error, "write to stdout");
  return absl::DataLossError(
      "write to stdout: not all of it was taken; see whether its disk is full");
}

void Leave(int exit_code) {
  std::fflush(stdout);
  std::fflush(stderr);
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();
#endif
  _exit(exit_code);
}

}  // namespace dtrain::os
