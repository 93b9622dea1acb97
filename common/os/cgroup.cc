// SPDX-License-Identifier: Apache-2.0
#include "common/os/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"

namespace dtrain::os {
namespace {

constexpr char kUsualMount[] = "/sys/fs/cgroup";
// v1 says "no limit" by a number near 2^63.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;
constexpr int kDeepest = 16;  // levels below a cgroup of ours that a worker may have made

// Where this process is, by /proc/self/cgroup: "0::/path" is v2, "4:memory:/path" v1's controller.
absl::StatusOr<std::string> OwnPath(absl::string_view controller) {
  auto text = ReadSmallFile("/proc/self/cgroup");
  if (!text.ok()) return text.status();
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (controller.empty() ? parts[0] == "0" && parts[1].empty() : parts[1] == controller) {
      return parts[2];
    }
  }
  return absl::NotFoundError("this process is in no such cgroup");
}

// Mount point of the v2 hierarchy, or of a v1 controller.
absl::StatusOr<std::string> MountPoint(absl::string_view controller) {
  // Where systemd puts it. The list of all mounts is long on a node with containers, and the kernel
  // writes it anew for each reader.
  struct statfs usual {};
  if (controller.empty() && statfs(kUsualMount, &usual) == 0 &&
      usual.f_type == CGROUP2_SUPER_MAGIC) {
    return kUsualMount;
  }
  auto text = ReadSmallFile("/proc/self/mountinfo", 16 << 20);
  if (!text.ok()) return text.status();
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    std::vector<absl::string_view> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    std::vector<absl::string_view> left = absl::StrSplit(halves[0], ' ');
    std::vector<absl::string_view> right = absl::StrSplit(halves[1], ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    if (controller.empty()) {
      if (right[0] == "cgroup2") return std::string(left[4]);
    } else if (right[0] == "cgroup") {
      for (absl::string_view option : absl::StrSplit(right[2], ',')) {
        if (option == controller) return std::string(left[4]);
      }
    }
  }
  return absl::NotFoundError(controller.empty() ? "no cgroup v2 hierarchy is mounted"
                                                : "no such cgroup v1 controller is mounted");
}

absl::StatusOr<std::string> OwnDirectory(absl::string_view controller) {
  auto mount = MountPoint(controller);
  if (!mount.ok()) return mount;
  auto own = OwnPath(controller);
  if (!own.ok()) return own;
  std::string path = *own == "/" ? *mount : absl::StrCat(*mount, *own);
  if (access(path.c_str(), F_OK) != 0) {
    // A container that sees its own part of the tree as the mount's root.
    return *mount;
  }
  return path;
}

template <typename F>
void ForEachChild(const std::string& path, F f) {
  std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (directory == nullptr) return;
  while (dirent* entry = readdir(directory.get())) {
    const absl::string_view name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..")
      f(absl::StrCat(path, "/", entry->d_name));
  }
}

void CollectProcesses(const std::string& path, int depth, std::vector<pid_t>* out) {
  auto text = ReadSmallFile(path + "/cgroup.procs", 16 << 20);
  if (text.ok()) {
    for (absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
      int pid = 0;
      if (absl::SimpleAtoi(line, &pid) && pid > 0) out->push_back(pid);
    }
  }
  if (depth == kDeepest) return;
  ForEachChild(path, [&](const std::string& child) { CollectProcesses(child, depth + 1, out); });
}

// The number in the line "`word` <number>" of a small file.
std::optional<uint64_t> NumberBehind(const std::string& path, absl::string_view word) {
  auto text = ReadSmallFile(path);
  if (!text.ok()) return std::nullopt;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    uint64_t n = 0;
    if (words.size() == 2 && words[0] == word && absl::SimpleAtoi(words[1], &n)) return n;
  }
  return std::nullopt;
}

