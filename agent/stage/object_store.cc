// SPDX-License-Identifier: Apache-2.0
#include "agent/stage/object_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::staged {
namespace {

constexpr size_t kBlock = 256 << 10;
constexpr time_t kSecondsPerDay = 86400;
constexpr char kTemporary[] = "new-";
// So old a temporary file belongs to nobody any more.
constexpr time_t kAbandoned = kSecondsPerDay;

absl::StatusOr<os::UniqueFd> MakeAndOpen(int parent, const std::string& name,
                                         const std::string& path) {
  if (mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST) {
    return PosixError(errno, absl::StrCat("make the folder ", path));
  }
  os::UniqueFd folder(
      openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return PosixError(errno, absl::StrCat("open the folder ", path));
  return folder;
}

absl::Status WriteAll(int fd, absl::string_view bytes, absl::string_view what) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, what);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// Of what can be read of `from`, which is also written to `to` if that is not -1. Reads at most one
// byte more than `size`.
absl::StatusOr<std::string> HashAndCopy(int from, int to, uint64_t size, absl::string_view what) {
  static thread_local auto& hash = *new manifest::Sha256;
  static thread_local auto& buffer = *new std::vector<char>(kBlock);
  (void)hash.Finish();
  uint64_t have = 0;
  for (;;) {
    const ssize_t n = read(from, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, what);
    if (n == 0) return hash.Finish();
    have += static_cast<uint64_t>(n);
    if (have > size) return std::string();  // of no content
    const absl::string_view bytes(buffer.data(), static_cast<size_t>(n));
    hash.Add(bytes);
    if (to < 0) continue;
    if (absl::Status written = WriteAll(to, bytes, what); !written.ok()) return written;
  }
}

os::UniqueFd MakeFile(const manifest::File& file, int parent, const std::string& name) {
  const mode_t mode = file.kind == manifest::File::Kind::kProgram ? 0755 : 0644;
  return os::UniqueFd(
      openat(parent, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
}

absl::Status MakeEmpty(const manifest::File& file, int parent, const std::string& name) {
  static const auto& hash = *new std::string(manifest::HashOf(""));
  if (file.sha256 != hash) return absl::InvalidArgumentError("an empty file with another hash");
  if (!MakeFile(file, parent, name)) return PosixError(errno, absl::StrCat("write ", name));
  return absl::OkStatus();
}

struct Entry {
  std::string folder, name;
  time_t used = 0;
  uint64_t size = 0;
};

std::vector<std::string> NamesOf(int parent, const char* name) {
  std::vector<std::string> names;
  os::UniqueFd folder(openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(folder.get()), closedir);
  if (listing == nullptr) return names;
  (void)folder.Release();
  while (const dirent* entry = readdir(listing.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

}  // namespace

absl::StatusOr<std::string> UserFolder() {
  const char* cache = getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return absl::StrCat(cache, "/dtrain/stage");
  const char* home = getenv("HOME");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.cache/dtrain/stage");
  return absl::FailedPreconditionError(
      "nowhere to keep the files of --stage: neither HOME nor XDG_CACHE_HOME is set");
}

// What lies above these folders is its user's choice: a project's folder may belong to whoever
// leads that.
absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return PosixError(errno, absl::StrCat("make the folder ", path));
  }
  struct stat link, info;
  if (lstat(path.c_str(), &link) != 0 || stat(path.c_str(), &info) != 0) {
    return PosixError(errno, absl::StrCat("look at ", path));
  }
  std::string why;
  for (const uid_t owner : {link.st_uid, info.st_uid}) {
    if (owner != geteuid()) why = absl::StrCat("belongs to user id ", owner);
  }
  if (!S_ISDIR(info.st_mode)) why = "is not a directory";
  if (why.empty() && (info.st_mode & 022) != 0) {
    why = absl::StrFormat("can be changed by others (mode %04o)", info.st_mode & 07777);
  }
  if (why.empty()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("nowhere to keep the files of --stage: ", path, " ", why,
                   "; remove it, or choose another folder with XDG_CACHE_HOME"));
}

absl::StatusOr<ObjectStore> ObjectStore::Open(const std::string& folder) {
  ObjectStore store;
  store.path_ = absl::StrCat(folder, "/objects");
  for (size_t at = store.path_.find('/', 1); at != std::string::npos;
       at = store.path_.find('/', at + 1)) {
    const std::string above = store.path_.substr(0, at);
    if (mkdir(above.c_str(), 0700) != 0 && errno != EEXIST && access(above.c_str(), F_OK) != 0) {
      return PosixError(errno, absl::StrCat("make the folder ", above));
    }
  }
  for (const std::string& each : {folder.substr(0, folder.rfind('/')), folder, store.path_}) {
    if (absl::Status made = MakeFolder(each); !made.ok()) return made;
  }
  auto objects = MakeAndOpen(AT_FDCWD, store.path_, store.path_);
  if (!objects.ok()) return objects.status();
  store.objects_ = *std::move(objects);
  return store;
}

// Of 256, by the first byte.
absl::StatusOr<os::UniqueFd> ObjectStore::FolderOf(absl::string_view sha256, bool make) const {
  const std::string name = absl::BytesToHexString(sha256.substr(0, 1));
  os::UniqueFd folder(
      openat(objects_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder || !make) {
    if (folder) return folder;
    return absl::NotFoundError("no such content");
  }
  auto made = MakeAndOpen(objects_.get(), name, absl::StrCat(path_, "/", name));
  if (!made.ok() && unlinkat(objects_.get(), name.c_str(), 0) == 0) {  // no folder
    made = MakeAndOpen(objects_.get(), name, absl::StrCat(path_, "/", name));
  }
  return made;
}

absl::Status ObjectStore::TakeOut(const manifest::File& file, int parent, const std::string& name) {
  if (file.size == 0) return MakeEmpty(file, parent, name);
  const auto folder = FolderOf(file.sha256, /*make=*/false);
  if (!folder.ok()) return folder.status();
  const std::string hex = absl::BytesToHexString(file.sha256.substr(1));
  // What somebody may have put there must not hold us.
  const os::UniqueFd from(openat(folder->get(), hex.c_str(),
                                 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status;
  if (!from || fstat(from.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<uint64_t>(status.st_size) != file.size) {
    (void)unlinkat(folder->get(), hex.c_str(), 0);
    return absl::NotFoundError("no such content");
  }
  const std::string what = absl::StrCat("write ", name);
  const os::UniqueFd to = MakeFile(file, parent, name);
  if (!to) return PosixError(errno, what);
  // Blocks that both share until one of them is written to, where the file system can; else a copy.
  const bool shared = ioctl(to.get(), FICLONE, from.get()) == 0;
  auto hash = shared ? HashAndCopy(to.get(), -1, file.size, what)
                     : HashAndCopy(from.get(), to.get(), file.size, what);
  if (!hash.ok()) {
    (void)unlinkat(parent, name.c_str(), 0);
    // A disk that cannot read it is as good as damage.
    if (!shared && absl::IsInternal(hash.status())) {
      (void)unlinkat(folder->get(), hex.c_str(), 0);
      return absl::NotFoundError("it cannot be read");
    }
    return hash.status();
  }
  if (*hash != file.sha256) {
    (void)unlinkat(parent, name.c_str(), 0);
    (void)unlinkat(folder->get(), hex.c_str(), 0);
    return absl::NotFoundError("it was damaged");
  }
  // When it was used last: once a day is enough to know.
  if (time(nullptr) - status.st_mtime > kSecondsPerDay) {
    (void)futimens(from.get(), nullptr);
  }
  return absl::OkStatus();
}

ObjectStore::Incoming::~Incoming() {
  if (out_ && !temporary_.empty()) (void)unlinkat(folder_.get(), temporary_.c_str(), 0);
}

absl::StatusOr<ObjectStore::Incoming> ObjectStore::Receive(const manifest::File& file) {
  auto folder = FolderOf(file.sha256, /*make=*/true);
  if (!folder.ok()) return folder.status();
  Incoming incoming;
  incoming.folder_ = *std::move(folder);
  incoming.temporary_ = absl::StrCat(kTemporary, os::RandomHex(8));
  incoming.name_ = absl::BytesToHexString(file.sha256.substr(1));
  incoming.sha256_ = file.sha256;
  incoming.size_ = file.size;
  incoming.hash_ = std::make_unique<manifest::Sha256>();
  incoming.out_.Reset(openat(incoming.folder_.get(), incoming.temporary_.c_str(),
                             O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!incoming.out_) return PosixError(errno, absl::StrCat("make a file in ", path_));
  return incoming;
}

absl::Status ObjectStore::Incoming::Add(absl::string_view bytes) {
  if (bytes.size() > left()) return absl::DataLossError("there is more of it than was announced");
  hash_->Add(bytes);
  have_ += bytes.size();
  return WriteAll(out_.get(), bytes, "write to the store of --stage");
}

absl::Status ObjectStore::Incoming::Finish() {
  if (left() > 0) return absl::DataLossError("there is less of it than was announced");
  if (hash_->Finish() != sha256_) {
    return absl::DataLossError(
        "its bytes are not those that were announced: it has changed meanwhile; launch again");
  }
  (void)fchmod(out_.get(), 0400);
  if (renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0) {
    return PosixError(errno, "keep a file in the store of --stage");
  }
  temporary_.clear();
  return os::CloseWritten(std::move(out_), "write to the store of --stage");
}

absl::Status ObjectStore::Trim(uint64_t most) {
  std::vector<Entry> entries;
  uint64_t all = 0;
  const time_t now = time(nullptr);
  for (const std::string& folder : NamesOf(objects_.get(), ".")) {
    for (const std::string& name : NamesOf(objects_.get(), folder.c_str())) {
      const std::string path = absl::StrCat(folder, "/", name);
      struct stat status;
      if (fstatat(objects_.get(), path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (absl::StartsWith(name, kTemporary)) {
        if (now - status.st_mtime > kAbandoned) (void)unlinkat(objects_.get(), path.c_str(), 0);
        continue;
      }
      const auto size = static_cast<uint64_t>(status.st_blocks) * 512;
      all += size;
      entries.push_back({folder, name, status.st_mtime, size});
    }
  }
  if (all <= most) return absl::OkStatus();
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.used, a.folder, a.name) < std::tie(b.used, b.folder, b.name);
  });
  for (const Entry& entry : entries) {
    if (all <= most) break;
    const std::string path = absl::StrCat(entry.folder, "/", entry.name);
    if (unlinkat(objects_.get(), path.c_str(), 0) != 0 && errno != ENOENT) {
      return PosixError(errno, absl::StrCat("remove ", path_, "/", path));
    }
    all -= entry.size;
  }
  return absl::OkStatus();
}

}  // namespace dtrain::staged
