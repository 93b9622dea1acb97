// SPDX-License-Identifier: Apache-2.0
// dtrain-shepherd: what runs as a job's user where root's spawner starts it. It is a program of its
// own because it starts faster than the whole agent, and because it is installed unreadable: such
// a process can be neither traced nor robbed of its descriptors by its user's other processes.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/roles/job_roles.h"
#include "common/base/exit_code.h"
#include "common/log/log.h"
#include "common/os/crash.h"
#include "common/os/credentials.h"
#include "common/os/scheduling.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  dtrain::os::InterruptNobody();
  dtrain::os::WriteNoCores();
  dtrain::log::Init("dtrain-shepherd", getenv("DTRAIN_DEBUG") != nullptr
                                           ? dtrain::log::Level::kDebug
                                           : dtrain::log::Level::kWarning);
  if (absl::Status one = dtrain::os::CheckOneIdentity(); !one.ok()) {
    dtrain::log::Error(one.message());
    _exit(dtrain::kExitStartAgents);  // sanitizers cannot look at such a process at its end
  }
  if (const std::optional<int> code = dtrain::roles::RunJobRole(words)) return *code;
  if (words == std::vector<std::string>{"version"}) {
    std::printf("dtrain-shepherd %s\n", DTRAIN_VERSION);
    return dtrain::kExitOk;
  }
  std::fputs(
      "dtrain-shepherd runs the workers of one job. dtrain-spawner starts it; see man "
      "dtrain-agent.\n",
      stderr);
  return dtrain::kExitUsage;
}
