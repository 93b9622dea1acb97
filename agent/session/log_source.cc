// SPDX-License-Identifier: Apache-2.0
#include "agent/session/log_source.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::session {
namespace {

// In one turn of the loop: others have theirs.
constexpr int kReadsPerTurn = 8;
constexpr size_t kMostPayload = 2 + link::kMostLogHead + link::kMostLogData;

}  // namespace

LogSource::LogSource(loop::Loop& loop, os::UniqueFd socket, Handlers handlers)
    : socket_(std::move(socket)),
      watch_(loop, socket_.get()),
      handlers_(std::make_shared<Handlers>(std::move(handlers))) {
  DTRAIN_CHECK(os::SetNonBlocking(socket_.get(), true).ok());
}

LogSource::~LogSource() { *alive_ = false; }

void LogSource::Next() {
  if (over_) return;
  if (std::exchange(owes_ack_, false)) {
    const auto ack = link::EncodeHeader(link::LogAck(++taken_).header);
    // A shepherd reads them all, and few are on their way. One that is gone may have left more to
    // read.
    const ssize_t n = send(socket_.get(), ack.data(), ack.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n != static_cast<ssize_t>(ack.size()) && errno != EPIPE && errno != ECONNRESET) {
      // The watch tells: this is called from the middle of many things.
      stuck_ = true;
      shutdown(socket_.get(), SHUT_RDWR);
    }
  }
  wanted_ = true;
  if (ahead_) {
    Give(*std::exchange(ahead_, std::nullopt));
  } else {
    Await();
  }
}

void LogSource::Await() {
  if (std::exchange(awaits_, true)) return;
  watch_.OnReadable([this] {
    awaits_ = false;
    Turn();
  });
}

void LogSource::Turn() {
  const std::shared_ptr<bool> alive = alive_;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    if (!ReadSome()) break;
    if (!*alive || over_ || ahead_) return;
  }
  Await();
}

// False: there is nothing to read now.
bool LogSource::ReadSome() {
  char* const into = header_ ? payload_.get() : header_bytes_.data();
  const size_t size = header_ ? header_->size : header_bytes_.size();
  const ssize_t n = loop::ReceiveBytes(socket_.get(), into + filled_, size - filled_);
  if (n < 0) {
    if (errno == EINTR) return true;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    Take(errno == EBADMSG ? absl::DataLossError("it sent a descriptor with output")
                          : absl::UnavailableError(
                                PosixError(errno, "read output from the shepherd").message()));
    return true;
  }
  if (n == 0) {
    Take(stuck_ ? absl::DataLossError("it does not read what acknowledges its output")
                : absl::UnavailableError("the shepherd has ended"));
    return true;
  }
  filled_ += static_cast<size_t>(n);
  if (filled_ < size) return true;
  filled_ = 0;
  if (header_) {
    Take(TakeFrame());
  } else if (absl::Status valid = TakeHeader(); !valid.ok()) {
    Take(std::move(valid));
  }
  return true;
}

absl::Status LogSource::TakeHeader() {
  absl::StatusOr<link::Header> header =
      link::DecodeHeader(absl::string_view(header_bytes_.data(), header_bytes_.size()));
  if (!header.ok()) return header.status();
  // Before there is room for it. One without a payload has no head either.
  if (header->size > kMostPayload || header->size == 0) {
    return absl::DataLossError(
        absl::StrCat("invalid frame of output: it has ", header->size, " bytes"));
  }
  payload_ = std::make_shared_for_overwrite<char[]>(header->size);
  header_ = *header;
  return absl::OkStatus();
}

absl::StatusOr<link::LogFrame> LogSource::TakeFrame() {
  link::Frame frame;
  frame.header = *std::exchange(header_, std::nullopt);
  const size_t size = frame.header.size;
  const absl::string_view view(payload_.get(), size);
  frame.payload = link::SharedBytes(std::exchange(payload_, nullptr), view, size);
  return link::DecodeLogFrame(frame);
}

void LogSource::Take(absl::StatusOr<link::LogFrame> next) {
  if (wanted_) {
    Give(std::move(next));
  } else {
    ahead_ = std::move(next);
  }
}

void LogSource::Give(absl::StatusOr<link::LogFrame> next) {
  if (!next.ok()) return Over(next.status());
  if (next->head.has_end()) return Over(std::move(*next->head.mutable_end()));
  wanted_ = false;
  owes_ack_ = true;
  // The next one comes while this one is on its way.
  Await();
  const std::shared_ptr<Handlers> handlers = handlers_;
  handlers->on_piece(next->head.at(), std::move(next->data));
}

void LogSource::Over(absl::StatusOr<v1::LogsEnd> how) {
  if (std::exchange(over_, true)) return;
  const std::shared_ptr<Handlers> handlers = handlers_;
  handlers->on_over(std::move(how));
}

}  // namespace dtrain::session
