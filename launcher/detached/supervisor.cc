// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/os/account.h"
#include "common/os/environment.h"
#include "common/os/find_program.h"
#include "common/os/logout.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/ourselves.h"

namespace dtrain::detached {
namespace {

// Not by PATH, which may be another user's (su, sudo).
constexpr const char* kSystemdRun[] = {"/usr/bin/systemd-run", "/bin/systemd-run",
                                       "/run/current-system/sw/bin/systemd-run"};

// What systemd takes as it is: '%' and '$' stand for something in a unit.
bool IsPlain(absl::string_view path) {
  return absl::StartsWith(path, "/") && std::all_of(path.begin(), path.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::StrContains("/._-+@,=~", c);
         });
}

bool CanBeAUnit(const SupervisorFacts& facts) {
  return !facts.systemd_run.empty() && facts.manager_runs && facts.lingers &&
         IsPlain(facts.program) && IsPlain(facts.place);
}

// It must be that of the user, who may have come by su with the variables of another.
bool ManagerRuns(uid_t user) {
  struct stat found;
  return lstat(absl::StrCat("/run/user/", user, "/systemd/private").c_str(), &found) == 0 &&
         S_ISSOCK(found.st_mode) && found.st_uid == user;
}

std::string WhatToDo(const SupervisorFacts& facts) {
  if (!facts.lingers) return "run `loginctl enable-linger`, then launch it again";
  if (facts.systemd_run.empty()) return "install systemd-run";
  if (!facts.manager_runs) {
    return absl::StrCat("lingering is enabled, but systemd's manager of ", facts.user,
                        " does not run: have `systemctl start user@", geteuid(),
                        ".service` run, then launch it again");
  }
  return absl::StrCat("keep jobs (XDG_STATE_HOME, now ", Escape(facts.place), ") and dtrain (",
                      Escape(facts.program),
                      ") in folders whose names have only letters, digits and ./_-+@,=~");
}

}  // namespace

SupervisorFacts ReadSupervisorFacts(const std::string& place) {
  SupervisorFacts facts;
  facts.place = place;
  auto program = os::ProgramPath();
  if (program.ok()) facts.program = *std::move(program);
  for (const char* path : kSystemdRun) {
    if (facts.systemd_run.empty() && access(path, X_OK) == 0) facts.systemd_run = path;
  }
  facts.manager_runs = ManagerRuns(geteuid());
  const auto account = os::FindAccount(geteuid());
  if (account.ok()) facts.user = account->name;
  facts.lingers = os::Lingers(facts.user);
  facts.ends_at_logout = os::ReadAtLogout().ends_processes;
  return facts;
}

absl::StatusOr<Supervisor> ChooseSupervisor(const SupervisorFacts& facts) {
  if (CanBeAUnit(facts)) return Supervisor::kSystemd;
  if (facts.ends_at_logout.empty()) return Supervisor::kMinder;
  return absl::FailedPreconditionError(
      absl::StrCat("this machine ends your processes when you log out (", facts.ends_at_logout,
                   "), and with them the job's launcher: ", WhatToDo(facts)));
}

std::vector<std::string> SystemdRunWords(const SupervisorFacts& facts, const JobFolder& job) {
  const std::string log = absl::StrCat("append:", job.path(), "/launcher.log");
  return {facts.systemd_run, "--user", "--quiet",
          "--collect",  // a failed unit would keep its name
          absl::StrCat("--unit=", job.id()),
          absl::StrCat("--description=launcher of the dtrain job ", job.id()),
          "--property=Type=exec",  // systemd-run fails where the program cannot be run
          // Killed or crashed. An exit code is the job's own, or one that a new try does not mend.
          "--property=Restart=on-abnormal", "--property=RestartSec=1",
          absl::StrCat("--property=StartLimitIntervalSec=",
                       std::chrono::duration_cast<std::chrono::seconds>(kRestartWindow).count()),
          absl::StrCat("--property=StartLimitBurst=", 1 + kMostRestarts),
          // SIGTERM is a stop of the job: a reboot of this machine is none.
          "--property=KillSignal=SIGKILL", "--property=WorkingDirectory=/",
          absl::StrCat("--property=StandardOutput=", log),
          absl::StrCat("--property=StandardError=", log), "--", facts.program, "resume",
          job.path()};
}

std::string UnitOf(absl::string_view cgroups, absl::string_view job_id) {
  const std::string unit = absl::StrCat(job_id, ".service");
  for (absl::string_view line : absl::StrSplit(cgroups, '\n')) {
    for (absl::string_view part : absl::StrSplit(line, '/')) {
      if (part == unit) return unit;
    }
  }
  return "";
}

std::string Supervision::Text() const {
  if (!unit.empty()) return absl::StrCat("systemd unit ", unit);
  if (minder.pid() != 0) return absl::StrCat("minder, process ", minder.pid());
  return "nobody";
}

Supervision SupervisionOf(const JobFolder& job) {
  Supervision out;
  const Standing standing = job.LastStanding();
  if (standing.launcher.generation() > 0) {
    out.restarts = (standing.launcher.generation() - 1) % kAheadOfOthers;
  }
  const auto minder = job.Minder();
  if (minder.ok() && *minder) {
    out.minder = **minder;
    out.host = out.minder.host();
    return out;
  }
  const auto holder = job.Holder();
  if (!standing.unit.empty() && holder.ok() && *holder) {
    out.unit = standing.unit;
    out.host = standing.launcher.host();
  }
  return out;
}

bool RestartLimit::OnDeath(TimePoint now) {
  restarts_.erase(std::remove_if(restarts_.begin(), restarts_.end(),
                                 [now](TimePoint at) { return at <= now - kRestartWindow; }),
                  restarts_.end());
  if (restarts_.size() >= kMostRestarts) return false;
  restarts_.push_back(now);
  return true;
}

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
