// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/start.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/os/environment.h"
#include "common/os/find_program.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"
#include "launcher/detached/ourselves.h"
#include "launcher/detached/supervisor.h"

namespace dtrain::detached {
namespace {

constexpr int kBetweenLooksMs = 20;
// systemd starts one again after a second.
constexpr Duration kSystemdGap = std::chrono::seconds(4);
constexpr Duration kSystemdPatience = std::chrono::seconds(10);
constexpr int kBetweenBeatsMs = 200;

absl::StatusOr<os::UniqueFd> OpenLog(const JobFolder& job) {
  const std::string path = absl::StrCat(job.path(), "/launcher.log");
  os::UniqueFd log(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log) return PosixError(errno, absl::StrCat("open ", path));
  return log;
}

absl::StatusOr<os::UniqueFd> StartMinder(const JobFolder& job, const os::UniqueFd& log) {
  os::SpawnSpec spec;
  spec.argv = {os::SameProgram(), kMinderWord, job.path()};
  spec.env = os::OwnEnvironment();
  spec.working_directory = "/";
  spec.stdout_fd = log.get();
  spec.stderr_fd = log.get();
  spec.new_session = true;
  auto child = os::Spawn(spec);
  if (!child.ok()) return child.status();
  return std::move(child->pidfd);
}

// It waits for systemd, not for the job's folder.
bool EndsInTime(int pidfd, Beat beat) {
  const TimePoint end = Clock::now() + kSystemdPatience;
  do {
    pollfd ended{pidfd, POLLIN, 0};
    if (poll(&ended, 1, kBetweenBeatsMs) > 0) return true;
    beat();
  } while (Clock::now() < end);
  return false;
}

// What it has to say of a failure is in the log.
bool StartAsUnit(const JobFolder& job, const os::UniqueFd& log, Beat beat) {
  os::SpawnSpec spec;
  spec.argv = SystemdRunWords(ReadSupervisorFacts(job.path()), job);
  // Our own might lead it to the manager of another user.
  spec.env = {absl::StrCat("XDG_RUNTIME_DIR=/run/user/", geteuid()), "PATH=/usr/bin:/bin",
              "LC_ALL=C"};
  spec.working_directory = "/";
  spec.stdout_fd = log.get();
  spec.stderr_fd = log.get();
  const auto child = os::Spawn(spec);
  if (!child.ok()) return false;
  const bool ends = EndsInTime(child->pidfd.get(), beat);
  if (!ends) (void)os::SendSignal(child->pidfd.get(), SIGKILL);
  const auto status = os::WaitAndReap(child->pidfd.get());
  return ends && status.ok() && status->signal == 0 && status->code == 0;
}

bool IsHeld(const JobFolder& job) {
  const auto holder = job.Holder();
  return holder.ok() && *holder;
}

}  // namespace

absl::StatusOr<LauncherStart> LauncherStart::Begin(const JobFolder& job, Supervisor by, Beat beat) {
  LauncherStart start(job, job.LastStanding());
  const auto log = OpenLog(job);
  if (!log.ok()) return log.status();
  if (by == Supervisor::kSystemd && StartAsUnit(job, *log, beat)) {
    start.last_held_ = Clock::now();
    return start;
  }
  if (by == Supervisor::kSystemd) {
    // The name of the unit may be taken: it is about to be started again. Then one of the two
    // launchers gets the job, and the other ends.
    const std::string line = absl::StrCat("dtrain: warning: systemd-run has not started ", job.id(),
                                          ".service: a minder looks after the launcher\n");
    (void)!write(log->get(), line.data(), line.size());
  }
  auto minder = StartMinder(job, *log);
  if (!minder.ok()) return minder.status();
  start.minder_ = *std::move(minder);
  return start;
}

bool LauncherStart::HasReached(Standing::Stage stage, bool held) const {
  const Standing now = job_.LastStanding();
  if (now.launcher.pid() == 0 || IsSameProcess(now.launcher, before_.launcher)) return false;
  // A job that ran may have ended since.
  return now.stage >= stage && (held || stage == Standing::Stage::kRuns);
}

bool LauncherStart::IsOver(bool held) {
  const TimePoint now = Clock::now();
  if (held) last_held_ = now;
  if (held) return false;
  if (job_.HasSummary()) return true;
  if (!minder_) return now - last_held_ > kSystemdGap;
  pollfd ended{minder_.get(), POLLIN, 0};
  if (poll(&ended, 1, 0) <= 0) return false;
  // It may have left the job to a minder that was there before.
  const auto minder = job_.Minder();
  return !minder.ok() || !*minder;
}

LauncherStart::End LauncherStart::Wait(Standing::Stage stage, absl::FunctionRef<bool()> go_on) {
  for (;;) {
    // In this order: between the two looks it may come so far, and end.
    const bool held = IsHeld(job_);
    const bool over = IsOver(held);
    if (HasReached(stage, held)) return End::kReached;
    if (over) return End::kOver;
    if (!go_on()) return End::kGivenUp;
    poll(nullptr, 0, kBetweenLooksMs);
  }
}

}  // namespace dtrain::detached
