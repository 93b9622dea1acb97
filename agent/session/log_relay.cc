// SPDX-License-Identifier: Apache-2.0
#include "agent/session/log_relay.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/log/log.h"
#include "common/os/file_system.h"

namespace dtrain::session {
namespace {

// Large enough that the cost per message is nothing beside the copies, small enough that a few of
// them on their way do not matter.
constexpr size_t kChunk = 512 << 10;
// How often the shepherd hears of progress while a stream flows.
constexpr uint64_t kReportEvery = 1 << 20;
// A disk that fails may do so for a moment. When the job is over nobody waits for it for long.
constexpr Duration kRetryRead = std::chrono::milliseconds(100);
constexpr Duration kReadAtEnd = std::chrono::seconds(10);
// Of a piece for others than the launcher: well below what gRPC takes for one message.
constexpr uint64_t kMostRead = 1 << 20;

// What the launcher has is punched out of the file. Nobody goes by the file's own position, which
// this moves.
uint64_t FirstKept(int spool, uint64_t offset, uint64_t size) {
  const off_t data = lseek(spool, static_cast<off_t>(offset), SEEK_DATA);
  if (data < 0) return errno == ENXIO ? size : offset;
  return std::min(static_cast<uint64_t>(data), size);
}

// To read from it must wait for nobody: a file system that a program of the user's answers for
// could hold us, and with us all jobs of the node. Whether it is one we learn without asking it.
absl::Status CheckSpool(int spool, uid_t owner) {
  auto type = os::FileSystemOf(spool);
  if (!type.ok()) return type.status();
  if (absl::StartsWith(*type, "fuse") && owner != geteuid()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it is on a ", *type, " file system; set TMPDIR to a folder of this machine's disks"));
  }
  struct stat st {};
  if (fstat(spool, &st) != 0) return PosixError(errno, "fstat");
  if (!S_ISREG(st.st_mode)) return absl::InvalidArgumentError("it is not a regular file");
  if (st.st_uid != owner) return absl::InvalidArgumentError("it is another user's");
  return absl::OkStatus();
}

}  // namespace

LogRelay::LogRelay(loop::Loop& loop, OnDelivered on_delivered, OnStuck on_stuck)
    : loop_(loop),
      on_delivered_(std::move(on_delivered)),
      on_stuck_(std::move(on_stuck)),
      retry_(loop),
      alive_(std::make_shared<bool>(true)) {}

LogRelay::~LogRelay() {
  *alive_ = false;
  if (writer_ != nullptr) writer_->Finish(absl::CancelledError("the session ended"));
}

void LogRelay::Expect(const v1::Report& report) {
  for (const v1::RankOnNode& rank : report.job().ranks()) {
    ranks_.insert(rank.rank());
    if (rank.pid() == 0) continue;
    for (v1::StreamKind kind : {v1::STREAM_KIND_STDOUT, v1::STREAM_KIND_STDERR}) {
      Add({rank.rank(), kind});
    }
  }
}

absl::Status LogRelay::Opened(uint32_t rank, v1::StreamKind stream, os::UniqueFd spool,
                              uid_t owner) {
  if (!ranks_.contains(rank) ||
      (stream != v1::STREAM_KIND_STDOUT && stream != v1::STREAM_KIND_STDERR)) {
    return absl::InvalidArgumentError(absl::StrCat("it reported output ", stream, " of rank ", rank,
                                                   ", which is not on this node"));
  }
  Stream& place = Add({rank, stream});
  if (!spool) return absl::OkStatus();
  if (place.spool) {
    return absl::InvalidArgumentError(absl::StrCat("it opened output of rank ", rank, " twice"));
  }
  if (absl::Status fault = CheckSpool(spool.get(), owner); !fault.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the file for output of rank ", rank,
                                                   " is not one to read from: ", fault.message()));
  }
  place.spool = std::move(spool);
  return absl::OkStatus();
}

LogRelay::Stream& LogRelay::Add(const Key& key) {
  auto [place, is_new] = streams_.try_emplace(key);
  if (is_new) place->second.sent = From(key);
  return place->second;
}

uint64_t LogRelay::From(const Key& key) const {
  auto it = from_.find(key);
  return it != from_.end() ? it->second : 0;
}

void LogRelay::Grown(uint32_t rank, v1::StreamKind stream, uint64_t size) {
  auto it = streams_.find({rank, stream});
  if (it == streams_.end()) return;
  it->second.size = std::max(it->second.size, size);
  Enqueue(it->first, it->second);
  SendNext();
}

void LogRelay::Finished(const v1::Finished& finished) {
  finished_ = true;
  std::map<Key, uint64_t> ends;
  for (const v1::LogEnd& end : finished.logs()) ends[{end.rank(), end.stream()}] = end.size();
  for (auto& [key, stream] : streams_) {
    auto end = ends.find(key);
    struct stat st {};
    if (end != ends.end()) {
      stream.size = end->second;
    } else if (fstat(stream.spool.get(), &st) == 0) {
      stream.size = std::max(stream.size, static_cast<uint64_t>(st.st_size));
    }
    Enqueue(key, stream);
  }
  SendNext();
}

