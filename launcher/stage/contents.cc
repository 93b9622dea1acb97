// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/contents.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/manifest/sha256.h"
#include "launcher/stage/listing.h"

namespace dtrain::stage {
namespace {

constexpr size_t kCopyBlock = 256 << 10;

absl::StatusOr<std::string> ReadAt(int fd, uint64_t offset, size_t size) {
  std::string bytes(size, '\0');
  size_t have = 0;
  while (have < size) {
    const ssize_t n =
        pread(fd, bytes.data() + have, size - have, static_cast<off_t>(offset + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::InternalError(PosixErrorText(errno));
    if (n == 0) return absl::AbortedError("it has become shorter");
    have += static_cast<size_t>(n);
  }
  return bytes;
}

}  // namespace

absl::Status Contents::Copy(const std::vector<std::string>& places) {
  os::UniqueFd copy;
  int error = ENOENT;
  for (const std::string& place : places) {
    // Not O_TMPFILE, which not every file system has.
    std::string path = absl::StrCat(place, "/dtrain-code-XXXXXX");
    copy.Reset(mkostemp(path.data(), O_CLOEXEC));
    if (copy) {
      (void)unlink(path.c_str());
      break;
    }
    error = errno;
  }
  if (!copy) {
    return PosixError(error, absl::StrCat("copy the code, for restarts, to one of ",
                                          absl::StrJoin(places, ", ")));
  }
  return CopyInto(std::move(copy), [] {});
}

absl::Status Contents::CopyTo(const std::string& path, absl::FunctionRef<void()> beat) {
  os::UniqueFd copy(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!copy) return PosixError(errno, absl::StrCat("copy the code to ", path));
  const int fd = copy.get();
  if (absl::Status copied = CopyInto(std::move(copy), beat); !copied.ok()) return copied;
  if (fdatasync(fd) != 0) return PosixError(errno, absl::StrCat("copy the code to ", path));
  return absl::OkStatus();
}

absl::Status Contents::UseCopy(const std::string& path) {
  os::UniqueFd copy(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!copy) return PosixError(errno, absl::StrCat("read the code, from ", path));
  auto [offsets, end] = Offsets();
  struct stat status;
  if (fstat(copy.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != end) {
    return absl::DataLossError(absl::StrCat(path, " is not as long as the code of the job"));
  }
  offsets_ = std::move(offsets);
  open_.Reset();
  copy_ = std::move(copy);
  return absl::OkStatus();
}

std::pair<std::vector<uint64_t>, uint64_t> Contents::Offsets() const {
  absl::flat_hash_map<absl::string_view, uint64_t> there;
  std::pair<std::vector<uint64_t>, uint64_t> found;
  for (const manifest::File& file : snapshot_.files) {
    const auto [same, is_new] = there.emplace(file.sha256, found.second);
    found.first.push_back(same->second);
    if (is_new) found.second += file.size;
  }
  return found;
}

absl::Status Contents::CopyInto(os::UniqueFd copy, absl::FunctionRef<void()> beat) {
  auto [offsets, end] = Offsets();
  manifest::Sha256 hash;
  uint64_t written = 0;
  for (uint32_t i = 0; i < snapshot_.files.size(); ++i) {
    const manifest::File& file = snapshot_.files[i];
    if (offsets[i] != written || file.size == 0) continue;  // it is there
    for (uint64_t at = 0; at < file.size; at += kCopyBlock) {
      const size_t size = std::min<uint64_t>(kCopyBlock, file.size - at);
      auto bytes = Read(i, at, size);
      if (!bytes.ok()) return bytes.status();
      hash.Add(*bytes);
      if (pwrite(copy.get(), bytes->data(), size, static_cast<off_t>(written + at)) !=
          static_cast<ssize_t>(size)) {
        return PosixError(errno, "copy the code, for restarts");
      }
      beat();
    }
    if (hash.Finish() != file.sha256) {
      return absl::AbortedError(
          absl::StrCat(Escape(file.path), " has changed meanwhile; launch again"));
    }
    written += file.size;
  }
  offsets_ = std::move(offsets);
  open_.Reset();
  copy_ = std::move(copy);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Contents::Read(uint32_t file, uint64_t offset, size_t size) {
  const std::string& path = snapshot_.files[file].path;
  absl::StatusOr<std::string> bytes;
  if (copy_) {
    bytes = ReadAt(copy_.get(), offsets_[file] + offset, size);
  } else {
    if (!open_ || open_file_ != file) {
      // A link may have replaced a folder since the snapshot.
      const auto folder = OpenFolderOf(snapshot_.directory, path);
      const std::string name = path.substr(path.rfind('/') + 1);
      errno = ENOENT;
      open_.Reset(folder.ok() ? openat(folder->get(), name.c_str(),
                                       O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
                              : -1);
      open_file_ = file;
    }
    bytes = open_ ? ReadAt(open_.get(), offset, size) : absl::InternalError(PosixErrorText(errno));
  }
  if (bytes.ok()) return bytes;
  return absl::Status(bytes.status().code(),
                      absl::StrCat("cannot read ", Escape(path), ": ", bytes.status().message()));
}

}  // namespace dtrain::stage
