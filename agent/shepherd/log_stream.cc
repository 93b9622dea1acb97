// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/log_stream.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::shepherd {
namespace {

constexpr size_t kMoveSize = 1 << 20;  // also the largest that a pipe may be
// A worker that prints line by line wakes us for each one. Looking again only after a moment lets
// lines gather in the pipe and costs a reader nothing that it could notice.
constexpr size_t kSmallRead = 64 << 10;
constexpr Duration kGather = std::chrono::milliseconds(1);
constexpr size_t kLeastPipeHolds = 4 << 10;
constexpr Duration kRetrySpool = std::chrono::milliseconds(100);
// Not given back even when delivered: Tail may want it.
constexpr uint64_t kKeep = 64 << 10;
constexpr uint64_t kMostOfShortLine = 512;
// Of the limit, where no disk takes the output: it is the job's memory.
constexpr uint64_t kMostInMemory = 4 << 20;

}  // namespace

LogStream::LogStream(loop::Loop& loop, os::UniqueFd pipe, std::vector<std::string> directories,
                     Limits limits, OnGrown on_grown, OnStuck on_stuck)
    : loop_(loop),
      pipe_(std::move(pipe)),
      spool_(std::move(directories)),
      limit_(limits.undelivered_bytes),
      on_grown_(std::move(on_grown)),
      on_stuck_(std::move(on_stuck)),
      retry_(loop) {
  (void)fcntl(pipe_.get(), F_SETPIPE_SZ,
              limits.pipe_bytes);  // over the user's quota it stays as it is
  DTRAIN_CHECK(os::SetNonBlocking(pipe_.get(), true).ok());
  watch_ = std::make_unique<loop::FdWatch>(loop_, pipe_.get());
  Arm();
}

void LogStream::Arm() {
  if (armed_ || ended()) return;
  armed_ = true;
  watch_->OnReadable([this] { OnReadable(); });
}

void LogStream::OnReadable() {
  armed_ = false;
  if (ended()) return;
  if (!discard_ && full()) return;  // Delivered goes on
  switch (Move()) {
    case Moved::kSome:
      if (last_moved_ < kSmallRead) {
        retry_.After(kGather, [this] { Arm(); });
      } else {
        Arm();
      }
      break;
    case Moved::kNothing:
      Arm();
      break;
    case Moved::kStuck:
      retry_.After(kRetrySpool, [this] { Arm(); });
      break;
    case Moved::kEnd:
      Close();
      break;
  }
}

bool LogStream::full() const {
  const uint64_t limit = spool_.in_memory() ? std::min(limit_, kMostInMemory) : limit_;
  return size() - delivered_ >= limit;
}

LogStream::Moved LogStream::Move() {
  if (discard_ || size() == 0 || !can_splice_ || !held_.empty()) return Copy();
  const ssize_t n = spool_.Splice(pipe_.get(), kMoveSize);
  if (n == 0) return Moved::kEnd;
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return Moved::kNothing;
    if (errno == EINVAL || errno == ENOSYS) {
      can_splice_ = false;
      return Copy();
    }
    return Stuck(errno);
  }
  last_moved_ = static_cast<uint64_t>(n);
  on_grown_();
  return Moved::kSome;
}

LogStream::Moved LogStream::Copy() {
  if (held_.empty()) {
    ssize_t n =
        read(pipe_.get(), loop_.scratch(), size() > 0 ? loop::Loop::kScratchBytes : kSmallRead);
    if (n == 0) return Moved::kEnd;
    if (n < 0) {
      DTRAIN_CHECK(errno == EAGAIN ||
                   errno == EINTR);  // a pipe's read end has no other way to fail
      return Moved::kNothing;
    }
    held_.assign(loop_.scratch(), static_cast<size_t>(n));
  }
  last_moved_ = held_.size();
  if (discard_) {
    held_.clear();
    return Moved::kSome;
  }
  const ssize_t n = spool_.Write(held_.data(), held_.size());
  if (n <= 0) return Stuck(errno);
  held_.erase(0, static_cast<size_t>(n));
  on_grown_();
  return Moved::kSome;
}

