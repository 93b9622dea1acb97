// SPDX-License-Identifier: Apache-2.0
// dtrain-agent: the wiring of its roles and nothing else.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "agent/bridge.h"
#include "agent/config.h"
#include "agent/inventory/gpu_look.h"
#include "agent/inventory/watch_process.h"
#include "agent/reap.h"
#include "agent/roles/job_roles.h"
#include "agent/serve.h"
#include "common/base/exit_code.h"
#include "common/log/log.h"
#include "common/os/crash.h"
#include "common/os/credentials.h"
#include "common/os/scheduling.h"

namespace {

constexpr char kUsage[] =
    "usage: dtrain-agent serve [FLAGS]             the resident agent of a node, for systemd\n"
    "       dtrain-agent bridge                    serve one launcher on stdin and stdout\n"
    "       dtrain-agent keep                      serve one user's jobs that outlive their "
    "connections\n"
    "       dtrain-agent shepherd                  run one job's workers (socket on fd 3)\n"
    "       dtrain-agent reap [--dry-run]          end what is left of jobs whose shepherd is "
    "gone\n"
    "       dtrain-agent pmix                      serve PMIx to a job's workers (sockets on fds 3 "
    "and 4)\n"
    "       dtrain-agent store                     serve keys and values to a job's ranks (sockets "
    "on "
    "fds 3 and 4)\n"
    "       dtrain-agent tcpstore                  serve PyTorch's store to a job's ranks (sockets "
    "on "
    "fds 3 and 4)\n"
    "       dtrain-agent gpus                      query the GPUs\n"
    "       dtrain-agent gpuwatch MS UUID...       report every MS milliseconds how the GPUs of a "
    "job are (socket on stdout)\n"
    "       dtrain-agent version\n"
    "\n"
    "bridge, keep, shepherd, pmix, store, tcpstore, gpus and gpuwatch are started by dtrain "
    "itself. "
    "A node needs no resident agent:\n"
    "with one, jobs start faster and outlive the agent.\n";

}  // namespace

int main(int argc, char** argv) {
  const std::string role = argc >= 2 ? argv[1] : "";
  dtrain::os::InterruptNobody();
  dtrain::os::WriteNoCores();
  using Level = dtrain::log::Level;
  const Level least = role == "serve" || role == "keep" ? Level::kInfo : Level::kWarning;
  dtrain::log::Init(role == "shepherd" ? "dtrain-shepherd" : "dtrain-agent",
                    getenv("DTRAIN_DEBUG") != nullptr ? Level::kDebug : least);
  if (absl::Status one = dtrain::os::CheckOneIdentity(); !one.ok()) {
    dtrain::log::Error(one.message());
    _exit(dtrain::kExitStartAgents);  // sanitizers cannot look at such a process at its end
  }
  // Slurm (--signal) gives these to all processes of a step. Programs that Spawn starts get the
  // defaults back.
  if (role != "serve") {
    (void)signal(SIGUSR1, SIG_IGN);
    (void)signal(SIGUSR2, SIG_IGN);
  }
  if (role == "bridge") {
    const std::set<std::string> flags(argv + 2, argv + argc);
    using Purpose = dtrain::agent::BridgePurpose;
    const bool one_socket = flags.count("--socket") > 0;
    Purpose purpose = Purpose::kLaunch;
    size_t purposes = 0;
    for (const auto& [flag, of] :
         {std::pair("--resume", Purpose::kResume), std::pair("--keep", Purpose::kKeep),
          std::pair("--resume-kept", Purpose::kResumeKept), std::pair("--ask", Purpose::kAsk)}) {
      if (flags.count(flag) == 0) continue;
      purpose = of;
      ++purposes;
    }
    if (purposes <= 1 && flags.size() == size_t{one_socket} + purposes) {
      return dtrain::agent::RunBridge(one_socket, purpose);
    }
  }
  if (const std::optional<int> code = dtrain::roles::RunJobRole({argv + 1, argv + argc})) {
    return *code;
  }
  if (role == "serve" && argc == 3 &&
      (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0)) {
    std::printf("%s", dtrain::agent::ConfigHelp().c_str());
    return dtrain::kExitOk;
  }
  if (role == "serve") return dtrain::agent::RunServe({argv + 2, argv + argc});
  if (role == "keep") return dtrain::agent::RunKeep({argv + 2, argv + argc});
  if (role == "gpus" && argc == 2) return dtrain::inventory::TellGpus();
  if (int period = 0;
      role == "gpuwatch" && argc > 3 && absl::SimpleAtoi(argv[2], &period) && period > 0) {
    return dtrain::inventory::WatchGpus(std::chrono::milliseconds(period), {argv + 3, argv + argc});
  }
  if (role == "reap" && (argc == 2 || (argc == 3 && strcmp(argv[2], "--dry-run") == 0))) {
    return dtrain::agent::RunReap(argc == 3);
  }
  if ((role == "version" || role == "--version") && argc == 2) {
    std::printf("dtrain-agent %s\n", DTRAIN_VERSION);
    return dtrain::kExitOk;
  }
  if ((role == "--help" || role == "-h") && argc == 2) {
    std::printf("%s\nFlags of serve:\n%s", kUsage, dtrain::agent::ConfigHelp().c_str());
    return dtrain::kExitOk;
  }
  std::fputs(kUsage, stderr);
  std::fprintf(stderr, "\nFlags of serve:\n%s", dtrain::agent::ConfigHelp().c_str());
  return dtrain::kExitUsage;
}
