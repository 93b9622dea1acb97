// SPDX-License-Identifier: Apache-2.0
#include "common/link/socket_carrier.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::link {
namespace {

// Two for each frame.
constexpr size_t kMostPieces = 32;
// What the kernel holds is also what an urgent frame waits for. It counts twice what it is given.
constexpr int kKernelQueue = 64 << 10;

void LimitKernelQueue(int socket) {
  int family = 0;
  socklen_t size = sizeof(family);
  if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0) return;
  // Best effort: without them frames wait longer behind others, and nothing else changes.
  if (family == AF_UNIX) {
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kKernelQueue, sizeof(kKernelQueue));
  } else {
    // Not the send buffer: TCP needs that for what is on its way.
    (void)setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kKernelQueue, sizeof(kKernelQueue));
    const int on = 1;
    (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
}

}  // namespace

SocketCarrier::SocketCarrier(loop::Loop& loop, os::UniqueFd socket, CarrierHandlers handlers)
    : loop_(loop),
      socket_(std::move(socket)),
      watch_(loop, socket_.get()),
      again_(loop),
      handlers_(std::make_shared<CarrierHandlers>(std::move(handlers))),
      alive_(std::make_shared<bool>(true)) {
  DTRAIN_CHECK(os::SetNonBlocking(socket_.get(), true).ok());
  LimitKernelQueue(socket_.get());
  watch_.OnReadable([this] { Turn(); });
}

SocketCarrier::~SocketCarrier() { *alive_ = false; }

void SocketCarrier::Pump() {
  while (!closed_ && !broken_ && !waiting_to_write_) {
    Fill();
    if (out_.empty() || !WriteOnce()) return;
  }
}

void SocketCarrier::Fill() {
  while (queued_ < kMostQueued) {
    std::optional<Frame> frame = handlers_->next();
    if (!frame) return;
    queued_ += frame->wire_size();
    out_.push_back({EncodeHeader(frame->header), std::move(frame->payload)});
  }
}

// False: the socket takes nothing now.
bool SocketCarrier::WriteOnce() {
  iovec pieces[kMostPieces];
  size_t count = 0;
  size_t skip = front_written_;
  const auto add = [&](absl::string_view bytes) {
    const size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    bytes.remove_prefix(skipped);
    if (!bytes.empty()) pieces[count++] = {const_cast<char*>(bytes.data()), bytes.size()};
  };
  for (size_t i = 0; i < out_.size() && count + 2 <= kMostPieces; ++i) {
    add(absl::string_view(out_[i].header.data(), kHeaderBytes));
    add(out_[i].payload.view());
  }
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) {
    Written(static_cast<size_t>(n));
    return true;
  }
  if (errno == EINTR) return true;
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    waiting_to_write_ = true;
    watch_.OnWritable([this] {
      waiting_to_write_ = false;
      Pump();
    });
    return false;
  }
  // The reading side learns of it too, and reports it: Pump's caller may be in the middle of
  // something. What had arrived before is still read.
  broken_ = true;
  out_.clear();
  queued_ = 0;
  shutdown(socket_.get(), SHUT_RDWR);
  return false;
}

void SocketCarrier::Written(size_t bytes) {
  queued_ -= bytes;
  front_written_ += bytes;
  while (!out_.empty() && front_written_ >= kHeaderBytes + out_.front().payload.size()) {
    front_written_ -= kHeaderBytes + out_.front().payload.size();
    out_.pop_front();
  }
}

void SocketCarrier::SetPaused(bool paused) {
  paused_ = paused;
  if (paused || closed_ || !std::exchange(idle_, false)) return;
  again_.At(loop_.Now(), [this] { Turn(); });
}

void SocketCarrier::Turn() {
  if (paused_) return AwaitTurn();
  const std::shared_ptr<bool> alive = alive_;
  if (more_in_) {
    DeliverSome();
  } else {
    ReadOnce();
  }
  if (!*alive || closed_) return;
  Pump();
  if (*alive && !closed_) AwaitTurn();
}

void SocketCarrier::AwaitTurn() {
  idle_ = paused_;
  if (paused_) return;
  if (more_in_) {
    again_.At(loop_.Now(), [this] { Turn(); });
  } else {
    watch_.OnReadable([this] { Turn(); });
  }
}

void SocketCarrier::ReadToEnd() {
  const std::shared_ptr<bool> alive = alive_;
  to_the_end_ = true;
  ReadRest();
  if (*alive) to_the_end_ = false;
}

void SocketCarrier::ReadRest() {
  const std::shared_ptr<bool> alive = alive_;
  // Reads the bytes that wait by now; one more read sees the end of the stream.
  const uint64_t until = received_ + loop::UnreadBytes(socket_.get());
  for (bool last = false; *alive && !closed_;) {
    if (more_in_) {
      if (!DeliverSome()) return;
      continue;
    }
    if (std::exchange(last, received_ >= until) || !ReadOnce()) return;
  }
}

// False: nothing to read now, or the carrier was closed or destroyed.
bool SocketCarrier::ReadOnce() {
  static_assert(kBytesPerTurn <= loop::Loop::kScratchBytes);
  const ssize_t n = loop::ReceiveBytes(socket_.get(), loop_.scratch(), kBytesPerTurn);
  if (n < 0) {
    if (errno == EINTR) return true;
    if (errno == EBADMSG) {
      Close(absl::DataLossError("the peer sent a descriptor, which nobody takes"));
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
      Close(PosixError(errno, "read from the peer"));
    }
    return false;
  }
  if (n == 0) {
    Close(in_.between_frames() ? absl::OkStatus()
                               : absl::DataLossError("the stream ended within a frame"));
    return false;
  }
  received_ += static_cast<size_t>(n);
  in_.Add(absl::string_view(loop_.scratch(), static_cast<size_t>(n)));
  return DeliverSome();
}

// False: the carrier was closed or destroyed.
bool SocketCarrier::DeliverSome() {
  const std::shared_ptr<bool> alive = alive_;
  const std::shared_ptr<CarrierHandlers> handlers = handlers_;
  more_in_ = false;
  for (int i = 0; i < kFramesPerTurn && (!paused_ || to_the_end_); ++i) {
    absl::StatusOr<std::optional<Frame>> frame = in_.Next();
    if (!frame.ok()) {
      Close(frame.status());
      return false;
    }
    if (!frame->has_value()) return true;
    handlers->on_frame(std::move(**frame));
    if (!*alive || closed_) return false;
  }
  more_in_ = true;
  return true;
}

void SocketCarrier::Close(absl::Status why) {
  if (std::exchange(closed_, true)) return;
  out_.clear();
  queued_ = 0;
  again_.Cancel();
  const std::shared_ptr<CarrierHandlers> handlers = handlers_;
  handlers->on_closed(std::move(why));
}

}  // namespace dtrain::link