absl::Status RemoveTree(const std::string& path, int depth) {
  if (depth < kDeepest) {
    ForEachChild(path, [&](const std::string& child) { (void)RemoveTree(child, depth + 1); });
  }
  if (rmdir(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return PosixError(errno, absl::StrCat("remove the cgroup ", path));
}

}  // namespace

absl::StatusOr<std::string> FindWritableCgroup() {
  auto path = OwnDirectory("");
  if (!path.ok()) return path;
  // Making a child needs the directory, moving a process there needs cgroup.procs of both ends'
  // common ancestor, which is this one.
  for (const std::string& needed : {*path, *path + "/cgroup.procs"}) {
    if (access(needed.c_str(), W_OK) != 0) return PosixError(errno, absl::StrCat("write ", needed));
  }
  return path;
}

absl::StatusOr<std::string> FindWritableSibling(absl::string_view name) {
  auto own = OwnDirectory("");
  if (!own.ok()) return own;
  const std::string parent = own->substr(0, own->rfind('/'));
  std::string path = absl::StrCat(parent, "/", name);
  for (const std::string& needed : {path, path + "/cgroup.procs", parent + "/cgroup.procs"}) {
    if (access(needed.c_str(), W_OK) != 0) return PosixError(errno, absl::StrCat("write ", needed));
  }
  return path;
}

std::string JobCgroupName(absl::string_view job_id, uint32_t attempt, uint32_t node_rank) {
  std::string name = "dtrain-";
  for (char c : job_id) {
    name += absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ? c : '_';
  }
  absl::StrAppend(&name, ".", attempt, ".", node_rank);
  return name;
}

absl::StatusOr<Cgroup> Cgroup::Make(absl::string_view parent_path, absl::string_view name) {
  std::string path = absl::StrCat(parent_path, "/", name);
  if (mkdir(path.c_str(), 0755) != 0)
    return PosixError(errno, absl::StrCat("make the cgroup ", path));
  return Cgroup(std::move(path));
}

std::vector<Cgroup> Cgroup::Below(const std::string& parent_path, absl::string_view prefix) {
  std::vector<Cgroup> out;
  ForEachChild(parent_path, [&](const std::string& child) {
    if (absl::StartsWith(absl::string_view(child).substr(parent_path.size() + 1), prefix)) {
      out.push_back(Cgroup(child));
    }
  });
  return out;
}

absl::Status Cgroup::Bound(int descendants, int depth) const {
  const std::pair<const char*, int> limits[] = {{"cgroup.max.descendants", descendants},
                                                {"cgroup.max.depth", depth}};
  for (const auto& [file, most] : limits) {
    const UniqueFd fd(open(absl::StrCat(path_, "/", file).c_str(), O_WRONLY | O_CLOEXEC));
    const std::string text = absl::StrCat(most);
    if (!fd || write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      return PosixError(errno, absl::StrCat("write ", file, " of the cgroup ", path_));
    }
  }
  return absl::OkStatus();
}

absl::Status Cgroup::GiveTo(uid_t uid, gid_t gid) const {
  for (const char* file : {"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"}) {
    if (chown((path_ + file).c_str(), uid, gid) != 0) {
      return PosixError(errno, absl::StrCat("give the cgroup ", path_, " to user ", uid));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Cgroup::Open() const {
  UniqueFd fd(open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return PosixError(errno, absl::StrCat("open the cgroup ", path_));
  return fd;
}

bool Cgroup::Populated() const {
  auto text = ReadSmallFile(path_ + "/cgroup.events");
  return text.ok() && text->find("populated 1") != std::string::npos;
}

std::vector<pid_t> Cgroup::Processes() const {
  std::vector<pid_t> out;
  CollectProcesses(path_, 0, &out);
  return out;
}

void Cgroup::Kill() const {
  UniqueFd fd(open((path_ + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  if (fd && write(fd.get(), "1", 1) == 1) return;
  for (pid_t pid : Processes()) {
    auto process = OpenPidfd(pid);
    if (!process.ok()) continue;
    // The pid may have passed to another process between the listing and the opening.
    std::vector<pid_t> still = Processes();
    if (std::find(still.begin(), still.end(), pid) != still.end()) {
      (void)SendSignal(process->get(), SIGKILL);
    }
  }
}

absl::Status Cgroup::Remove() const { return RemoveTree(path_, 0); }

std::string ReachedProcessLimit() {
  for (const char* controller : {"", "pids"}) {
    const auto mount = MountPoint(controller);
    const auto own = OwnDirectory(controller);
    if (!mount.ok() || !own.ok()) continue;
    for (std::string at = *own; at.size() >= mount->size(); at.resize(at.rfind('/'))) {
      const auto most = ReadSmallFile(at + "/pids.max");
      const auto now = ReadSmallFile(at + "/pids.current");
      uint64_t limit = 0;  // or "max"
      uint64_t count = 0;
      if (most.ok() && now.ok() && absl::SimpleAtoi(*most, &limit) &&
          absl::SimpleAtoi(*now, &count) && count >= limit) {
        return absl::StrCat("pids.max (", limit, ") of the cgroup ",
                            at == *mount ? "/" : at.substr(mount->size()));
      }
    }
  }
  struct rlimit limit {};
  if (geteuid() != 0 && getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return absl::StrCat("RLIMIT_NPROC (", limit.rlim_cur, ", ulimit -u)");
  }
  return "pids.max of its cgroup or RLIMIT_NPROC (ulimit -u)";
}

OomKillCounter::OomKillCounter() {
  // v2: the files are where the controller is enabled, maybe only further up; they count all below.
  if (auto path = OwnDirectory(""); path.ok()) {
    auto mount = MountPoint("");
    std::string at = *path;
    // The mount point included: in a container it is a cgroup like any other.
    while (mount.ok() && at.size() >= mount->size()) {
      if (access((at + "/memory.events").c_str(), R_OK) == 0) {
        path_ = at + "/memory.events";
        top_ = *mount;
        break;
      }
      at.resize(at.rfind('/'));
    }
  }
  if (path_.empty()) {
    if (auto path = OwnDirectory("memory"); path.ok()) path_ = *path + "/memory.oom_control";
  }
  base_ = ReadFile().value_or(0);
}

std::optional<uint64_t> OomKillCounter::ReadFile() const {
  if (path_.empty()) return std::nullopt;
  return NumberBehind(path_, "oom_kill");
}

uint64_t OomKillCounter::Read() const {
  uint64_t now = ReadFile().value_or(base_);
  return now > base_ ? now - base_ : 0;
}

uint64_t OomKillCounter::LimitBytes() const {
  if (path_.empty()) return 0;
  std::string at = path_.substr(0, path_.rfind('/'));
  uint64_t least = std::numeric_limits<uint64_t>::max();
  if (top_.empty()) {
    least = NumberBehind(at + "/memory.stat", "hierarchical_memory_limit").value_or(least);
  }
  while (!top_.empty() && at.size() >= top_.size()) {
    auto text = ReadSmallFile(at + "/memory.max");
    uint64_t limit = 0;  // or "max"
    if (text.ok() && absl::SimpleAtoi(*text, &limit)) least = std::min(least, limit);
    at.resize(at.rfind('/'));
  }
  return least < kNoLimit ? least : 0;
}

}  // namespace dtrain::os