void LogRelay::Attach(std::shared_ptr<Writer> writer, const v1::LogsRequest& request) {
  if (writer_ != nullptr) writer_->Finish(absl::AbortedError("these logs have another reader now"));
  writer_ = std::move(writer);
  ++reader_;
  writing_ = false;
  ready_.clear();
  from_.clear();
  for (const v1::LogPosition& position : request.from()) {
    from_[{position.rank(), position.stream()}] = position.offset();
  }
  for (auto& [key, stream] : streams_) {
    stream.sent = From(key);
    stream.queued = false;
    Enqueue(key, stream);
  }
  SendNext();
}

absl::StatusOr<v1::LogPiece> LogRelay::Read(uint32_t rank, v1::StreamKind kind, uint64_t offset,
                                            size_t limit) const {
  auto it = streams_.find({rank, kind});
  if (it == streams_.end()) return absl::NotFoundError("there is no such output on this node");
  const Stream& stream = it->second;
  v1::LogPiece piece;
  piece.set_size(stream.size);
  piece.set_ended(finished_);
  if (!stream.spool) return piece;  // nothing was written yet
  offset = std::min(offset, stream.size);
  std::string& bytes = *piece.mutable_data();
  ssize_t n;
  do {
    offset = FirstKept(stream.spool.get(), offset, stream.size);
    bytes.resize(std::min<uint64_t>({limit, kMostRead, stream.size - offset}));
    n = pread(stream.spool.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    // Again when it was punched out meanwhile, from the front on.
  } while ((n < 0 && errno == EINTR) ||
           (n > 0 && FirstKept(stream.spool.get(), offset, stream.size) != offset));
  if (n < 0) return PosixError(errno, "read the log spool");
  bytes.resize(static_cast<size_t>(n));
  piece.set_offset(offset);
  return piece;
}

uint64_t LogRelay::size(uint32_t rank, v1::StreamKind stream) const {
  auto it = streams_.find({rank, stream});
  return it == streams_.end() ? 0 : it->second.size;
}

void LogRelay::Enqueue(const Key& key, Stream& stream) {
  if (stream.queued || stream.sent >= stream.size) return;
  stream.queued = true;
  ready_.push_back(key);
}

void LogRelay::SendNext() {
  if (writing_ || writer_ == nullptr) return;
  if (ready_.empty()) {
    if (finished_) writer_->Finish(absl::OkStatus());
    return;
  }
  Key key = ready_.front();
  ready_.pop_front();
  Stream& stream = streams_[key];
  stream.queued = false;

  v1::LogChunk chunk;
  chunk.set_rank(key.first);
  chunk.set_stream(key.second);
  chunk.set_offset(stream.sent);
  std::string& data = *chunk.mutable_data();
  data.resize(std::min<uint64_t>(kChunk, stream.size - stream.sent));
  ssize_t n;
  do {
    n = pread(stream.spool.get(), data.data(), data.size(), static_cast<off_t>(stream.sent));
  } while (n < 0 && errno == EINTR);
  if (n <= 0) {
    return Unreadable(key, stream, n < 0 ? errno : 0);
  }
  give_up_at_.reset();
  data.resize(static_cast<size_t>(n));
  uint64_t end = stream.sent + static_cast<uint64_t>(n);
  stream.sent = end;
  writing_ = true;
  writer_->Write(std::move(chunk), [this, alive = alive_, key, end, reader = reader_](bool ok) {
    if (!*alive || reader != reader_) return;
    writing_ = false;
    if (ok) Taken(key, end);
  });
}

// `error`: 0 when the file is shorter than was said, which no file of ours can be.
void LogRelay::Unreadable(const Key& key, Stream& stream, int error) {
  const std::string why =
      absl::StrCat("read the log spool: ", error == 0 ? "it is too short" : PosixErrorText(error));
  if (finished_ && !give_up_at_) give_up_at_ = loop_.Now() + kReadAtEnd;
  if (error == 0 || (give_up_at_ && loop_.Now() >= *give_up_at_)) {
    // The launcher sees the gap, because the session ends without this stream's bytes.
    log::Error(absl::StrCat("output of rank ", key.first, " is lost: ", why));
    writer_->Finish(absl::DataLossError(why));
    stream.size = stream.sent;
    return;
  }
  if (!std::exchange(told_stuck_, true)) on_stuck_(key.first, why);
  Enqueue(key, stream);
  retry_.After(kRetryRead, [this] { SendNext(); });
}

void LogRelay::Taken(const Key& key, uint64_t offset) {
  Stream& stream = streams_[key];
  Enqueue(key, stream);
  if (offset - stream.reported >= kReportEvery || !stream.queued) {
    stream.reported = offset;
    on_delivered_(key.first, key.second, offset);
  }
  SendNext();
}

}  // namespace dtrain::session
