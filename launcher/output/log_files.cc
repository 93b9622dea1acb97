// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "common/os/output_file.h"
#include "common/os/unique_fd.h"

namespace dtrain::output {

namespace {

// Folders of the files that are kept open between writes.
constexpr size_t kMostFolders = 64;
// For the launcher before us to be gone.
constexpr Duration kLockPatience = std::chrono::seconds(1);
constexpr size_t kMostHolder = 200;
// Files that a message names.
constexpr size_t kMostNamed = 3;
// Until losses are told; twice as long after each time.
constexpr Duration kTellLosses = std::chrono::seconds(1), kTellLossesMost = std::chrono::minutes(1);

v1::FileLoss MakeLoss(const std::string& name) {
  v1::FileLoss loss;
  loss.set_name(name);
  loss.set_since_unix_nanos(absl::GetCurrentTimeNanos());
  return loss;
}

}  // namespace

LogNames NamesInDirectory(std::string folder) {
  return {"--log-dir",
          std::move(folder),
          /*one_stream=*/true,
          [](Rank rank, v1::StreamKind stream) {
            return absl::StrFormat("rank-%05d.%s", rank.value(),
                                   stream == v1::STREAM_KIND_STDERR ? "err" : "out");
          },
          /*goes_on=*/false,
          ".dtrain.lock"};
}

struct LogFiles::Directory {
  // As we left it.
  struct File {
    dev_t device;
    ino_t inode;
    off_t size;
  };
  std::string path;
  bool goes_on = false;
  os::UniqueFd fd;
  std::map<std::string, File> started;
  std::map<std::string, os::UniqueFd> folders;  // some of those below `fd`

  // That of the file `name`; -1 with an error in `status`.
  int FolderOf(const std::string& name, absl::string_view what, absl::Status& status) {
    const size_t slash = name.rfind('/');
    if (slash == std::string::npos) return fd.get();
    const std::string folder = name.substr(0, slash);
    if (const auto known = folders.find(folder); known != folders.end()) return known->second.get();
    os::UniqueFd start(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!start) {
      status = PosixError(errno, what);
      return -1;
    }
    absl::StatusOr<os::UniqueFd> made = os::MakeFoldersIn(std::move(start), folder, what);
    if (!made.ok()) {
      status = made.status();
      return -1;
    }
    if (folders.size() >= kMostFolders) folders.clear();
    return folders.emplace(folder, *std::move(made)).first->second.get();
  }

  // A file is open only while it is written to: a job may have more streams than we may have
  // descriptors.
  // DATA_LOSS: all is written, but somebody else has removed or changed the file. Leaves what
  // is not written in `bytes`.
  absl::Status Append(const std::string& name, absl::string_view& bytes) {
    const absl::string_view all = bytes;
    const auto known = started.find(name);
    const bool first = known == started.end();
    std::string what = absl::StrCat("write the log file ", Escape(path), "/", name);
    absl::Status place;
    const int folder = FolderOf(name, what, place);
    if (!place.ok()) return place;
    // Non-blocking, because opening someone's FIFO would wait for its reader.
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const std::string last = name.substr(name.rfind('/') + 1);  // npos + 1 is 0
    os::UniqueFd file(
        openat(folder, last.c_str(), flags | (first && !goes_on ? O_TRUNC : 0), 0666));
    if (!file) return PosixError(errno, what);
    struct stat status;
    if (fstat(file.get(), &status) != 0) return PosixError(errno, what);
    if (!S_ISREG(status.st_mode)) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": it is not a regular file"));
    }
    if (absl::Status own = os::CheckMaker(folder, file.get(), what); !own.ok()) return own;
    const absl::Status changed =
        first ? absl::OkStatus() : Compare(known->second, status, absl::StrCat(path, "/", name));
    // Also of one that cannot be written to: it is not cut the next time.
    File& left = started[name];
    left = {status.st_dev, status.st_ino, status.st_size};
    while (!bytes.empty()) {
      ssize_t n = write(file.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return PosixError(errno, what);
      left.size += n;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    absl::Status closed = os::CloseWritten(std::move(file), what);
    if (closed.ok()) return changed;
    bytes = all;
    return closed;
  }

  // A new file may get the number of the one that was removed: then it is shorter.
  static absl::Status Compare(const File& left, const struct stat& found, absl::string_view file) {
    if (found.st_dev == left.device && found.st_ino == left.inode && found.st_size >= left.size) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat("the log file ", Escape(file),
                                            " was removed, renamed or "
                                            "truncated: output continues at its end"));
  }
};

