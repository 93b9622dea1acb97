// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/leave.h"

#include <poll.h>
#include <signal.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/os/pidfd.h"
#include "launcher/detached/ourselves.h"

namespace dtrain::detached {
namespace {

constexpr int kBetweenTriesMs = 20;

absl::Status Tell(const JobFolder& job, const v1::Launcher& launcher) {
  if (!IsHere(launcher)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the launcher of ", job.id(), " is a process on ",
                     launcher.host().empty() ? "another machine" : Escape(launcher.host())));
  }
  const auto pidfd = os::OpenPidfd(static_cast<pid_t>(launcher.pid()));
  // The number may have become another's before it was opened.
  if (absl::IsNotFound(pidfd.status()) || !IsHere(launcher)) return absl::OkStatus();
  if (!pidfd.ok()) return pidfd.status();
  absl::Status sent = os::SendSignal(pidfd->get(), SIGTERM);
  // One that was paused acts on it only then.
  (void)os::SendSignal(pidfd->get(), SIGCONT);
  return absl::IsNotFound(sent) ? absl::OkStatus() : sent;
}

}  // namespace

absl::Status HaveLauncherLeave(const JobFolder& job, TimePoint deadline) {
  v1::Launcher told;
  for (;;) {
    const auto holder = job.Holder();
    if (!holder.ok()) return holder.status();
    const auto minder = job.Minder();
    if (!minder.ok()) return minder.status();
    if (!*holder && !*minder) return absl::OkStatus();
    // A minder starts one that was killed, as one that has only begun is by the signal. Whose
    // description is not written yet is asked once it is.
    if (*holder && (*holder)->pid() != 0 && !IsSameProcess(**holder, told)) {
      if (absl::Status status = Tell(job, **holder); !status.ok()) return status;
      told = **holder;
    }
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the launcher of ", job.id(), " was told to exit but has not done so yet"));
    }
    poll(nullptr, 0, kBetweenTriesMs);
  }
}

}  // namespace dtrain::detached
