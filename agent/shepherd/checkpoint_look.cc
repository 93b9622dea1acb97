// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/checkpoint_look.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/shepherd/worker_env.h"
#include "common/base/posix_error.h"
#include "common/base/programs.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/process_facts.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {
namespace {

constexpr char kVariable[] = "DTRAIN_CHECKPOINT_FILE";
// For a file server to answer.
constexpr std::chrono::seconds kPatience{10};
// One that was complete so shortly before anybody asked will do: a restart loses no more.
constexpr time_t kJustBefore = 10;  // s
// A launcher that wants a restart asks every few seconds. After a longer silence it is another one.
constexpr time_t kAsksAgain = 60;  // s
// A folder with more is looked at in part.
constexpr size_t kMostTreeEntries = 100'000;
constexpr int kMostDepth = 30;
// What the child exits with: one of these, or the error number on top.
constexpr int kNext = 0;
constexpr int kNotYet = 1;
constexpr int kErrors = 2;

bool IsBefore(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

// Of a file, or of a folder and all that is in it.
struct TreeState {
  timespec changed{};  // the last of them
  size_t entries = 0;
  uint64_t bytes = 0;

  bool operator==(const TreeState& other) const {
    return !IsBefore(changed, other.changed) && !IsBefore(other.changed, changed) &&
           entries == other.entries && bytes == other.bytes;
  }
};

void AddEntry(int folder, const char* name, int depth, TreeState& state) {
  struct stat info {};
  if (++state.entries > kMostTreeEntries ||
      fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return;
  }
  if (IsBefore(state.changed, info.st_mtim)) state.changed = info.st_mtim;
  state.bytes += static_cast<uint64_t>(info.st_size);
  if (!S_ISDIR(info.st_mode) || depth == kMostDepth) return;
  const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  std::unique_ptr<DIR, int (*)(DIR*)> inside(fd < 0 ? nullptr : fdopendir(fd), closedir);
  while (const dirent* entry = inside ? readdir(inside.get()) : nullptr) {
    const absl::string_view each = entry->d_name;
    if (each != "." && each != "..") AddEntry(dirfd(inside.get()), entry->d_name, depth + 1, state);
  }
}

TreeState TreeStateOf(const std::string& path) {
  TreeState state;
  AddEntry(AT_FDCWD, path.c_str(), 0, state);
  return state;
}

bool IsSince(const std::string& path, const timespec& since) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && !IsBefore(info.st_mtim, since);
}

// Whether a process below the shepherd has it, or what is in it, open for writing.
bool IsBeingWritten(const std::string& path, pid_t shepherd) {
  const std::string inside = path + "/";
  for (const os::ProcessInfo& process : os::Descendants(shepherd)) {
    for (const os::FileBeingWritten& file : os::FilesBeingWritten(process.pid, kMostTreeEntries)) {
      if (file.path == path || absl::StartsWith(file.path, inside)) return true;
    }
  }
  return false;
}

int LookAtFile(const std::string& named, const timespec& since, pid_t shepherd, Duration still) {
  char resolved[PATH_MAX];
  if (realpath(named.c_str(), resolved) == nullptr) {
    // None was written yet.
    return errno == ENOENT || errno == ENOTDIR ? kNotYet : kErrors + errno;
  }
  const std::string path = resolved;
  // The program says so itself.
  if (IsSince(named + ".complete", since) || IsSince(path + "/.complete", since)) return kNext;
  const TreeState state = TreeStateOf(path);
  if (IsBefore(state.changed, since)) return kNotYet;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(still).count();
  (void)poll(nullptr, 0, static_cast<int>(ms));
  return TreeStateOf(path) == state && !IsBeingWritten(path, shepherd) ? kNext : kNotYet;
}

// The kernel stamps files with the time of its last tick.
timespec FileTime() {
  timespec now{};
  (void)clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now;
}

}  // namespace

void CheckpointLook::Begin() { begin_ = FileTime(); }

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
  const timespec now = FileTime();
  if (now.tv_sec - last_look_ > kAsksAgain) {
    since_ = {now.tv_sec - kJustBefore, now.tv_nsec};
    if (IsBefore(since_, begin_)) since_ = begin_;
  }
  last_look_ = now.tv_sec;
  path_ = Path();
  if (!path_.empty()) return Start(path_);
  Answer(false, absl::StrCat(kVariable,
                             " is not set for rank 0: name with it a file that the program writes "
                             "with each checkpoint"));
}

void CheckpointLook::Start(const std::string& path) {
  const pid_t shepherd = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    os::CloseRange(3, os::kEveryDescriptor);
    _exit(LookAtFile(path, since_, shepherd, still_));
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
    Answer(status.signal == 0 && status.code == kNext);
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
