// SPDX-License-Identifier: Apache-2.0
#include "common/os/process_facts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/fd.h"

namespace dtrain::os {
namespace {

constexpr size_t kMostDescriptors = 4096;  // looked at
constexpr size_t kMostThreads = 64;        // likewise

// Where a link of /proc leads; empty: nowhere.
std::string LinkOf(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t n = readlink(path.c_str(), target, sizeof(target));
  return n > 0 ? std::string(target, static_cast<size_t>(n)) : "";
}

// The value of "NAME:" in a file of /proc; empty: there is none.
std::string Field(const std::string& path, absl::string_view name) {
  const auto text = ReadSmallFile(path);
  if (!text.ok()) return "";
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, ":")) {
      return std::string(absl::StripAsciiWhitespace(line));
    }
  }
  return "";
}

// A call of the poll family, with its first arguments; not one that only sleeps.
bool PollsSomething(long call, uint64_t first, uint64_t second) {
  switch (call) {
#ifdef SYS_poll
    case SYS_poll:
#endif
    case SYS_ppoll:
      return second > 0;
#ifdef SYS_select
    case SYS_select:
#endif
    case SYS_pselect6:
      return first > 0;
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
    case SYS_epoll_pwait:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string CommandName(pid_t pid) {
  const auto text = ReadSmallFile(absl::StrCat("/proc/", pid, "/comm"));
  return text.ok() ? text->substr(0, text->find('\n')) : "?";
}

bool IsShell(pid_t pid) {
  static constexpr std::array<absl::string_view, 11> kShells = {
      "sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "csh", "tcsh", "busybox"};
  std::string program = LinkOf(absl::StrCat("/proc/", pid, "/exe"));
  program.erase(0, program.rfind('/') + 1);
  return std::find(kShells.begin(), kShells.end(), program) != kShells.end();
}

bool Catches(pid_t pid, int signal) {
  uint64_t caught = 0;
  return absl::SimpleHexAtoi(Field(absl::StrCat("/proc/", pid, "/status"), "SigCgt"), &caught) &&
         (caught >> (signal - 1) & 1) != 0;
}

std::optional<bool> WaitsForInput(pid_t pid, const std::string& pipe) {
  const std::string folder = absl::StrCat("/proc/", pid);
  std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir((folder + "/task").c_str()), closedir);
  size_t looked_at = 0;
  while (const dirent* entry = tasks ? readdir(tasks.get()) : nullptr) {
    pid_t thread = 0;
    if (!absl::SimpleAtoi(entry->d_name, &thread)) continue;
    if (++looked_at > kMostThreads) break;
    const auto text = ReadSmallFile(absl::StrCat(folder, "/task/", thread, "/syscall"));
    if (!text.ok()) {
      // It may have ended; else it may not be looked at.
      if (thread == pid && absl::IsPermissionDenied(text.status())) return std::nullopt;
      continue;
    }
    // "0 0x0 0x7ffd… …": the call's number and its arguments; "running".
    const std::vector<std::string> words = absl::StrSplit(*text, absl::MaxSplits(' ', 3));
    long call = -1;
    uint64_t first = 0, second = 0;
    if (words.size() < 3 || !absl::SimpleAtoi(words[0], &call) ||
        !absl::SimpleHexAtoi(words[1], &first) || !absl::SimpleHexAtoi(words[2], &second)) {
      continue;
    }
    if (call == SYS_read || call == SYS_readv) {
      if (LinkOf(absl::StrCat(folder, "/fd/", first)) == pipe) return true;
    } else if (thread == pid && PollsSomething(call, first, second)) {
      if (LinkOf(folder + "/fd/0") == pipe) return true;
    }
  }
  return false;
}

uint64_t BytesToDisk(pid_t pid) {
  uint64_t bytes = 0;
  return absl::SimpleAtoi(Field(absl::StrCat("/proc/", pid, "/io"), "write_bytes"), &bytes) ? bytes
                                                                                            : 0;
}

std::vector<FileBeingWritten> FilesBeingWritten(pid_t pid, size_t most) {
  const std::string folder = absl::StrCat("/proc/", pid);
  std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir((folder + "/fd").c_str()), closedir);
  std::vector<int> numbers;
  while (const dirent* entry = directory ? readdir(directory.get()) : nullptr) {
    int number = 0;
    if (absl::SimpleAtoi(entry->d_name, &number)) numbers.push_back(number);
    if (numbers.size() == kMostDescriptors) break;
  }
  std::sort(numbers.rbegin(), numbers.rend());
  std::vector<FileBeingWritten> files;
  for (const int number : numbers) {
    if (files.size() == most) break;
    std::string file = LinkOf(absl::StrCat(folder, "/fd/", number));
    // Pipes and sockets have no path.
    if (!absl::StartsWith(file, "/") || absl::EndsWith(file, " (deleted)") ||
        absl::StartsWith(file, "/dev/") || absl::StartsWith(file, "/proc/") ||
        absl::StartsWith(file, "/memfd:")) {
      continue;
    }
    const std::string info = absl::StrCat(folder, "/fdinfo/", number);
    const std::string flags = Field(info, "flags");
    const long mode = std::strtol(flags.c_str(), nullptr, 8);
    if (flags.empty() || (mode & O_ACCMODE) == O_RDONLY) continue;
    uint64_t position = 0;
    (void)absl::SimpleAtoi(Field(info, "pos"), &position);
    files.push_back({std::move(file), position, (mode & O_APPEND) != 0});
  }
  return files;
}

}  // namespace dtrain::os
