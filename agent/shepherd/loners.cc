// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/loners.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/shepherd/worker_env.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "common/os/file_system.h"
#include "common/os/process_sockets.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {
namespace {

// Between looks whether ranks talk: the first, and the last of those that take longer and longer.
constexpr Duration kFirstTalkLook = std::chrono::milliseconds(500);
constexpr Duration kLastTalkLook = std::chrono::seconds(8);
constexpr Duration kSharedTalkLook = std::chrono::seconds(1);
// Of the time that looks take.
constexpr int kRestPerLook = 100;
// Of it, saved up for looks at files.
constexpr Duration kMostAtOnce = std::chrono::milliseconds(100);
constexpr size_t kMostOfLoner = 16;  // of a rank
constexpr size_t kMostWritten = 16;  // of a process
constexpr size_t kMostWatched = 32;
constexpr int kMostReads = 16;  // in a turn
constexpr size_t kMostMounts = 1 << 20;
constexpr size_t kMostWrittenPaths = 4096;

std::string LinkText(const std::string& path) {
  char text[4096];
  const ssize_t n = readlink(path.c_str(), text, sizeof(text));
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
}

// What programs that know nothing of each other may write side by side: caches and locks.
bool IsMeantToBeShared(absl::string_view path) {
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (absl::StartsWith(part, ".") || absl::StartsWith(part, "torchinductor") ||
        absl::StrContains(part, "cache")) {
      return true;
    }
  }
  return absl::EndsWith(path, ".lock");
}

// Of this thread. On a busy machine the wall clock would also count the time of other programs.
Duration CpuTime() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

}  // namespace

void LonerWatch::OnTalk() {
  anybody_talks_ = true;
  shared_.reset();
}

bool LonerWatch::OnFile(uint32_t rank, const std::string& mounts,
                        const os::FileBeingWritten& file) {
  if (file.appends || IsMeantToBeShared(file.path)) return false;
  // At the start of a file: a lock, a database, or still empty.
  if (anybody_talks_ || shared_ || file.position == 0) return true;
  if (writers_.size() == kMostWrittenPaths) writers_.clear();
  const uint32_t first = writers_.try_emplace(mounts + file.path, rank).first->second;
  if (first != rank) shared_ = {file.path, std::min(first, rank), std::max(first, rank)};
  return true;
}

std::string LonerWatch::Tell() const {
  if (!shared_) return "";
  return absl::StrCat(
      "ranks ", shared_->first, " and ", shared_->second, " both wrote ", Escape(shared_->path),
      ", and no rank here was seen to talk to another: each ran the whole program by itself, and "
      "the file that is left is from whichever wrote last. Join them (torch.distributed, Horovod, "
      "MPI, libdtrain), or put the rank into the path");
}

Loners::Loners(loop::Loop& loop, const ShepherdCore& core, const Workers& workers,
               const PmiService& pmi, LauncherLine& launcher)
    : loop_(loop),
      core_(core),
      workers_(workers),
      pmi_(pmi),
      launcher_(launcher),
      timer_(loop),
      soon_(loop) {}

