// SPDX-License-Identifier: Apache-2.0
#include "agent/stage/comparison.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/manifest/sha256.h"

namespace dtrain::staged {
namespace {

constexpr size_t kComparedAtOnce = 32;
constexpr size_t kMostTold = 5;

// Reads little more than `size` bytes: a log grows while it is read.
absl::StatusOr<std::string> HashOf(int fd, uint64_t size) {
  manifest::Sha256 hash;
  std::array<char, 64 << 10> buffer;
  for (uint64_t have = 0;;) {
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, "read it");
    if (n == 0 || have > size) return hash.Finish();
    have += static_cast<uint64_t>(n);
    hash.Add({buffer.data(), static_cast<size_t>(n)});
  }
}

// As people compare them.
std::string Short(const std::string& sha256) { return absl::BytesToHexString(sha256.substr(0, 4)); }

}  // namespace

void Comparison::Begin(const v1::StageTree& tree) {
  if (absl::Status open = Open(tree); !open.ok()) return handlers_.on_failed(open);
  Look();
}

absl::Status Comparison::Open(const v1::StageTree& tree) {
  if (manifest::HashOf(tree.manifest()) != tree.sha256()) {
    return absl::DataLossError("the list of files is not the one that was announced");
  }
  sha256_ = tree.sha256();
  path_ = tree.compare_in();
  auto files = manifest::Parse(tree.manifest());
  if (!files.ok()) return files.status();
  files_ = *std::move(files);
  top_.Reset(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!top_) return PosixError(errno, absl::StrCat("open ", Escape(path_)));
  return absl::OkStatus();
}

void Comparison::Look() {
  for (size_t i = 0; i < kComparedAtOnce && looked_ < files_.size(); ++i, ++looked_) {
    const manifest::File& file = files_[looked_];
    std::string difference = DifferenceOf(file);
    if (difference.empty() || ++differing_ > kMostTold) continue;
    differences_.push_back(absl::StrCat(Escape(file.path), " ", difference));
  }
  if (looked_ < files_.size()) {
    return loop_.Post([this, alive = alive_] {
      if (*alive) Look();
    });
  }
  if (differing_ == 0) return handlers_.on_same(sha256_);
  handlers_.on_failed(Verdict());
}

absl::Status Comparison::Verdict() const {
  const std::string more = differing_ > differences_.size()
                               ? absl::StrCat("; and ", differing_ - differences_.size(), " more")
                               : "";
  return absl::FailedPreconditionError(absl::StrCat(
      Escape(path_),
      " differs from the one on the launching host: ", absl::StrJoin(differences_, "; "), more));
}

// Empty if the file is the same. Folders may be links here: a tree on a file server often has some.
std::string Comparison::DifferenceOf(const manifest::File& file) {
  struct stat status;
  if (fstatat(top_.get(), file.path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT || errno == ENOTDIR
               ? "is missing"
               : absl::StrCat("cannot be examined: ", PosixErrorText(errno));
  }
  if (file.kind == manifest::File::Kind::kLink) {
    std::string target(file.target.size() + 1, '\0');
    const ssize_t size = S_ISLNK(status.st_mode) ? readlinkat(top_.get(), file.path.c_str(),
                                                              target.data(), target.size())
                                                 : -1;
    if (size < 0) return "is not a symbolic link";
    target.resize(static_cast<size_t>(size));
    return target == file.target ? "" : absl::StrCat("does not link to ", Escape(file.target));
  }
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  if (static_cast<uint64_t>(status.st_size) != file.size) {
    return absl::StrCat("has ", status.st_size, " bytes, should have ", file.size);
  }
  const bool executable = file.kind == manifest::File::Kind::kProgram;
  if (((status.st_mode & 0100) != 0) != executable) {
    return executable ? "is not executable" : "is executable";
  }
  os::UniqueFd in(
      openat(top_.get(), file.path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!in) return absl::StrCat("cannot be opened: ", PosixErrorText(errno));
  const auto hash = HashOf(in.get(), file.size);
  if (!hash.ok()) return absl::StrCat("cannot be read: ", hash.status().message());
  if (*hash == file.sha256) return "";
  return absl::StrCat("is ", Short(*hash), ", should be ", Short(file.sha256));
}

}  // namespace dtrain::staged
