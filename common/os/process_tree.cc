// SPDX-License-Identifier: Apache-2.0
#include "common/os/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"

namespace dtrain::os {
namespace {

constexpr absl::string_view kEnd("\0", 1);  // of an entry in /proc/PID/environ
// Of one process: a user who has many large ones keeps nobody waiting for long.
constexpr size_t kMostEnvironment = 256 << 10;
constexpr size_t kMostReaped = 4 << 20;

// Between looks at a process in the middle of an exec: this long at first, then twice as long each
// time.
constexpr int kFirstPauseMs = 1;
constexpr uint64_t kExiting = 0x4;  // PF_EXITING of the kernel's task_struct
constexpr int kLooksAgain = 6;
constexpr size_t kMostAgain = 64;

// Of this thread: on a busy machine the wall clock would also count the time of other programs.
Duration CpuTime() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

template <typename F>
void ForEachProcess(F f, LookInParts* parts = nullptr) {
  const Duration begun = parts != nullptr ? CpuTime() : Duration::zero();
  const pid_t begin = parts != nullptr ? std::exchange(parts->next, 0) : 0;
  std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc"), closedir);
  if (directory == nullptr) return;
  // First all pids: processes that live on in ever new children have ever higher ones, and who
  // looks at each before the next is read runs after them.
  std::vector<pid_t> pids;
  while (dirent* entry = readdir(directory.get())) {
    int pid = 0;
    if (absl::SimpleAtoi(entry->d_name, &pid)) pids.push_back(pid);
  }
  bool any = false;
  for (const pid_t pid : pids) {
    if (pid < begin) continue;
    if (any && parts != nullptr && CpuTime() - begun >= parts->most) {
      parts->next = pid;
      return;
    }
    f(pid);
    any = true;
  }
}

// The entries that are whole within the first `most` bytes. One that is cut off could look like
// another's. A process that hides its mark behind them could as well have none, and only its user's
// processes are looked for: so it is better not to find it than to find one too many.
absl::StatusOr<std::string> ReadEnvironment(pid_t pid, size_t most) {
  const std::string path = absl::StrCat("/proc/", pid, "/environ");
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return PosixError(errno, absl::StrCat("open ", path));
  const std::unique_ptr<char[]> room(new char[most]);
  const ssize_t n = read(fd.get(), room.get(), most);  // the kernel gives all of it at once
  if (n < 0) return PosixError(errno, absl::StrCat("read ", path));
  const absl::string_view text(room.get(), static_cast<size_t>(n));
  return std::string(text.size() < most ? text : text.substr(0, text.rfind('\0') + 1));
}

// UNAVAILABLE: it is in the middle of an exec, where it has neither environment nor command line.
// Nor has a process that ends, one whose main thread has ended, or a kernel thread, which is in no
// process group.
absl::StatusOr<std::string> EnvironmentOf(const ProcessInfo& info, size_t most) {
  const bool lives = info.state != 'Z' && info.state != '?' && !info.exits && info.group != 0;
  auto environment = ReadEnvironment(info.pid, most);
  // It may come out of one exec between two reads, and be in the next.
  for (int i = 0; i < 2 && lives && environment.ok() && environment->empty(); ++i) {
    const auto words = ReadSmallFile(absl::StrCat("/proc/", info.pid, "/cmdline"));
    if (words.ok() && words->empty()) {
      return absl::UnavailableError("it is in the middle of an exec");
    }
    environment = ReadEnvironment(info.pid, most);
  }
  return environment;
}

// Those for which `look` returns true are looked at again.
template <typename F>
void LookAtAll(F look, LookInParts* parts = nullptr) {
  std::vector<pid_t> again;
  const auto each = [&](pid_t pid) {
    if (look(pid) && again.size() < kMostAgain) again.push_back(pid);
  };
  ForEachProcess(each, parts);
  for (int i = 0; i < kLooksAgain && !again.empty(); ++i) {
    (void)poll(nullptr, 0, kFirstPauseMs << i);
    for (const pid_t pid : std::exchange(again, {})) each(pid);
  }
}

}  // namespace

std::optional<ProcessInfo> FindProcess(pid_t pid) {
  auto text = ReadSmallFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!text.ok()) return std::nullopt;
  // The second field is the name in parentheses, which may itself hold spaces and parentheses.
  size_t name_end = text->rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text->size()) return std::nullopt;
  std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(*text).substr(name_end + 2), ' ');
  ProcessInfo info;
  info.pid = pid;
  uint64_t threads = 0, flags = 0;
  if (fields.size() < 20 || fields[0].empty() || !absl::SimpleAtoi(fields[1], &info.parent) ||
      !absl::SimpleAtoi(fields[2], &info.group) || !absl::SimpleAtoi(fields[3], &info.session) ||
      !absl::SimpleAtoi(fields[6], &flags) || !absl::SimpleAtoi(fields[17], &threads) ||
      !absl::SimpleAtoi(fields[19], &info.start_time)) {
    return std::nullopt;
  }
  // The state is the main thread's: others may run on, or hang in the kernel.
  if (fields[0][0] != 'Z' || threads <= 1) info.state = fields[0][0];
  info.exits = (flags & kExiting) != 0;
  return info;
}

