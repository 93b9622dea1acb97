// SPDX-License-Identifier: Apache-2.0
// dtrain: what comes before its subcommands, and nothing else.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/exit_code.h"
#include "common/log/log.h"
#include "common/os/crash.h"
#include "common/os/heap.h"
#include "common/os/leave.h"
#include "common/os/scheduling.h"
#include "launcher/detached/supervisor.h"
#include "launcher/faces/face.h"
#include "launcher/launch.h"
#include "launcher/subcommands/subcommands.h"

namespace {

// Opens descriptors 0, 1 and 2 on /dev/null where they were closed. Otherwise the next descriptor
// would become our stdin or stdout, and the first ones are opened by static initialisers of
// libraries: so this runs before all of them, and before a sanitizer is ready.
__attribute__((no_sanitize("address", "undefined", "thread"))) void OpenStandardFds(int, char**,
                                                                                    char**) {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (syscall(SYS_fcntl, fd, F_GETFD) < 0) syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
  }
}
__attribute__((section(".preinit_array"), used)) void (*const kOpenFirst)(int, char**,
                                                                          char**) = OpenStandardFds;

// A link to us of another launcher's name is that launcher.
std::vector<std::string> Words(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const absl::string_view program = argv[0];
  const absl::string_view name = program.substr(program.rfind('/') + 1);
  if (dtrain::faces::Find(name) != nullptr) words.insert(words.begin(), std::string(name));
  return words;
}

// What it prints does not count unless it arrives.
int CodeWithOutput(int code) {
  const absl::Status written = dtrain::os::FinishStdout();
  if (written.ok()) return code;
  std::fprintf(stderr, "dtrain: %s\n", std::string(written.message()).c_str());
  return code == dtrain::kExitOk ? dtrain::kExitState : code;
}

}  // namespace

int main(int argc, char** argv) {
  // Before anything that takes memory.
  if (argc == 3 && absl::string_view(argv[1]) == dtrain::detached::kMinderWord) {
    dtrain::os::Leave(dtrain::detached::RunMinder(argv[2]));
  }
  dtrain::os::InterruptNobody();
  dtrain::os::WriteNoCores();
  dtrain::os::ReuseBuffers();
  dtrain::log::Init("dtrain", std::getenv("DTRAIN_DEBUG") != nullptr
                                  ? dtrain::log::Level::kDebug
                                  : dtrain::log::Level::kWarning);
  const dtrain::subcommands::Program program{
      {DTRAIN_VERSION, DTRAIN_DATE}, dtrain::Launch, dtrain::RunLauncher};
  dtrain::os::Leave(CodeWithOutput(dtrain::subcommands::Run(program, Words(argc, argv))));
}