LogStream::Moved LogStream::Stuck(int error) {
  // A limit of files is worse than any lack of room that was told before.
  const bool worse = error == EFBIG && !std::exchange(too_large_, true);
  if (why_stuck_.ok() || worse) {
    why_stuck_ = PosixError(error, "keep a worker's output");
    on_stuck_(why_stuck_);
  }
  // All may be delivered, and the room still be taken: on a disk that is smaller than a big step.
  Reclaim();
  return Moved::kStuck;
}

void LogStream::Reclaim() {
  spool_.Reclaim(std::min(delivered_, size() - std::min(size(), kKeep)),
                 /*scarce=*/!why_stuck_.ok());
}

void LogStream::Delivered(uint64_t offset) {
  offset = std::min(offset, size());
  if (offset <= delivered_) return;
  const bool was_full = full();
  delivered_ = offset;
  Reclaim();
  if (was_full && !full()) Arm();
}

void LogStream::Discard() {
  discard_ = true;
  held_.clear();
  Arm();
}

bool LogStream::Drain() {
  // A writer that is still there could keep us here for good.
  for (uint64_t moved = 0; !ended(); moved += last_moved_) {
    if (moved > 2 * kMoveSize) return false;
    switch (Move()) {
      case Moved::kSome:
        break;
      case Moved::kNothing:
        return true;
      case Moved::kStuck:
        return too_large_;  // there will be no room
      case Moved::kEnd:
        Close();
        break;
    }
  }
  return true;
}

uint64_t LogStream::Pending() const {
  int waiting = 0;
  if (!ended()) (void)ioctl(pipe_.get(), FIONREAD, &waiting);
  return held_.size() + static_cast<uint64_t>(waiting);
}

void LogStream::Close() {
  watch_.reset();
  retry_.Cancel();
  pipe_.Reset();
}

absl::StatusOr<size_t> LogStream::MoveTo(int pipe, uint64_t offset, size_t room) const {
  constexpr absl::string_view kWhat = "read the log spool";
  auto [fd, at, bytes] = spool_.Find(offset);
  room = static_cast<size_t>(std::min<uint64_t>(room, bytes));
  ssize_t n;
  do {
    n = splice(fd, &at, pipe, nullptr, room, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EINVAL || errno == ENOSYS)) {
    // A pipe takes so much, whatever its owner's quota.
    n = pread(fd, loop_.scratch(), std::min(room, kLeastPipeHolds), at);
    if (n > 0) n = write(pipe, loop_.scratch(), static_cast<size_t>(n));
  }
  if (n < 0) return PosixError(errno, kWhat);
  // No file of ours can be.
  if (n == 0) return absl::DataLossError(absl::StrCat(kWhat, ": it is too short"));
  return static_cast<size_t>(n);
}

// As far as it can be read.
std::string LogStream::Last(uint64_t bytes) const {
  std::string text(bytes, '\0');
  for (size_t have = 0; have < text.size();) {
    const SpoolFile::Place place = spool_.Find(size() - bytes + have);
    const ssize_t n =
        pread(place.fd, &text[have], std::min<uint64_t>(text.size() - have, place.bytes), place.at);
    if (n <= 0) text.resize(have);
    if (n > 0) have += static_cast<size_t>(n);
  }
  return text;
}

uint64_t LogStream::EndOfLines(uint64_t from, uint64_t most) const {
  const uint64_t all = std::min({size() - from, size() - kept_from(), most});
  // Most lines are short.
  for (const uint64_t bytes : {std::min<uint64_t>(all, kMostOfShortLine), all}) {
    const std::string text = Last(bytes);
    if (text.size() < bytes) return size();
    const size_t at = text.rfind('\n');
    if (at != std::string::npos) return size() - bytes + at + 1;
  }
  return 0;
}

std::string LogStream::Tail(size_t lines, size_t bytes) const {
  std::string text = Last(std::min<uint64_t>(size() - kept_from(), bytes));
  size_t at = text.size();
  // The newline that ends the last line is not one that begins another.
  if (at > 0 && text[at - 1] == '\n') --at;
  for (; lines > 0 && at > 0; --lines) {
    at = text.rfind('\n', at - 1);
    if (at == std::string::npos) return text;
  }
  return lines == 0 ? text.substr(at + 1) : text;
}

}  // namespace dtrain::shepherd