std::vector<pid_t> ChildrenOfMainThread(pid_t pid) {
  std::vector<pid_t> out;
  auto text = ReadSmallFile(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  if (!text.ok()) return out;
  for (absl::string_view word : absl::StrSplit(*text, ' ', absl::SkipWhitespace())) {
    pid_t child = 0;
    if (absl::SimpleAtoi(word, &child)) out.push_back(child);
  }
  return out;
}

absl::StatusOr<UniqueFd> OpenProcess(pid_t pid, uint64_t start_time, uid_t uid) {
  const absl::Status gone = absl::NotFoundError(absl::StrCat("process ", pid, " has ended"));
  // First: whoever has the pid and that start time now is who had it when it was opened.
  auto pidfd = OpenPidfd(pid);
  if (!pidfd.ok()) return absl::IsNotFound(pidfd.status()) ? gone : pidfd.status();
  struct stat owner {};
  if (stat(absl::StrCat("/proc/", pid).c_str(), &owner) != 0 || owner.st_uid != uid) return gone;
  if (StartTime(pid) != start_time) return gone;
  return pidfd;
}

absl::Status BecomeSubreaper() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0) return absl::OkStatus();
  return PosixError(errno, "become the reaper of orphaned processes");
}

std::vector<ProcessInfo> Descendants(pid_t root) {
  std::unordered_map<pid_t, std::vector<ProcessInfo>> children;
  ForEachProcess([&](pid_t pid) {
    if (auto found = FindProcess(pid)) children[found->parent].push_back(*found);
  });
  std::vector<ProcessInfo> out;
  std::vector<pid_t> todo = {root};
  while (!todo.empty()) {
    pid_t parent = todo.back();
    todo.pop_back();
    // Moved out, so that a torn picture of /proc cannot make us go round.
    std::vector<ProcessInfo> found = std::move(children[parent]);
    children[parent].clear();
    for (const ProcessInfo& info : found) {
      out.push_back(info);
      todo.push_back(info.pid);
    }
  }
  return out;
}

std::vector<ProcessInfo> FindByEnvironment(uid_t uid, const std::vector<std::string>& entries,
                                           LookInParts* parts, const std::string& shepherd) {
  std::vector<ProcessInfo> out;
  const auto look = [&](pid_t pid) {
    const std::string directory = absl::StrCat("/proc/", pid);
    struct stat owner {};
    const auto is_theirs = [&] {
      return stat(directory.c_str(), &owner) == 0 && owner.st_uid == uid;
    };
    if (!is_theirs()) return false;
    // Before all else and after it: else the pid may have become another's in between.
    const auto first = FindProcess(pid);
    if (!first || !is_theirs()) return false;
    auto environment = EnvironmentOf(*first, kMostEnvironment);
    if (!environment.ok()) return absl::IsUnavailable(environment.status());
    const std::string text = absl::StrCat(kEnd, *environment, kEnd);
    for (const std::string& entry : entries) {
      if (!absl::StrContains(text, absl::StrCat(kEnd, entry, kEnd))) return false;
    }
    if (!shepherd.empty()) {
      const std::string mark = VariableOf(*environment, kShepherdVariable);
      if (mark != shepherd && Lives(mark)) return false;
    }
    const auto found = FindProcess(pid);
    if (found && found->start_time == first->start_time) out.push_back(*found);
    return false;
  };
  LookAtAll(look, parts);
  return out;
}

