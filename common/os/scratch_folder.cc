// SPDX-License-Identifier: Apache-2.0
#include "common/os/scratch_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/posix_error.h"
#include "common/os/process_tree.h"

namespace dtrain::os {
namespace {

using Listing = std::unique_ptr<DIR, int (*)(DIR*)>;

// All but "." and "..", no more than `most`. Takes the descriptor.
std::vector<std::string> NamesIn(UniqueFd folder, size_t most) {
  std::vector<std::string> names;
  const Listing listing(fdopendir(folder.get()), closedir);
  if (listing == nullptr) return names;
  (void)folder.Release();
  while (const dirent* entry = names.size() < most ? readdir(listing.get()) : nullptr) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

UniqueFd OpenFolder(int parent, const std::string& name) {
  return UniqueFd(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// With all in it. Returns errno; `left` counts down.
int RemoveTree(int parent, const std::string& name, int depth, int* left) {
  if (unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0) return 0;  // most are empty
  if (errno != ENOTEMPTY && errno != EEXIST) return errno;
  if (depth == 0) return ELOOP;
  UniqueFd folder = OpenFolder(parent, name);
  if (!folder) return errno;
  UniqueFd listed = OpenFolder(folder.get(), ".");
  for (const std::string& entry : NamesIn(std::move(listed), static_cast<size_t>(*left))) {
    if ((*left)-- <= 0) return E2BIG;
    if (unlinkat(folder.get(), entry.c_str(), 0) == 0) continue;
    if (errno != EISDIR && errno != EPERM) return errno;
    if (int error = RemoveTree(folder.get(), entry, depth - 1, left); error != 0) return error;
  }
  return unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 ? 0 : errno;
}

absl::Status RemoveWhole(int parent, const std::string& name, absl::string_view path,
                         RemovalLimit limit, int64_t* all = nullptr) {
  const int most =
      all == nullptr ? limit.entries : static_cast<int>(std::min<int64_t>(limit.entries, *all));
  int left = most;
  const int error = RemoveTree(parent, name, limit.deepest, &left);
  if (all != nullptr) *all -= most - left;
  if (error == 0 || error == ENOENT) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("remove the job's temporary folder ", path, ": ",
                                          PosixErrorText(error), "; remove it with rm -r"));
}

// Names a process within its PID namespace, since a /tmp may have several: "17-5147024-4026531836".
struct Maker {
  int pid = 0;
  uint64_t start_time = 0;
  uint64_t pid_namespace = 0;
};

uint64_t OwnPidNamespace() {
  struct stat status;
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::string PrefixOf(const Maker& maker) {
  return absl::StrCat("dtrain-", maker.pid, "-", maker.start_time, "-", maker.pid_namespace, "-");
}

// Whose a folder of that name is; nullopt: it has another name.
std::optional<Maker> MakerOf(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  Maker maker;
  if (parts.size() != 5 || parts[0] != "dtrain" || !absl::SimpleAtoi(parts[1], &maker.pid) ||
      !absl::SimpleAtoi(parts[2], &maker.start_time) ||
      !absl::SimpleAtoi(parts[3], &maker.pid_namespace)) {
    return std::nullopt;
  }
  return maker;
}

// One that nobody has reaped yet has ended.
bool MakerLives(const Maker& maker) {
  const std::optional<ProcessInfo> process = FindProcess(maker.pid);
  return process && process->start_time == maker.start_time && process->state != 'Z';
}

// Those whose names begin like that and that `wanted` wants: `times` the limit in all.
absl::Status RemoveFolders(const std::vector<std::string>& places, absl::string_view prefix,
                           RemovalLimit limit, int64_t times,
                           absl::FunctionRef<bool(const Maker&, uid_t owner)> wanted) {
  absl::Status result;
  int64_t left = times * limit.entries;
  for (const std::string& directory : places) {
    const Listing listing(opendir(directory.c_str()), closedir);
    if (listing == nullptr) continue;
    const int parent = dirfd(listing.get());
    int64_t names = times * limit.names;
    while (const dirent* entry = --names >= 0 && left > 0 ? readdir(listing.get()) : nullptr) {
      if (!absl::StartsWith(entry->d_name, prefix)) continue;
      --left;
      const std::string name = entry->d_name;
      const std::optional<Maker> maker = MakerOf(name);
      struct stat status;
      if (!maker || fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
          !S_ISDIR(status.st_mode) || !wanted(*maker, status.st_uid)) {
        continue;
      }
      result.Update(RemoveWhole(parent, name, absl::StrCat(directory, "/", name), limit, &left));
    }
    if (names < 0 || left <= 0) {
      result.Update(absl::ResourceExhaustedError(
          absl::StrCat("look for temporary folders of dead jobs in all of ", directory,
                       ": it has too many entries; remove what begins with dtrain- there")));
    }
  }
  return result;
}

}  // namespace

std::vector<std::string> TemporaryDirectories() {
  std::vector<std::string> out;
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* value = getenv(name);
    if (value != nullptr && value[0] == '/') out.emplace_back(value);
  }
  out.emplace_back("/tmp");
  out.emplace_back("/var/tmp");
  return out;
}

std::vector<std::string> ScratchPlaces() {
  std::vector<std::string> places = TemporaryDirectories();
  places.insert(places.begin(), "/dev/shm");
  return places;
}

absl::StatusOr<ScratchFolder> ScratchFolder::Make(const std::vector<std::string>& places) {
  const std::string prefix =
      PrefixOf({getpid(), StartTime(getpid()).value_or(0), OwnPidNamespace()});
  int error = ENOENT;
  for (const std::string& directory : places) {
    std::string path = absl::StrCat(directory, "/", prefix, "XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      error = errno;
      continue;
    }
    UniqueFd folder = OpenFolder(AT_FDCWD, path);
    if (folder) return ScratchFolder(std::move(path), std::move(folder));
    error = errno;
    (void)rmdir(path.c_str());
  }
  return PosixError(error,
                    absl::StrCat("make a folder for the job in ", absl::StrJoin(places, ", ")));
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), folder_(std::move(other.folder_)) {}

ScratchFolder& ScratchFolder::operator=(ScratchFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(folder_, other.folder_);
  return *this;
}

absl::StatusOr<std::string> ScratchFolder::Read(const std::string& name, size_t limit) const {
  const auto what = [&] { return absl::StrCat("read ", path_, "/", name); };
  // O_NONBLOCK: of a FIFO the open would wait for a writer.
  const UniqueFd file(openat(folder_.get(), name.c_str(),
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file) return PosixError(errno, what());
  struct stat status;
  if (fstat(file.get(), &status) != 0) return PosixError(errno, what());
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(what(), ": it is not a regular file"));
  }
  if (status.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(what(), ": it belongs to another user"));
  }
  std::string bytes(limit, '\0');
  size_t size = 0;
  while (size < limit) {
    const ssize_t n = read(file.get(), bytes.data() + size, limit - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, what());
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  bytes.resize(size);
  return bytes;
}

absl::StatusOr<std::string> ScratchFolder::Keep(const std::string& name) {
  const std::string kept = absl::StrCat(path_.substr(0, path_.rfind('/') + 1), name);
  const std::string what = absl::StrCat("keep ", path_, " as ", kept);
  if (name.empty() || absl::StrContains(name, '/')) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": no name of a file"));
  }
  if (rename(path_.c_str(), kept.c_str()) != 0) {
    if (errno == ENOTEMPTY) errno = EEXIST;
    return PosixError(errno, what);
  }
  (void)futimens(folder_.get(), nullptr);
  path_.clear();
  folder_.Reset();
  return kept;
}

