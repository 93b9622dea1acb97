// SPDX-License-Identifier: Apache-2.0
#include "common/os/process_facts.h"

#include <dirent.h>
#include <fcntl.h>
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

std::vector<std::string> FilesBeingWritten(pid_t pid, size_t most) {
  const std::string folder = absl::StrCat("/proc/", pid);
  std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir((folder + "/fd").c_str()), closedir);
  std::vector<int> numbers;
  while (const dirent* entry = directory ? readdir(directory.get()) : nullptr) {
    int number = 0;
    if (absl::SimpleAtoi(entry->d_name, &number)) numbers.push_back(number);
    if (numbers.size() == kMostDescriptors) break;
  }
  std::sort(numbers.rbegin(), numbers.rend());
  std::vector<std::string> files;
  for (const int number : numbers) {
    if (files.size() == most) break;
    std::string file = LinkOf(absl::StrCat(folder, "/fd/", number));
    // Pipes and sockets have no path.
    if (!absl::StartsWith(file, "/") || absl::EndsWith(file, " (deleted)") ||
        absl::StartsWith(file, "/dev/") || absl::StartsWith(file, "/proc/") ||
        absl::StartsWith(file, "/memfd:")) {
      continue;
    }
    const std::string flags = Field(absl::StrCat(folder, "/fdinfo/", number), "flags");
    const long mode = std::strtol(flags.c_str(), nullptr, 8);
    if (!flags.empty() && (mode & O_ACCMODE) != O_RDONLY) files.push_back(std::move(file));
  }
  return files;
}

}  // namespace dtrain::os