std::vector<MarkedProcess> FindByVariable(const std::string& name,
                                          const std::string& namespace_variable) {
  std::vector<MarkedProcess> out;
  const std::string own = PidNamespace();
  if (own.empty()) return out;
  LookAtAll([&](pid_t pid) {
    const std::string directory = absl::StrCat("/proc/", pid);
    struct stat owner {};
    const auto first = FindProcess(pid);
    if (!first || stat(directory.c_str(), &owner) != 0) return false;
    auto environment = EnvironmentOf(*first, kMostReaped);
    if (!environment.ok()) return absl::IsUnavailable(environment.status());
    if (VariableOf(*environment, name).empty()) return false;
    // In another PID namespace what it says of pids means nothing here, unless it says whose it is.
    const std::string there = PidNamespace(pid);
    if (there.empty()) return false;
    if (there != own && VariableOf(*environment, namespace_variable) != own) return false;
    const auto found = FindProcess(pid);
    if (found && found->start_time == first->start_time) {
      out.push_back({*found, owner.st_uid, *std::move(environment)});
    }
    return false;
  });
  return out;
}

std::string VariableOf(const std::string& environment, const std::string& name) {
  for (absl::string_view entry : absl::StrSplit(environment, '\0')) {
    if (absl::ConsumePrefix(&entry, name) && absl::ConsumePrefix(&entry, "=")) {
      return std::string(entry);
    }
  }
  return "";
}

std::string PidNamespace(pid_t pid) {
  struct stat info {};
  const std::string path = absl::StrCat("/proc/", pid == 0 ? getpid() : pid, "/ns/pid");
  return stat(path.c_str(), &info) == 0 ? absl::StrCat(info.st_ino) : "";
}

std::string ProcessMark(pid_t pid) { return ProcessMark(pid, StartTime(pid).value_or(0)); }

std::string ProcessMark(pid_t pid, uint64_t start_time) {
  return absl::StrCat(pid, ":", start_time, ":", BootId());
}

bool Lives(const std::string& mark) {
  int pid = 0;
  if (!absl::SimpleAtoi(mark.substr(0, mark.find(':')), &pid) || pid <= 0) return false;
  const std::optional<ProcessInfo> process = FindProcess(pid);
  return process && process->state != 'Z' && ProcessMark(pid, process->start_time) == mark;
}

void ResetOomScore(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/oom_score_adj");
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd) (void)!write(fd.get(), "0", 1);
}

std::string BootId() {
  auto text = ReadSmallFile("/proc/sys/kernel/random/boot_id");
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

std::optional<uint64_t> StartTime(pid_t pid) {
  auto found = FindProcess(pid);
  if (!found) return std::nullopt;
  return found->start_time;
}

size_t Signal(const std::vector<ProcessInfo>& processes, int signal) {
  size_t living = 0;
  for (const ProcessInfo& info : processes) {
    if (info.state == 'Z') continue;
    ++living;
    auto process = OpenPidfd(info.pid);
    if (!process.ok()) continue;
    // The pid may have passed to another process between the listing and the opening.
    auto now = FindProcess(info.pid);
    if (now && now->start_time == info.start_time) {
      (void)SendSignal(process->get(), signal);
    }
  }
  return living;
}

size_t Kill(const std::vector<ProcessInfo>& processes) { return Signal(processes, SIGKILL); }

void KillGroups(const std::vector<ProcessInfo>& processes) {
  const pid_t self = getpid(), own_group = getpgrp(), own_session = getsid(0);
  std::set<pid_t> leaders, groups;
  for (const ProcessInfo& info : processes) leaders.insert(info.pid);
  for (const ProcessInfo& info : processes) {
    if (info.parent != self || info.group <= 1 || info.group == own_group) continue;
    if (info.session != own_session || leaders.count(info.group) != 0) groups.insert(info.group);
  }
  for (pid_t group : groups) (void)kill(-group, SIGKILL);
}

std::string WaitChannel(pid_t pid) {
  auto text = ReadSmallFile(absl::StrCat("/proc/", pid, "/wchan"));
  return text.ok() && !text->empty() && *text != "0" ? *text : "unknown";
}

}  // namespace dtrain::os
