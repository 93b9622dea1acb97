// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/log_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/check.h"
#include "common/link/log_frame.h"
#include "common/os/fd.h"

namespace dtrain::shepherd {
namespace {

// A frame should fit: fewer and longer writes. The kernel may allow less.
constexpr int kKernelQueue = 512 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<LogSocket>> LogSocket::Make(loop::Loop& loop, os::UniqueFd socket,
                                                           Handlers handlers) {
  auto pipe = os::Pipe();
  if (!pipe.ok()) return pipe.status();
  for (const int fd : {socket.get(), pipe->first.get(), pipe->second.get()}) {
    if (absl::Status set = os::SetNonBlocking(fd, true); !set.ok()) return set;
  }
  // Over the user's quota frames are shorter.
  (void)fcntl(pipe->first.get(), F_SETPIPE_SZ, static_cast<int>(link::kMostLogData));
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &kKernelQueue, sizeof(kKernelQueue));
  return std::unique_ptr<LogSocket>(
      new LogSocket(loop, std::move(socket), *std::move(pipe), std::move(handlers)));
}

LogSocket::LogSocket(loop::Loop& loop, os::UniqueFd socket,
                     std::pair<os::UniqueFd, os::UniqueFd> pipe, Handlers handlers)
    : socket_(std::move(socket)),
      pipe_out_(std::move(pipe.first)),
      pipe_in_(std::move(pipe.second)),
      watch_(loop, socket_.get()),
      handlers_(std::make_shared<Handlers>(std::move(handlers))) {
  watch_.OnReadable([this] { Read(); });
}

LogSocket::~LogSocket() { *alive_ = false; }

absl::StatusOr<size_t> LogSocket::Load(const LogStream& stream, uint64_t offset, size_t room) {
  auto n = stream.MoveTo(pipe_in_.get(), offset, room);
  if (n.ok()) loaded_ = *n;
  return n;
}

void LogSocket::Send(const v1::LogHead& head) {
  const std::string before = link::EncodeLogHead(head);
  link::Header header;
  header.channel = link::Channel::kLogs;
  header.size = static_cast<uint32_t>(before.size() + loaded_);
  const auto bytes = link::EncodeHeader(header);
  head_.assign(bytes.data(), bytes.size());
  head_ += before;
}

void LogSocket::Pump() {
  while (!closed_ && !waiting_) {
    if (head_.empty() && loaded_ == 0 && !handlers_->next()) return;
    if (!WriteOnce()) return;
  }
}

// False: the socket takes nothing now.
bool LogSocket::WriteOnce() {
  ssize_t n;
  if (head_.empty()) {
    n = splice(pipe_out_.get(), nullptr, socket_.get(), nullptr, loaded_,
               SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (n < 0 && (errno == EINVAL || errno == ENOSYS)) {
      Unload();
      return true;
    }
  } else {
    n = send(socket_.get(), head_.data(), head_.size(),
             MSG_NOSIGNAL | MSG_DONTWAIT | (loaded_ > 0 ? MSG_MORE : 0));
  }
  if (n > 0) {
    const auto bytes = static_cast<size_t>(n);
    if (head_.empty()) {
      loaded_ -= bytes;
    } else {
      head_.erase(0, bytes);
    }
    return true;
  }
  if (n < 0 && errno == EINTR) return true;
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    waiting_ = true;
    watch_.OnWritable([this] {
      waiting_ = false;
      Pump();
    });
    return false;
  }
  // The reading side learns of it too, and reports it: Pump's caller may be in the middle of
  // something.
  waiting_ = true;
  shutdown(socket_.get(), SHUT_RDWR);
  return false;
}

// Where pipes cannot be spliced into sockets.
void LogSocket::Unload() {
  head_.resize(std::exchange(loaded_, 0));
  // All of it was put there.
  DTRAIN_CHECK(read(pipe_out_.get(), head_.data(), head_.size()) ==
               static_cast<ssize_t>(head_.size()));
}

void LogSocket::Read() {
  const std::shared_ptr<bool> alive = alive_;
  char bytes[64 * link::kHeaderBytes];
  const ssize_t n = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    return Close();
  }
  if (n > 0) acks_.Add(absl::string_view(bytes, static_cast<size_t>(n)));
  const std::shared_ptr<Handlers> handlers = handlers_;
  for (;;) {
    auto frame = acks_.Next();
    if (!frame.ok()) return Close();
    if (!frame->has_value()) break;
    handlers->on_ack((*frame)->header.ack);
    if (!*alive) return;
  }
  watch_.OnReadable([this] { Read(); });
  Pump();
}

void LogSocket::Close() {
  closed_ = true;
  const std::shared_ptr<Handlers> handlers = handlers_;
  handlers->on_closed();
}

}  // namespace dtrain::shepherd