absl::Status ScratchFolder::Remove(RemovalLimit limit) {
  const std::string path = std::exchange(path_, "");
  folder_.Reset();
  return path.empty() ? absl::OkStatus() : RemoveWhole(AT_FDCWD, path, path, limit);
}

absl::Status RemoveScratchFolders(const std::vector<std::string>& places, pid_t pid,
                                  uint64_t start_time, uid_t owner, RemovalLimit limit) {
  const Maker ended{pid, start_time, OwnPidNamespace()};
  return RemoveFolders(places, PrefixOf(ended), limit, 1,
                       [&](const Maker&, uid_t its_owner) { return its_owner == owner; });
}

absl::Status RemoveOldFolders(const std::string& directory, absl::string_view prefix,
                              int64_t seconds, RemovalLimit limit) {
  absl::Status result;
  const Listing listing(opendir(directory.c_str()), closedir);
  if (listing == nullptr) return result;
  const int parent = dirfd(listing.get());
  const time_t now = time(nullptr);
  while (const dirent* entry = readdir(listing.get())) {
    const std::string name = entry->d_name;
    struct stat status;
    if (!absl::StartsWith(name, prefix) ||
        fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISDIR(status.st_mode) || status.st_uid != geteuid() || now - status.st_mtime < seconds) {
      continue;
    }
    result.Update(RemoveWhole(parent, name, absl::StrCat(directory, "/", name), limit));
  }
  return result;
}

absl::Status RemoveDeadScratchFolders(const std::vector<std::string>& places, bool of_all_users,
                                      RemovalLimit limit) {
  const uint64_t here = OwnPidNamespace();
  return RemoveFolders(places, "dtrain-", limit, 100, [&](const Maker& maker, uid_t owner) {
    return maker.pid_namespace == here &&
           (owner == geteuid() || (of_all_users && geteuid() == 0)) && !MakerLives(maker);
  });
}

}  // namespace dtrain::os
