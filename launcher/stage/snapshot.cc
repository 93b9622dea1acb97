// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/snapshot.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/manifest/sha256.h"
#include "common/os/unique_fd.h"
#include "launcher/stage/hash_cache.h"
#include "launcher/stage/listing.h"

namespace dtrain::stage {
namespace {

using manifest::File;

constexpr size_t kBlock = 256 << 10;
constexpr uint64_t kNoteworthy = 10 << 20;
constexpr size_t kBiggest = 5;
constexpr int kTries = 3;
// What one rarely means to send.
constexpr const char* kSecrets[] = {".env", "*.pem", "id_*"};

int64_t WallNanos() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::string Size(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  if (bytes < (1 << 20)) return absl::StrFormat("%.1f KiB", static_cast<double>(bytes) / 1024);
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

bool IsSame(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec && a.st_ctim.tv_sec == b.st_ctim.tv_sec &&
         a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
}

class Reader {
 public:
  Reader(const std::string& directory, const std::string& cache_path)
      : directory_(directory), cache_(cache_path), buffer_(kBlock) {}

  // NOT_FOUND: it is not there, or a folder.
  absl::StatusOr<File> Read(const std::string& path) {
    if (absl::Status good = manifest::CheckPath(path); !good.ok()) return good;
    // A link may have replaced a folder of git's index.
    const size_t slash = path.rfind('/');
    const std::string folder = slash == path.npos ? "" : path.substr(0, slash);
    if (!folder_ || folder_path_ != folder) {
      auto opened = OpenFolderOf(directory_, path);
      if (absl::IsNotFound(opened.status())) return opened.status();
      if (!opened.ok()) return Cannot(path, opened.status().message());
      folder_ = *std::move(opened);
      folder_path_ = folder;
    }
    const std::string name = path.substr(slash == path.npos ? 0 : slash + 1);
    struct stat status;
    if (fstatat(folder_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(path);
      return Cannot(path, PosixErrorText(errno));
    }
    File file;
    file.path = path;
    if (S_ISDIR(status.st_mode)) return absl::NotFoundError(path);
    if (S_ISLNK(status.st_mode)) return ReadLink(std::move(file), name);
    if (!S_ISREG(status.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Escape(path),
                       " is neither a file nor a symbolic link; keep it out with --stage-exclude"));
    }
    file.kind = (status.st_mode & 0100) != 0 ? File::Kind::kProgram : File::Kind::kData;
    file.size = static_cast<uint64_t>(status.st_size);
    if (auto known = cache_.Find(status)) {
      file.sha256 = *std::move(known);
      return file;
    }
    for (int i = 0; i < kTries; ++i) {
      auto read = Hash(file, name);
      if (!absl::IsAborted(read.status())) return read;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(Escape(path),
                     " changes while it is read; launch again, or keep it out with "
                     "--stage-exclude"));
  }

  void Save() { cache_.Save(); }

 private:
  static absl::Status Cannot(const std::string& path, absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", Escape(path), ": ", why,
                                                   "; keep it out with --stage-exclude"));
  }

  absl::StatusOr<File> ReadLink(File file, const std::string& name) {
    std::string target(4096, '\0');
    const ssize_t size = readlinkat(folder_.get(), name.c_str(), target.data(), target.size());
    if (size < 0) return Cannot(file.path, PosixErrorText(errno));
    target.resize(static_cast<size_t>(size));
    file.kind = File::Kind::kLink;
    file.target = std::move(target);
    absl::Status inward = manifest::CheckLink(file.path, file.target);
    if (inward.ok()) return file;
    return absl::InvalidArgumentError(
        absl::StrCat(inward.message(), "; keep it out with --stage-exclude"));
  }

