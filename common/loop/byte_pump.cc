// SPDX-License-Identifier: Apache-2.0
#include "common/loop/byte_pump.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::loop {
namespace {

constexpr size_t kBuffer = 256 << 10;

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

BytePump::BytePump(Loop& loop, int from, int to, absl::AnyInvocable<void(absl::Status)> on_end)
    : from_(from),
      to_(to),
      from_watch_(loop, from),
      to_watch_(loop, to),
      buffer_(kBuffer, '\0'),
      on_end_(std::move(on_end)) {
  DTRAIN_CHECK(os::SetNonBlocking(from, true).ok());
  DTRAIN_CHECK(os::SetNonBlocking(to, true).ok());
  from_watch_.OnReadable([this] { Read(); });
}

void BytePump::Read() {
  ssize_t n;
  do {
    n = read(from_, buffer_.data(), buffer_.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0 && WouldBlock(errno)) {
    from_watch_.OnReadable([this] { Read(); });
  } else if (n <= 0) {
    std::exchange(on_end_, nullptr)(n == 0 ? absl::OkStatus() : PosixError(errno, "read"));
  } else {
    begin_ = 0;
    end_ = static_cast<size_t>(n);
    Write();
  }
}

void BytePump::Write() {
  while (begin_ < end_) {
    ssize_t n = write(to_, buffer_.data() + begin_, end_ - begin_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && WouldBlock(errno)) {
      to_watch_.OnWritable([this] { Write(); });
      return;
    }
    if (n < 0) {
      std::exchange(on_end_, nullptr)(PosixError(errno, "write"));
      return;
    }
    begin_ += static_cast<size_t>(n);
  }
  from_watch_.OnReadable([this] { Read(); });
}

}  // namespace dtrain::loop
