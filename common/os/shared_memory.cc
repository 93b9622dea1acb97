// SPDX-License-Identifier: Apache-2.0
#include "common/os/shared_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "common/os/process_tree.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {
namespace {

constexpr size_t kMostEntries = 100000;   // of a folder that anybody fills
constexpr size_t kMostMaps = 64 << 20;    // bytes of /proc/PID/maps
constexpr size_t kMostOpenFiles = 65536;  // of a process
constexpr size_t kMostRecord = 64 << 10;  // bytes; an object takes 16 or so
// Of one user. Others have a share of their own.
constexpr size_t kMostRecords = 64;
constexpr size_t kMostObjects = 4096;
// One user can be many, in a user namespace.
constexpr size_t kMostOwners = 256;
constexpr char kRecordPrefix[] = "dtrain-left.";
constexpr char kSegments[] = "/proc/sysvipc/shm";

using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;
Folder OpenFolder(const std::string& path) { return {opendir(path.c_str()), closedir}; }

UniqueFd OpenShared() {
  return UniqueFd(open(kSharedMemoryFolder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// A regular file.
std::optional<struct stat> StatOf(int folder, const char* name) {
  struct stat status;
  if (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  return status;
}

bool IsIt(const struct stat& status, const NamedSharedMemory& named, uid_t owner) {
  return S_ISREG(status.st_mode) && status.st_uid == owner && status.st_dev == named.object.place &&
         status.st_ino == named.object.number;
}

// "key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap"
std::vector<NamedSharedMemory> SegmentsOf(std::optional<uid_t> owner) {
  std::vector<NamedSharedMemory> out;
  const auto text = ReadSmallFile(kSegments, 16 << 20);
  if (!text.ok()) return out;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    NamedSharedMemory segment;
    uid_t creator = 0;
    segment.object.is_segment = true;
    if (words.size() < 15 || !absl::SimpleAtoi(words[1], &segment.object.number) ||
        !absl::SimpleAtoi(words[4], &segment.maker) ||
        !absl::SimpleAtoi(words[7], &segment.owner) || !absl::SimpleAtoi(words[9], &creator) ||
        !absl::SimpleAtoi(words[13], &segment.object.place) ||
        !absl::SimpleAtoi(words[14], &segment.bytes)) {
      continue;
    }
    if (segment.owner != creator || (owner && segment.owner != *owner)) continue;
    out.push_back(std::move(segment));
  }
  return out;
}

// Asked for by its id: a user's segments are many, and the list of all is read for each otherwise.
SharedMemoryUse UseOfSegment(const NamedSharedMemory& named, uid_t owner) {
  shmid_ds status;
  if (shmctl(static_cast<int>(named.object.number), IPC_STAT, &status) != 0) {
    return errno == EACCES ? SharedMemoryUse::kSomebody : SharedMemoryUse::kGone;
  }
  if (status.shm_perm.uid != owner || status.shm_perm.cuid != owner ||
      static_cast<uint64_t>(status.shm_ctime) != named.object.place) {
    return SharedMemoryUse::kGone;
  }
  return status.shm_nattch == 0 ? SharedMemoryUse::kNobody : SharedMemoryUse::kSomebody;
}

// A write lease is only given to who is the only one that has the file open, and a mapping keeps it
// open. It is held for no longer than that takes; who opens it just then would have us signalled.
bool IsOpenElsewhere(int fd) {
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  if (sigaction(SIGIO, &ignore, &before) != 0) return true;
  const bool alone = fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
  if (alone) (void)fcntl(fd, F_SETLEASE, F_UNLCK);
  (void)sigaction(SIGIO, &before, nullptr);
  return !alone;
}

SharedMemoryUse UseOfFile(int folder, const char* name, const NamedSharedMemory& named,
                          uid_t owner) {
  const auto there = StatOf(folder, name);
  if (!there || !IsIt(*there, named, owner)) return SharedMemoryUse::kGone;
  const UniqueFd fd(
      openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0) {
    return errno == ENOENT ? SharedMemoryUse::kGone : SharedMemoryUse::kSomebody;
  }
  if (!IsIt(status, named, owner)) return SharedMemoryUse::kGone;
  return IsOpenElsewhere(fd.get()) ? SharedMemoryUse::kSomebody : SharedMemoryUse::kNobody;
}

std::string RecordName(const std::string& mark) {
  // "PID:START:BOOT"
  const std::vector<std::string> words = absl::StrSplit(mark, ':');
  return absl::StrCat(kRecordPrefix, words[0], ".", words.size() > 1 ? words[1] : "0");
}

// Ours have one name: a record with thousands would be read for each.
bool MayBeRecord(const struct stat& status) {
  return S_ISREG(status.st_mode) && status.st_nlink == 1 &&
         static_cast<uint64_t>(status.st_size) <= kMostRecord;
}

// Absent also of one with more than `most` objects.
std::optional<RecordedSharedMemory> ReadRecord(int folder, const char* name, uid_t owner,
                                               size_t most) {
  const UniqueFd fd(
      openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0 || !MayBeRecord(status) || status.st_uid != owner) {
    return std::nullopt;
  }
  const auto text = ReadToEnd(fd.get(), name, kMostRecord);
  if (!text.ok()) return std::nullopt;
  RecordedSharedMemory record;
  record.path = absl::StrCat(kSharedMemoryFolder, "/", name);
  record.owner = status.st_uid;
  std::vector<absl::string_view> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  if (lines.empty() || lines.size() - 1 > most) return std::nullopt;
  // Of another PID namespace nobody can tell.
  const std::vector<std::string> first = absl::StrSplit(lines[0], ' ');
  record.lives = first.size() != 2 || first[1] != PidNamespace() || Lives(first[0]);
  lines.erase(lines.begin());
  for (const absl::string_view line : lines) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    SharedMemory object;
    if (words.size() != 3 || !absl::SimpleAtoi(words[1], &object.place) ||
        !absl::SimpleAtoi(words[2], &object.number)) {
      continue;
    }
    object.is_segment = words[0] == "segment";
    record.objects.insert(object);
  }
  return record;
}

}  // namespace

std::vector<NamedSharedMemory> ListSharedMemory(std::optional<uid_t> owner) {
  std::vector<NamedSharedMemory> out;
  const Folder folder = OpenFolder(kSharedMemoryFolder);
  size_t entries = 0;
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    if (++entries > kMostEntries) break;
    if (absl::StartsWith(entry->d_name, kRecordPrefix)) continue;
    const auto status = StatOf(dirfd(folder.get()), entry->d_name);
    if (!status || (owner && status->st_uid != *owner)) continue;
    out.push_back({{false, status->st_dev, status->st_ino},
                   entry->d_name,
                   static_cast<uint64_t>(status->st_blocks) * 512,
                   0,
                   status->st_uid});
  }
  for (NamedSharedMemory& segment : SegmentsOf(owner)) out.push_back(std::move(segment));
  return out;
}

HeldSharedMemory SharedMemoryOf(pid_t pid) {
  HeldSharedMemory held;
  const std::string process = absl::StrCat("/proc/", pid);
  const std::string prefix = absl::StrCat(kSharedMemoryFolder, "/");
  if (const auto maps = ReadSmallFile(process + "/maps", kMostMaps); maps.ok()) {
    for (const absl::string_view line : absl::StrSplit(*maps, '\n')) {
      const size_t name = line.find('/');
      if (name == absl::string_view::npos || !absl::StartsWith(line.substr(name), prefix)) continue;
      // "7f1e-7f2e rw-s 00000000 00:1b 17    /dev/shm/x"
      const std::vector<absl::string_view> words =
          absl::StrSplit(line.substr(0, name), ' ', absl::SkipEmpty());
      // A private mapping ("r--p") is how a file is read: others see nothing of it.
      if (words.size() < 5 || words[1].back() != 's') continue;
      const std::vector<absl::string_view> device = absl::StrSplit(words[3], ':');
      uint64_t major = 0, minor = 0, inode = 0;
      if (device.size() == 2 && absl::SimpleHexAtoi(device[0], &major) &&
          absl::SimpleHexAtoi(device[1], &minor) && absl::SimpleAtoi(words[4], &inode)) {
        held.mapped.insert(
            {false, makedev(static_cast<unsigned>(major), static_cast<unsigned>(minor)), inode});
      }
    }
  }
  const Folder descriptors = OpenFolder(process + "/fd");
  size_t looked_at = 0;
  while (const dirent* entry = descriptors ? readdir(descriptors.get()) : nullptr) {
    if (++looked_at > kMostOpenFiles) break;
    char target[sizeof(kSharedMemoryFolder)];
    const int fd = dirfd(descriptors.get());
    const ssize_t n = readlinkat(fd, entry->d_name, target, sizeof(target));
    // Others are not asked for: their file system may hang.
    if (n < 0 || absl::string_view(target, static_cast<size_t>(n)) != prefix) continue;
    struct stat status;
    if (fstatat(fd, entry->d_name, &status, 0) == 0 && S_ISREG(status.st_mode)) {
      held.open.insert({false, status.st_dev, status.st_ino});
    }
  }
  return held;
}

SharedMemoryUse UseOf(const NamedSharedMemory& named, uid_t owner) {
  if (named.object.is_segment) return UseOfSegment(named, owner);
  const UniqueFd folder = OpenShared();
  return UseOfFile(folder.get(), named.name.c_str(), named, owner);
}

SharedMemoryUse RemoveUnused(const NamedSharedMemory& named, uid_t owner) {
  const SharedMemoryUse use = UseOf(named, owner);
  if (use != SharedMemoryUse::kNobody) return use;
  if (named.object.is_segment) {
    // Whoever attaches it just now keeps it until its end.
    return shmctl(static_cast<int>(named.object.number), IPC_RMID, nullptr) == 0
               ? SharedMemoryUse::kNobody
               : SharedMemoryUse::kSomebody;
  }
  // Under a name that nobody knows it can be looked at again, and nothing else is removed.
  const UniqueFd folder = OpenShared();
  const std::string aside = absl::StrCat(".dtrain-removes.", RandomHex(8));
  if (renameat2(folder.get(), named.name.c_str(), folder.get(), aside.c_str(), RENAME_NOREPLACE) !=
      0) {
    return errno == ENOENT ? SharedMemoryUse::kGone : SharedMemoryUse::kSomebody;
  }
  const SharedMemoryUse now = UseOfFile(folder.get(), aside.c_str(), named, owner);
  if (now == SharedMemoryUse::kNobody && unlinkat(folder.get(), aside.c_str(), 0) == 0) return now;
  (void)renameat2(folder.get(), aside.c_str(), folder.get(), named.name.c_str(), RENAME_NOREPLACE);
  return now == SharedMemoryUse::kNobody ? SharedMemoryUse::kSomebody : now;
}

std::string Describe(const std::vector<NamedSharedMemory>& objects) {
  std::set<SharedMemory> once;  // some have two names
  double bytes = 0;
  for (const NamedSharedMemory& each : objects) {
    if (once.insert(each.object).second) bytes += static_cast<double>(each.bytes);
  }
  std::string size = bytes >= 1e9   ? absl::StrFormat("%.1f GB", bytes / 1e9)
                     : bytes >= 1e6 ? absl::StrFormat("%.0f MB", bytes / 1e6)
                                    : absl::StrFormat("%.0f kB", bytes / 1e3);
  return absl::StrCat(Count(once.size(), "object"), ", ", size);
}

SharedMemoryRecord::SharedMemoryRecord(std::string mark)
    : mark_(std::move(mark)), path_(absl::StrCat(kSharedMemoryFolder, "/", RecordName(mark_))) {}

void SharedMemoryRecord::Write(const std::set<SharedMemory>& objects) const {
  (void)unlink(path_.c_str());
  if (objects.empty()) return;
  std::string text = absl::StrCat(mark_, " ", PidNamespace(), "\n");
  // The newest have the greatest numbers. Of more than fit, most are gone by now.
  size_t count = 0;
  for (auto object = objects.rbegin(); object != objects.rend(); ++object) {
    const std::string line = absl::StrCat(object->is_segment ? "segment " : "file ", object->place,
                                          " ", object->number, "\n");
    if (++count > kMostObjects || text.size() + line.size() > kMostRecord) break;
    text += line;
  }
  const UniqueFd fd(
      open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd && write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    (void)unlink(path_.c_str());  // no room: the rest is of no use
  }
}

std::vector<RecordedSharedMemory> ReadSharedMemoryRecords(std::optional<uid_t> owner) {
  struct Share {
    size_t records = kMostRecords;
    size_t objects = kMostObjects;
  };
  std::map<uid_t, Share> shares;
  std::vector<RecordedSharedMemory> out;
  const Folder folder = OpenFolder(kSharedMemoryFolder);
  size_t entries = 0;
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    if (++entries > kMostEntries) break;
    if (!absl::StartsWith(entry->d_name, kRecordPrefix)) continue;
    const auto status = StatOf(dirfd(folder.get()), entry->d_name);
    if (!status || !MayBeRecord(*status) || (owner && status->st_uid != *owner)) continue;
    const uid_t uid = status->st_uid;
    if (shares.size() == kMostOwners && !shares.contains(uid)) continue;
    Share& share = shares[uid];
    if (share.records == 0) continue;
    --share.records;
    auto record = ReadRecord(dirfd(folder.get()), entry->d_name, uid, share.objects);
    if (!record) continue;
    share.objects -= record->objects.size();
    out.push_back(*std::move(record));
  }
  return out;
}

}  // namespace dtrain::os
