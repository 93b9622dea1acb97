// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "common/os/output_file.h"
#include "common/os/unique_fd.h"

namespace dtrain::output {

std::string LogFileName(Rank rank, v1::StreamKind stream) {
  return absl::StrFormat("rank-%05d.%s", rank.value(),
                         stream == v1::STREAM_KIND_STDERR ? "err" : "out");
}

struct LogFiles::Directory {
  // As we left it.
  struct File {
    dev_t device;
    ino_t inode;
    off_t size;
  };
  std::string path;
  os::UniqueFd fd;
  std::map<std::string, File> started;

  // A file is open only while it is written to: a job may have more streams than we may have
  // descriptors.
  // DATA_LOSS: all is written, and somebody else has removed or changed what was there.
  absl::Status Append(const std::string& name, absl::string_view bytes) {
    const auto known = started.find(name);
    const bool first = known == started.end();
    std::string what = absl::StrCat("write the log file ", Escape(path), "/", name);
    // Non-blocking, because opening someone's FIFO would wait for its reader.
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    os::UniqueFd file(openat(fd.get(), name.c_str(), flags | (first ? O_TRUNC : 0), 0666));
    if (!file) return PosixError(errno, what);
    struct stat status;
    if (fstat(file.get(), &status) != 0) return PosixError(errno, what);
    if (!S_ISREG(status.st_mode)) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": it is not a regular file"));
    }
    const absl::Status changed =
        first ? absl::OkStatus() : Compare(known->second, status, absl::StrCat(path, "/", name));
    // Also of one that cannot be written to: it is not cut the next time.
    started[name] = {status.st_dev, status.st_ino,
                     status.st_size + static_cast<off_t>(bytes.size())};
    while (!bytes.empty()) {
      ssize_t n = write(file.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return PosixError(errno, what);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    absl::Status closed = os::CloseWritten(std::move(file), what);
    return closed.ok() ? changed : closed;
  }

  // A new file may get the number of the one that was removed: then it is shorter.
  static absl::Status Compare(const File& left, const struct stat& found, absl::string_view file) {
    if (found.st_dev == left.device && found.st_ino == left.inode && found.st_size >= left.size) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat("somebody has removed, renamed or cut the log file ",
                                            Escape(file), ": what follows is at its end"));
  }
};

LogFiles::LogFiles(loop::Loop& loop, std::string dir, Callbacks callbacks)
    : loop_(loop), dir_(std::move(dir)), callbacks_(std::move(callbacks)) {}

LogFiles::~LogFiles() { *alive_ = false; }

absl::Status LogFiles::Open() {
  auto folder = os::MakeFolders(dir_, absl::StrCat("--log-dir: make the directory ", Escape(dir_)));
  if (!folder.ok()) return folder.status();
  auto directory = std::make_shared<Directory>();
  directory->path = dir_;
  directory->fd = *std::move(folder);
  if (faccessat(directory->fd.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return PosixError(errno, absl::StrCat("--log-dir: make files in ", Escape(dir_)));
  }
  directory_ = std::move(directory);
  return absl::OkStatus();
}

void LogFiles::Write(Rank rank, v1::StreamKind stream, absl::string_view bytes) {
  if (directory_ == nullptr) return;
  queued_bytes_ += bytes.size();
  ++queued_writes_;
  auto write =
      std::make_shared<loop::Task>([this, alive = alive_, &loop = loop_, directory = directory_,
                                    name = LogFileName(rank, stream), copy = std::string(bytes)] {
        absl::Status status = directory->Append(name, copy);
        loop.Post([this, alive, size = copy.size(), status = std::move(status)]() mutable {
          if (*alive) Done(size, std::move(status));
        });
      });
  // Without a thread (a local job's workers may have taken all there are) the loop waits for the
  // disk.
  if (!thread_.TryRun([write] { (*write)(); }).ok()) (*write)();
}

void LogFiles::Done(size_t bytes, absl::Status status) {
  queued_bytes_ -= bytes;
  --queued_writes_;
  bool& told = absl::IsDataLoss(status) ? changed_ : failed_;
  if (!status.ok() && !std::exchange(told, true)) callbacks_.on_error(std::move(status));
  if (callbacks_.on_progress) callbacks_.on_progress();
  if (queued_writes_ == 0 && when_idle_) std::exchange(when_idle_, nullptr)();
}

void LogFiles::WhenIdle(loop::Task task) {
  if (queued_writes_ == 0) {
    loop_.Post(std::move(task));
  } else {
    when_idle_ = std::move(task);
  }
}

}  // namespace dtrain::output
