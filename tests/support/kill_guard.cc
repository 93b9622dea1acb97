// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

// In place of the C library's, in all tests: a pid that was never set would end the tests' own
// process group, ctest with it, or as root everything on the machine.
extern "C" int kill(pid_t pid, int signal) {
  if (pid == 0 || pid == -1) {
    constexpr char kWhy[] = "a test sends a signal to process 0 or -1: its pid was not set\n";
    (void)!write(STDERR_FILENO, kWhy, sizeof(kWhy) - 1);
    abort();
  }
  using Kill = int (*)(pid_t, int);
  static const auto next = reinterpret_cast<Kill>(dlsym(RTLD_NEXT, "kill"));
  return next(pid, signal);
}
