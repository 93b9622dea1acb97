// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/checkpoint_look.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/shepherd/worker_env.h"
#include "common/base/posix_error.h"
#include "common/base/programs.h"
#include "common/base/text.h"
#include "common/os/close_range.h"
#include "common/os/pidfd.h"

namespace dtrain::shepherd {
namespace {

constexpr char kVariable[] = "DTRAIN_CHECKPOINT_FILE";
// For a file server to answer.
constexpr std::chrono::seconds kPatience{10};
// What the child exits with: one of these, or the error number on top.
constexpr int kNewer = 0;
constexpr int kNotNewer = 1;
constexpr int kErrors = 2;

bool IsBefore(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

int LookAtFile(const std::string& path, const timespec& begin) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) return IsBefore(info.st_mtim, begin) ? kNotNewer : kNewer;
  // None was written yet.
  return errno == ENOENT || errno == ENOTDIR ? kNotNewer : kErrors + errno;
}

}  // namespace

// The kernel stamps files with the time of its last tick.
void CheckpointLook::Begin() { (void)clock_gettime(CLOCK_REALTIME_COARSE, &begin_); }

// As rank 0 has it; empty: it has none.
std::string CheckpointLook::Path() const {
  const auto rank0 = std::find_if(part_.workers().begin(), part_.workers().end(),
                                  [](const v1::WorkerSpec& spec) { return spec.rank() == 0; });
  if (rank0 == part_.workers().end()) return "";
  for (const std::string& variable : WorkerEnv(part_, agent_env_).Of(*rank0, {})) {
    absl::string_view value = variable;
    if (!absl::ConsumePrefix(&value, kVariable) || !absl::ConsumePrefix(&value, "=")) continue;
    if (value.empty() || value[0] == '/') return std::string(value);
    return absl::StrCat(ProgramOf(part_, *rank0).working_directory(), "/", value);
  }
  return "";
}

void CheckpointLook::Look() {
  if (std::exchange(asked_, true) || child_) return;
  path_ = Path();
  if (!path_.empty()) return Start(path_);
  Answer(false, absl::StrCat(kVariable,
                             " is not set for rank 0: name with it a file that the program writes "
                             "with each checkpoint"));
}

void CheckpointLook::Start(const std::string& path) {
  const pid_t pid = fork();
  if (pid == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    os::CloseRange(3, os::kEveryDescriptor);
    _exit(LookAtFile(path, begin_));
  }
  if (pid < 0) {
    return Answer(false, std::string(PosixError(errno, "cannot start a process").message()));
  }
  auto pidfd = os::OpenPidfd(pid);
  if (!pidfd.ok()) return Answer(false, std::string(pidfd.status().message()));
  child_ = os::Child{pid, *std::move(pidfd)};
  patience_.After(kPatience, [this] {
    (void)os::SendSignal(child_->pidfd.get(), SIGKILL);
    Answer(false, absl::StrCat(Escape(path_), " does not answer within ", kPatience.count(),
                               " s: is its file server down?"));
  });
}

bool CheckpointLook::OnChild(pid_t pid) {
  if (!child_ || child_->pid != pid) return false;
  const auto reaped = os::TryReap(child_->pidfd.get());
  if (!reaped.ok() || !*reaped) return false;
  child_.reset();
  patience_.Cancel();
  const os::ExitStatus& status = **reaped;
  if (status.signal == 0 && status.code >= kErrors) {
    Answer(false,
           std::string(PosixError(status.code - kErrors,
                                  absl::StrCat("cannot look at the checkpoint ", Escape(path_)))
                           .message()));
  } else {
    Answer(status.signal == 0 && status.code == kNewer);
  }
  return true;
}

void CheckpointLook::End() {
  asked_ = false;
  patience_.Cancel();
  if (child_) (void)os::SendSignal(child_->pidfd.get(), SIGKILL);
}

void CheckpointLook::Answer(bool newer, std::string trouble) {
  if (!std::exchange(asked_, false)) return;
  v1::JobEvent event;
  event.mutable_checkpoint()->set_newer(newer);
  event.mutable_checkpoint()->set_trouble(std::move(trouble));
  launcher_.Send(event);
}

}  // namespace dtrain::shepherd
