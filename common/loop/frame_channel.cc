// SPDX-License-Identifier: Apache-2.0
#include "common/loop/frame_channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::loop {
namespace {

constexpr size_t kHeader = 4;
constexpr uint32_t kCarriesFd = 0x80000000u;

uint32_t LoadLength(const char* p) {
  auto b = [&](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  return b(0) | b(1) << 8 | b(2) << 16 | b(3) << 24;
}

}  // namespace

FrameChannel::FrameChannel(Loop& loop, os::UniqueFd socket, OnFrame on_frame, OnClosed on_closed,
                           Descriptors from_peer, size_t most)
    : loop_(loop),
      socket_(std::move(socket)),
      watch_(loop, socket_.get()),
      on_frame_(std::move(on_frame)),
      on_closed_(std::move(on_closed)),
      from_peer_(from_peer),
      most_(most),
      alive_(std::make_shared<bool>(true)) {
  DTRAIN_CHECK(os::SetNonBlocking(socket_.get(), true).ok());
  watch_.OnReadable([this] { Read(); });
}

FrameChannel::~FrameChannel() { *alive_ = false; }

absl::Status FrameChannel::Send(absl::string_view frame, int fd) {
  DTRAIN_ON_THREAD(loop_);
  if (frame.size() > kMaxFrame) {
    return absl::ResourceExhaustedError(absl::StrCat("a message has ", frame.size(), " bytes; ",
                                                     kMaxFrame, " can be passed on at most"));
  }
  if (closed_) return absl::OkStatus();
  Outgoing out;
  uint32_t length = static_cast<uint32_t>(frame.size()) | (fd >= 0 ? kCarriesFd : 0);
  out.bytes.reserve(kHeader + frame.size());
  for (int i = 0; i < 4; ++i) out.bytes.push_back(static_cast<char>(length >> (8 * i)));
  out.bytes.append(frame.data(), frame.size());
  if (fd >= 0) {
    out.fd.Reset(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    ++queued_descriptors_;
  }
  queued_bytes_ += out.bytes.size();
  out_.push_back(std::move(out));
  if (!writing_) Write();
  return absl::OkStatus();
}

void FrameChannel::OnDrained(Task task) { on_drained_ = std::move(task); }

void FrameChannel::FlushNow() {
  if (!closed_) Write();
}

void FrameChannel::Write() {
  while (!out_.empty()) {
    Outgoing& front = out_.front();
    iovec iov{front.bytes.data() + front.written, front.bytes.size() - front.written};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (front.fd && front.written == 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      int fd = front.fd.get();
      std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!std::exchange(writing_, true)) {
        watch_.OnWritable([this] {
          writing_ = false;
          Write();
        });
      }
      return;
    }
    if (n < 0) {
      // The reading side learns of it too, and reports it from there: a Send must not call back.
      out_.clear();
      queued_bytes_ = queued_descriptors_ = 0;
      shutdown(socket_.get(), SHUT_RDWR);
      return;
    }
    front.written += static_cast<size_t>(n);
    queued_bytes_ -= static_cast<size_t>(n);
    if (front.written < front.bytes.size()) continue;
    if (front.fd) --queued_descriptors_;
    out_.pop_front();
  }
  if (on_drained_) std::exchange(on_drained_, nullptr)();
}

void FrameChannel::Read() {
  std::shared_ptr<bool> alive = alive_;
  ReadOnce();
  if (*alive && !closed_) watch_.OnReadable([this] { Read(); });
}

void FrameChannel::ReadToEnd() {
  if (closed_) return;
  const std::shared_ptr<bool> alive = alive_;
  const uint64_t until = received_ + UnreadBytes(socket_.get());
  // One more read, which sees the end.
  for (bool last = false; !last;) {
    last = received_ >= until;
    if (!ReadOnce() || !*alive || closed_) return;
  }
}

bool FrameChannel::ReadOnce() {
  const ssize_t n = from_peer_ == Descriptors::kTaken
                        ? ReceiveAll()
                        : ReceiveBytes(socket_.get(), loop_.scratch(), Loop::kScratchBytes);
  if (n < 0) {
    if (errno == EINTR) return true;
    if (errno == EBADMSG) {
      Close(absl::DataLossError(from_peer_ == Descriptors::kTaken
                                    ? "more descriptors from the peer than a message may carry"
                                    : "a descriptor from the peer, which may not send any"));
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
      Close(PosixError(errno, "read from the peer process"));
    }
    return false;
  }
  if (n == 0) {
    Close(in_.empty() ? absl::OkStatus()
                      : absl::DataLossError("the peer process ended in the middle of a message"));
    return false;
  }
  received_ += static_cast<size_t>(n);
  in_.append(loop_.scratch(), static_cast<size_t>(n));
  if (!ParseFrames()) return false;
  // That of the message whose rest is to come, at most: nobody makes us keep what we cannot use.
  if (in_fds_.size() > (in_.empty() ? 0 : 1)) {
    Close(absl::DataLossError("a descriptor from the peer without a message for it"));
    return false;
  }
  return true;
}

// As recv(2), with descriptors. -1 with EBADMSG: there were more than a message may carry.
ssize_t FrameChannel::ReceiveAll() {
  iovec iov{loop_.scratch(), Loop::kScratchBytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)];
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (n < 0) return n;
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
      in_fds_.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) == 0) return n;
  errno = EBADMSG;
  return -1;
}

// False: the channel was closed or destroyed.
bool FrameChannel::ParseFrames() {
  std::shared_ptr<bool> alive = alive_;
  size_t at = 0;
  while (in_.size() - at >= kHeader) {
    uint32_t word = LoadLength(in_.data() + at);
    size_t length = word & ~kCarriesFd;
    if (length > most_) {
      Close(absl::DataLossError(absl::StrCat("a message of ", length,
                                             " bytes from the peer, of which ", most_,
                                             " are taken at most")));
      return false;
    }
    if (in_.size() - at - kHeader < length) break;
    os::UniqueFd fd;
    if ((word & kCarriesFd) != 0) {
      if (in_fds_.empty()) {
        Close(absl::DataLossError("a message from the peer lacks its descriptor"));
        return false;
      }
      fd = std::move(in_fds_.front());
      in_fds_.pop_front();
    }
    on_frame_(absl::string_view(in_.data() + at + kHeader, length), std::move(fd));
    if (!*alive || closed_) return false;
    at += kHeader + length;
  }
  in_.erase(0, at);
  return true;
}

void FrameChannel::Close(absl::Status why) {
  if (std::exchange(closed_, true)) return;
  out_.clear();
  queued_bytes_ = queued_descriptors_ = 0;
  OnClosed on_closed = std::move(on_closed_);
  on_closed(std::move(why));
}

}  // namespace dtrain::loop