  // ABORTED: it changed meanwhile.
  absl::StatusOr<File> Hash(File file, const std::string& name) {
    const int64_t now = WallNanos();
    const os::UniqueFd fd(
        openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat before, after;
    if (!fd || fstat(fd.get(), &before) != 0) return Cannot(file.path, PosixErrorText(errno));
    uint64_t size = 0;
    for (;;) {
      const ssize_t n = read(fd.get(), buffer_.data(), buffer_.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Cannot(file.path, PosixErrorText(errno));
      if (n == 0) break;
      hash_.Add({buffer_.data(), static_cast<size_t>(n)});
      size += static_cast<uint64_t>(n);
    }
    file.sha256 = hash_.Finish();
    file.size = size;
    if (fstat(fd.get(), &after) != 0) return Cannot(file.path, PosixErrorText(errno));
    if (!IsSame(before, after) || size != static_cast<uint64_t>(after.st_size)) {
      return absl::AbortedError("changed");
    }
    cache_.Add(after, file.sha256, now);
    return file;
  }

  const std::string directory_;
  std::string folder_path_;  // of the file that was read last
  os::UniqueFd folder_;
  HashCache cache_;
  manifest::Sha256 hash_;
  std::vector<char> buffer_;
};

const char* FlagOf(const Options& options) { return options.compare ? "--verify-code" : "--stage"; }

absl::Status TooMuch(const Snapshot& snapshot, const Options& options) {
  std::vector<File> files = snapshot.files;
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.size > b.size; });
  std::string text = absl::StrCat(
      FlagOf(options), " ", Escape(options.directory), " has ", snapshot.files.size(), " files, ",
      Size(snapshot.bytes), "; the limit is ",
      options.most_bytes ? Size(*options.most_bytes)
                         : absl::StrCat(Size(kMostBytes), " and ", kMostFiles, " files"),
      " (--stage-limit). The biggest are:");
  for (size_t i = 0; i < std::min(kBiggest, files.size()); ++i) {
    absl::StrAppend(&text, "\n  ", Size(files[i].size), "  ", Escape(files[i].path));
  }
  absl::StrAppend(&text, "\nData does not belong here; keep it out with --stage-exclude");
  return absl::InvalidArgumentError(text);
}

std::vector<std::string> WarningsOf(const Snapshot& snapshot) {
  std::vector<std::string> warnings;
  for (const File& file : snapshot.files) {
    const std::string name = file.path.substr(file.path.rfind('/') + 1);
    const bool is_secret =
        std::any_of(std::begin(kSecrets), std::end(kSecrets),
                    [&](const char* pattern) { return fnmatch(pattern, name.c_str(), 0) == 0; });
    if (is_secret) {
      warnings.push_back(absl::StrCat("--stage copies ", Escape(file.path),
                                      " to all nodes; is it secret? Keep it out with "
                                      "--stage-exclude"));
    } else if (file.size > kNoteworthy) {
      warnings.push_back(absl::StrCat("--stage copies ", Escape(file.path), ", ", Size(file.size),
                                      ", to all nodes"));
    }
  }
  return warnings;
}

}  // namespace

absl::StatusOr<Snapshot> TakeSnapshot(const Options& options, const std::string& cache) {
  struct stat status;
  if (stat(options.directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(FlagOf(options), " ", Escape(options.directory), ": it is not a directory"));
  }
  auto listing = ListFiles(options.directory, options.exclude, options.include);
  if (!listing.ok()) return listing.status();
  Snapshot snapshot;
  snapshot.directory = options.directory;
  snapshot.git = listing->git;
  const std::string name =
      absl::BytesToHexString(manifest::HashOf(options.directory)).substr(0, 16);
  Reader reader(options.directory, cache.empty() ? "" : absl::StrCat(cache, "/", name));
  const uint64_t most_bytes = options.most_bytes.value_or(kMostBytes);
  const size_t most_files = options.most_bytes ? manifest::kMostFiles : kMostFiles;
  bool too_much = false;
  for (const std::string& path : listing->paths) {
    File file;
    if (too_much) {
      // Only how big it is, for the list.
      if (lstat(absl::StrCat(options.directory, "/", path).c_str(), &status) != 0) continue;
      file.path = path;
      file.size = S_ISREG(status.st_mode) ? static_cast<uint64_t>(status.st_size) : 0;
    } else {
      auto read = reader.Read(path);
      if (absl::IsNotFound(read.status())) continue;
      if (!read.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(FlagOf(options), ": ", read.status().message()));
      }
      file = *std::move(read);
    }
    snapshot.bytes += file.size;
    snapshot.files.push_back(std::move(file));
    too_much = snapshot.bytes > most_bytes || snapshot.files.size() > most_files;
  }
  if (too_much) return TooMuch(snapshot, options);
  if (snapshot.files.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(FlagOf(options), " ", Escape(options.directory), " has no files to take",
                     snapshot.git.empty() ? "" : "; git ignores it all"));
  }
  reader.Save();
  auto manifest = manifest::Format(snapshot.files);
  if (!manifest.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        FlagOf(options), ": ", manifest.status().message(), "; keep it out with --stage-exclude"));
  }
  snapshot.manifest = *std::move(manifest);
  snapshot.sha256 = manifest::HashOf(snapshot.manifest);
  if (!options.compare) snapshot.warnings = WarningsOf(snapshot);
  if (!listing->warning.empty()) {
    snapshot.warnings.insert(snapshot.warnings.begin(),
                             absl::StrCat(FlagOf(options), ": ", listing->warning));
  }
  return snapshot;
}

absl::StatusOr<Snapshot> SnapshotOf(std::string manifest, std::string git, std::string directory) {
  auto files = manifest::Parse(manifest);
  if (!files.ok()) return files.status();
  Snapshot snapshot;
  snapshot.directory = std::move(directory);
  snapshot.files = *std::move(files);
  snapshot.sha256 = manifest::HashOf(manifest);
  snapshot.manifest = std::move(manifest);
  snapshot.git = std::move(git);
  for (const File& file : snapshot.files) snapshot.bytes += file.size;
  return snapshot;
}

std::string ShortHash(const Snapshot& snapshot) {
  return absl::BytesToHexString(snapshot.sha256).substr(0, 12);
}

std::string Describe(const Snapshot& snapshot) {
  return absl::StrCat("code ", ShortHash(snapshot), ": ", Count(snapshot.files.size(), "file"),
                      ", ", Size(snapshot.bytes),
                      snapshot.git.empty() ? "" : absl::StrCat(", git ", snapshot.git));
}

}  // namespace dtrain::stage
