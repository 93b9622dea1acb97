// SPDX-License-Identifier: Apache-2.0
#include "common/loop/byte_pump.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/loop/stray_descriptors.h"
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
      buffer_(std::make_unique_for_overwrite<char[]>(kBuffer)),
      on_end_(std::move(on_end)) {
  DTRAIN_CHECK(os::SetNonBlocking(from, true).ok());
  DTRAIN_CHECK(os::SetNonBlocking(to, true).ok());
  from_watch_.OnReadable([this] { Read(); });
}

void BytePump::Read() {
  ssize_t n;
  do {
    n = sender_is_strange_ ? ReceiveBytes(from_, buffer_.get(), kBuffer)
                           : read(from_, buffer_.get(), kBuffer);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && WouldBlock(errno)) {
    from_watch_.OnReadable([this] { Read(); });
  } else if (n < 0 && errno == EBADMSG) {
    std::exchange(on_end_,
                  nullptr)(absl::DataLossError("it sends descriptors, which nobody takes"));
  } else if (n <= 0) {
    std::exchange(on_end_, nullptr)(n == 0 ? absl::OkStatus() : PosixError(errno, "read"));
  } else {
    begin_ = 0;
    end_ = static_cast<size_t>(n);
    absl::Status fine;
    if (inspector_) fine = inspector_(absl::string_view(buffer_.get(), end_));
    fine.ok() ? Write() : std::exchange(on_end_, nullptr)(std::move(fine));
  }
}

void BytePump::Write() {
  while (begin_ < end_) {
    ssize_t n = write(to_, buffer_.get() + begin_, end_ - begin_);
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