void Loners::Begin(const v1::JobPart& part, const std::vector<std::string>& agent_env) {
  if (part.workers_size() < 2 || part.has_elastic()) return;
  const std::vector<std::string> env = WorkerEnv(part, agent_env).Of(part.workers(0), {});
  if (std::find(env.begin(), env.end(), "DTRAIN_SINGLETONS=1") != env.end()) return;
  changes_.Reset(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (changes_) on_change_.emplace(loop_, changes_.get());
  WatchFolder(LinkText(absl::StrCat("/proc/", workers_.all().front()->pid(), "/cwd")));
  Await();
  time_left_ = kMostAtOnce;
  looked_at_ = loop_.Now();
  pause_ = kFirstTalkLook;
  Plan(pause_);
}

void Loners::Plan(Duration pause) {
  timer_.After(pause, [this] {
    const Duration before = CpuTime();
    if (!Look()) return Stop();
    // Whether they talk is all that is left to be seen once two have written one file.
    pause_ = std::min<Duration>(2 * pause_, watch_.has_found() ? kSharedTalkLook : kLastTalkLook);
    pause_ = std::max<Duration>(pause_, kRestPerLook * (CpuTime() - before));
    Plan(pause_);
  });
}

void Loners::Stop() {
  timer_.Cancel();
  soon_.Cancel();
  on_change_.reset();
  changes_.Reset();
}

bool Loners::Look() {
  if (core_.state() != State::kRunning) return false;
  if (HasAnyJoined()) watch_.OnTalk();
  for (const auto& worker : workers_.all()) {
    if (!worker->ended() && !watch_.anybody_talks()) {
      LookAtProcesses(worker->rank(), worker->pid());
    }
  }
  if (watch_.anybody_talks()) return false;
  LookAtFiles();
  return true;
}

bool Loners::HasAnyJoined() const {
  return std::any_of(workers_.all().begin(), workers_.all().end(),
                     [this](const auto& worker) { return pmi_.HasJoined(worker->rank()); });
}

void Loners::LookAtProcesses(uint32_t rank, pid_t worker) {
  std::vector<pid_t>& processes = processes_[rank];
  processes = {worker};
  for (size_t i = 0; i < processes.size() && processes.size() < kMostOfLoner; ++i) {
    if (os::HasNetworkSocket(processes[i])) return watch_.OnTalk();
    for (const pid_t child : os::ChildrenOfMainThread(processes[i])) processes.push_back(child);
  }
}

// While nothing changes there is nothing to see.
void Loners::Await() {
  if (!on_change_) return;
  on_change_->OnReadable([this] {
    char events[4096];
    for (int i = 0; i < kMostReads && read(changes_.get(), events, sizeof(events)) > 0; ++i) {
    }
    const Duration before = CpuTime();
    LookAtFiles();
    if (watch_.has_found()) return Plan(Duration::zero());
    const TimePoint end = Clock::now();
    // Files are open for a moment only, so looks come one after the other as long as they may.
    time_left_ = std::min<Duration>(time_left_ + (end - looked_at_) / kRestPerLook, kMostAtOnce) -
                 (CpuTime() - before);
    looked_at_ = end;
    if (time_left_ > Duration::zero()) return Await();
    soon_.After(-time_left_ * kRestPerLook, [this] { Await(); });
  });
}

void Loners::LookAtFiles() {
  if (core_.state() != State::kRunning) return;
  for (const auto& worker : workers_.all()) {
    if (worker->ended()) continue;
    std::vector<pid_t>& processes = processes_[worker->rank()];
    if (processes.empty()) processes = {worker->pid()};
    for (const pid_t process : processes) {
      if (watch_.has_found()) return;
      const std::string mounts = LinkText(absl::StrCat("/proc/", process, "/ns/mnt"));
      for (const os::FileBeingWritten& file : os::FilesBeingWritten(process, kMostWritten)) {
        if (!watch_.OnFile(worker->rank(), mounts, file)) continue;
        WatchFolder(file.path.substr(0, file.path.rfind('/')));
      }
    }
  }
}

void Loners::WatchFolder(const std::string& folder) {
  if (!changes_ || folders_.size() == kMostWatched || !folders_.insert(folder).second) return;
  // One whose server is down would hold us.
  const auto mounts = os::ReadSmallFile("/proc/self/mountinfo", kMostMounts);
  const std::string type = mounts.ok() ? os::FileSystemAt(*mounts, folder) : "";
  if (type.empty() || os::IsShared(type)) return;
  (void)inotify_add_watch(changes_.get(), folder.empty() ? "/" : folder.c_str(),
                          IN_CREATE | IN_MODIFY | IN_ONLYDIR);
}

void Loners::End(bool all_succeeded) {
  Stop();
  if (HasAnyJoined()) watch_.OnTalk();
  std::string text = all_succeeded ? watch_.Tell() : "";
  if (!text.empty()) launcher_.Warn(std::move(text));
}

}  // namespace dtrain::shepherd