LogFiles::LogFiles(loop::Loop& loop, LogNames names, Callbacks callbacks)
    : loop_(loop),
      names_(std::move(names)),
      callbacks_(std::move(callbacks)),
      why_(names_.lost.why()),
      telling_(loop),
      tell_after_(kTellLosses) {
  for (const v1::FileLoss& loss : names_.lost.files()) losses_[loss.name()] = loss;
}

LogFiles::~LogFiles() {
  *alive_ = false;
  Unlock();
}

absl::Status LogFiles::Open() {
  const std::string& path = names_.folder;
  auto folder =
      os::MakeFolders(path, absl::StrCat(names_.flag, ": make the directory ", Escape(path)));
  if (!folder.ok()) return folder.status();
  auto directory = std::make_shared<Directory>();
  directory->path = path;
  directory->goes_on = names_.goes_on;
  directory->fd = *std::move(folder);
  if (faccessat(directory->fd.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return PosixError(errno, absl::StrCat(names_.flag, ": make files in ", Escape(path)));
  }
  directory_ = std::move(directory);
  absl::Status locked = Lock();
  if (locked.ok()) return locked;
  directory_.reset();
  if (!names_.goes_on) return locked;
  failed_ = true;
  without_ = locked;
  callbacks_.on_error(std::move(locked));
  return absl::OkStatus();
}

// Where there are no locks, as on some file servers, or another user's file is in the way, nothing
// keeps others away.
absl::Status LogFiles::Lock() {
  if (names_.lock.empty()) return absl::OkStatus();
  const int folder = directory_->fd.get();
  struct stat info;
  const bool there = fstatat(folder, names_.lock.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  // The lock has words in it, which must not go into anything else.
  if (there && (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || info.st_nlink != 1)) {
    return absl::OkStatus();
  }
  const std::string path = absl::StrCat("/proc/self/fd/", folder, "/", names_.lock);
  auto lock = os::FileLock::Take(path, absl::StrCat(names_.holder, "\n"),
                                 names_.goes_on ? kLockPatience : Duration::zero());
  if (lock.ok()) {
    lock_ = *std::move(lock);
    return absl::OkStatus();
  }
  if (!absl::IsUnavailable(lock.status())) return absl::OkStatus();
  const auto holder = os::ReadSmallFile(path);
  const std::string who(
      absl::StripAsciiWhitespace(holder.ok() ? absl::string_view(*holder) : absl::string_view()));
  return absl::UnavailableError(
      absl::StrCat(names_.flag, ": ", who.empty() ? "another job" : Escape(who, kMostHolder),
                   " writes to these files in ", Escape(names_.folder),
                   "; wait for its end, or name others, as with --output 'logs/%j/%r.log'"));
}

// Nobody has opened it since who does not find out.
void LogFiles::Unlock() {
  if (!lock_) return;
  (void)unlinkat(directory_->fd.get(), names_.lock.c_str(), 0);
  lock_.reset();
}

void LogFiles::Write(Rank rank, v1::StreamKind stream, absl::string_view bytes) {
  if (names_.one_stream) return Queue(rank, stream, std::string(bytes));
  std::string whole;
  lines_[{rank.value(), stream}].Add(bytes, [&](absl::string_view line, bool ended) {
    absl::StrAppend(&whole, line, ended ? "\n" : "");
  });
  if (!whole.empty()) Queue(rank, stream, std::move(whole));
}

void LogFiles::FlushLine(const StreamId& id, LineSplitter& line) {
  line.Flush([&](absl::string_view rest, bool) {
    Queue(Rank(id.first), static_cast<v1::StreamKind>(id.second), absl::StrCat(rest, "\n"));
  });
}

void LogFiles::End(Rank rank, v1::StreamKind stream) {
  Queue(rank, stream, "");
  const auto line = lines_.find({rank.value(), stream});
  if (line == lines_.end()) return;
  FlushLine(line->first, line->second);
  lines_.erase(line);
}

void LogFiles::Queue(Rank rank, v1::StreamKind stream, std::string bytes) {
  if (directory_ == nullptr) {
    if (!without_.ok() && !bytes.empty()) Lose(names_.name(rank, stream), bytes.size(), without_);
    return;
  }
  queued_bytes_ += bytes.size();
  ++queued_writes_;
  auto write =
      std::make_shared<loop::Task>([this, alive = alive_, &loop = loop_, directory = directory_,
                                    name = names_.name(rank, stream), copy = std::move(bytes)] {
        absl::string_view rest = copy;
        absl::Status status = directory->Append(name, rest);
        loop.Post([this, alive, name, size = copy.size(), missing = rest.size(),
                   status = std::move(status)]() mutable {
          if (*alive) Done(name, size, missing, std::move(status));
        });
      });
  // Without a thread (a local job's workers may have taken all there are) the loop waits for the
  // disk.
  if (!thread_.TryRun([write] { (*write)(); }).ok()) (*write)();
}

void LogFiles::Done(const std::string& name, size_t bytes, size_t missing, absl::Status status) {
  queued_bytes_ -= bytes;
  --queued_writes_;
  if (!status.ok() && !absl::IsDataLoss(status) && missing > 0) Lose(name, missing, status);
  bool& told = absl::IsDataLoss(status) ? changed_ : failed_;
  if (!status.ok() && !std::exchange(told, true)) callbacks_.on_error(std::move(status));
  if (callbacks_.on_progress) callbacks_.on_progress();
  if (queued_writes_ == 0 && when_idle_) std::exchange(when_idle_, nullptr)();
}

void LogFiles::Lose(const std::string& name, size_t bytes, const absl::Status& why) {
  if (why_.empty()) why_ = std::string(why.message());
  v1::FileLoss& loss = losses_[name];
  if (loss.bytes() == 0) loss = MakeLoss(name);
  loss.set_bytes(loss.bytes() + bytes);
  if (untold_.empty()) {
    telling_.After(tell_after_, [this] { TellLosses(); });
    tell_after_ = std::min(2 * tell_after_, kTellLossesMost);
  }
  untold_.insert(name);
}

void LogFiles::TellLosses() {
  telling_.Cancel();
  v1::OutputLost lost;
  lost.set_why(why_);
  for (const std::string& name : std::exchange(untold_, {})) *lost.add_files() = losses_[name];
  if (lost.files_size() > 0 && callbacks_.on_lost) callbacks_.on_lost(std::move(lost));
}

v1::OutputLost LogFiles::Lost() const {
  v1::OutputLost lost;
  lost.set_why(why_);
  for (const auto& [name, loss] : losses_) *lost.add_files() = loss;
  if (queued_bytes_ == 0) return lost;
  if (why_.empty())
    lost.set_why(absl::StrCat("the disk of ", Escape(names_.folder), " took no more"));
  *lost.add_files() = MakeLoss(names_.folder);
  lost.mutable_files()->rbegin()->set_bytes(queued_bytes_);
  return lost;
}

std::string LogFiles::Lack() const {
  std::vector<std::string> parts;
  if (!losses_.empty()) parts.push_back(why_);
  size_t named = 0;
  for (const auto& [name, loss] : losses_) {
    if (named == kMostNamed) break;
    ++named;
    parts.push_back(absl::StrCat(
        Escape(name), " lacks ", Count(loss.bytes(), "byte"), " since ",
        absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(loss.since_unix_nanos()),
                         absl::LocalTimeZone())));
  }
  if (losses_.size() > named) {
    parts.push_back(absl::StrCat(Count(losses_.size() - named, "more file"), " too"));
  }
  if (queued_writes_ > 0) {
    parts.push_back(absl::StrCat("the disk of ", Escape(names_.folder), " has not taken the last ",
                                 Count(queued_bytes_, "byte")));
  }
  if (parts.empty()) return "";
  for (const int full : {ENOSPC, EDQUOT}) {
    if (absl::EndsWith(why_, std::strerror(full))) {
      parts.emplace_back("make room there");
    }
  }
  return absl::StrCat(kLackBegins, " (", names_.flag, "): ", absl::StrJoin(parts, "; "));
}

void LogFiles::Finish(loop::Task task) {
  for (auto& [id, line] : lines_) FlushLine(id, line);
  lines_.clear();
  auto then = [this, task = std::move(task)]() mutable {
    TellLosses();
    Unlock();
    task();
  };
  if (queued_writes_ == 0) {
    loop_.Post([alive = alive_, then = std::move(then)]() mutable {
      if (*alive) then();
    });
  } else {
    when_idle_ = std::move(then);
  }
}

}  // namespace dtrain::output
