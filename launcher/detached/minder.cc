// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/minder.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/exit_code.h"
#include "common/os/environment.h"
#include "common/os/pidfd.h"
#include "common/os/program_path.h"
#include "common/os/spawn.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/ourselves.h"
#include "launcher/detached/supervisor.h"

namespace dtrain::detached {
namespace {

// One that is killed as soon as it runs is not started faster than that.
constexpr std::chrono::milliseconds kBeforeRestart(200);

// In one piece: the launcher writes to the same file.
void SayInLog(absl::string_view text) {
  const std::string line = absl::StrCat("dtrain: ", text, "\n");
  (void)!write(STDERR_FILENO, line.data(), line.size());
}

absl::StatusOr<os::ExitStatus> RunOnce(const JobFolder& job) {
  os::SpawnSpec spec;
  // The same build, also when a newer one was installed meanwhile.
  spec.argv = {os::SameProgram(), "resume", job.path()};
  spec.env = os::OwnEnvironment();
  spec.working_directory = "/";
  spec.stdout_fd = STDOUT_FILENO;
  spec.stderr_fd = STDERR_FILENO;
  spec.new_session = true;
  const auto child = os::Spawn(spec);
  if (!child.ok()) return child.status();
  return os::WaitAndReap(child->pidfd.get());
}

}  // namespace

int RunMinder(const std::string& folder) {
  // Of terminals it knows nothing; SIGTERM ends it, as any process.
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2}) {
    signal(number, SIG_IGN);
  }
  const JobFolder job(folder);
  const auto lock = job.LockAsMinder(Ourselves());
  if (absl::IsUnavailable(lock.status())) return kExitOk;  // there is one
  if (!lock.ok()) {
    SayInLog(absl::StrCat("minder: ", lock.status().message(),
                          ": the launcher is not started; `dtrain attach ", job.id(),
                          "` tries again"));
    return kExitState;
  }
  RestartLimit limit;
  for (;;) {
    const auto ended = RunOnce(job);
    if (!ended.ok()) {
      SayInLog(absl::StrCat("minder: start the launcher of ", job.id(), ": ",
                            ended.status().message(), "; `dtrain attach ", job.id(),
                            "` tries again"));
      return kExitState;
    }
    // Its own end: the job's, or one for which it has said why and that a new try does not mend.
    if (ended->signal == 0) return kExitOk;
    if (!limit.OnDeath(Clock::now())) {
      SayInLog(absl::StrCat(
          "minder: the launcher of ", job.id(), " was killed by signal ", ended->signal, ", and ",
          kMostRestarts, " times before within ",
          std::chrono::duration_cast<std::chrono::minutes>(kRestartWindow).count(),
          " minutes: it is not started again; `dtrain attach ", job.id(), "` continues the job"));
      return kExitState;
    }
    SayInLog(absl::StrCat("minder: the launcher of ", job.id(), " was killed by signal ",
                          ended->signal, ": starting it again (", limit.restarts(), " of ",
                          kMostRestarts, ")"));
    poll(nullptr, 0, static_cast<int>(kBeforeRestart.count()));
  }
}

}  // namespace dtrain::detached
