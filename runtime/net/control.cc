// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace dtrain::runtime {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr size_t kLongestText = 1000;
constexpr Milliseconds kLookAgain{5};

enum Message : uint32_t { kFailure = 1, kDeparture = 2 };

struct Head {
  uint32_t kind;
  uint32_t value;  // a dtrain_status, or the rank that leaves
  uint32_t extra;  // the collective that failed, or how many that rank has begun
  uint32_t bytes;  // of the text that follows
};

// A machine that lost its power, or its network, sends no end of the connection: asked for after
// half a minute of silence, and given up after another.
void WatchForSilence(int fd) {
  const int on = 1, idle = 30, interval = 10, count = 3;
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

std::string Readable(std::string text) {
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Control>> Control::Make(std::vector<Socket> sockets) {
  std::unique_ptr<Control> control(new Control());
  control->stop_ = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!control->stop_) {
    return Error{DTRAIN_ERROR_RESOURCES, std::string("cannot make an eventfd: ") +
                                             std::strerror(errno) + "; see ulimit -n"};
  }
  for (Socket& socket : sockets) {
    Line& line = control->lines_.emplace_back();
    line.socket = std::move(socket);
    line.open = static_cast<bool>(line.socket);
    if (line.open) WatchForSilence(line.socket.fd());
  }
  return control;
}

std::optional<Control::News> Control::Await(Deadline deadline) {
  while (news_.empty()) {
    std::vector<pollfd> entries{{stop_.fd(), POLLIN, 0}};
    for (const Line& line : lines_)
      entries.push_back({line.open ? line.socket.fd() : -1, POLLIN, 0});
    const int ready = poll(entries.data(), entries.size(), MillisecondsUntil(deadline));
    if (ready > 0 && entries[0].revents != 0) return std::nullopt;
    for (size_t node = 0; ready > 0 && node < lines_.size(); ++node) {
      if (entries[node + 1].revents != 0) Read(static_cast<int>(node));
    }
    if (news_.empty() && std::chrono::steady_clock::now() >= deadline) return std::nullopt;
  }
  News first = std::move(news_.front());
  news_.pop_front();
  return first;
}

void Control::Read(int node) {
  Line& line = lines_[static_cast<size_t>(node)];
  char bytes[4096];
  const ssize_t n = recv(line.socket.fd(), bytes, sizeof(bytes), 0);
  const int number = errno;
  if (n > 0) {
    line.received.append(bytes, static_cast<size_t>(n));
    while (line.open && Take(node)) {
    }
  } else if (n == 0) {
    Lose(node, "it was closed");
  } else if (number != EAGAIN && number != EINTR) {
    Lose(node, std::strerror(number));
  }
}

void Control::Lose(int node, const std::string& why) {
  lines_[static_cast<size_t>(node)].open = false;
  News news;
  news.node = node;
  news.error = {DTRAIN_ERROR_NETWORK, why};
  news_.push_back(std::move(news));
}

// Takes one message out of what has come. False: it is not whole yet.
bool Control::Take(int node) {
  std::string& received = lines_[static_cast<size_t>(node)].received;
  Head head;
  if (received.size() < sizeof(head)) return false;
  std::memcpy(&head, received.data(), sizeof(head));
  if ((head.kind != kFailure && head.kind != kDeparture) || head.bytes > kLongestText) {
    Lose(node, "it sent an invalid message");
    return false;
  }
  if (received.size() < sizeof(head) + head.bytes) return false;
  News news;
  news.node = node;
  if (head.kind == kDeparture) {
    news.kind = News::kLeaving;
    news.leaver = {static_cast<int>(head.value & INT32_MAX), head.extra};
  } else {
    const bool known = head.value > DTRAIN_OK && head.value <= DTRAIN_ERROR_DEVICE;
    news.kind = News::kFailed;
    news.error = {known ? static_cast<dtrain_status>(head.value) : DTRAIN_ERROR_NETWORK,
                  Readable(received.substr(sizeof(head), head.bytes))};
    news.number = head.extra;
  }
  received.erase(0, sizeof(head) + head.bytes);
  news_.push_back(std::move(news));
  return true;
}

void Control::Stop() { (void)eventfd_write(stop_.fd(), 1); }

void Control::Tell(uint32_t kind, uint32_t value, uint32_t extra, std::string_view text) {
  text = text.substr(0, kLongestText);
  const Head head{kind, value, extra, static_cast<uint32_t>(text.size())};
  std::string message(sizeof(head), '\0');
  std::memcpy(message.data(), &head, sizeof(head));
  message += text;
  const std::lock_guard<std::mutex> lock(mutex_);
  // Whom it does not reach has a broken connection, which is news enough.
  for (const Line& line : lines_) {
    if (line.socket) {
      (void)send(line.socket.fd(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

void Control::TellFailure(const Error& reason, uint32_t number) {
  Tell(kFailure, static_cast<uint32_t>(reason.code), number, reason.message);
}

void Control::TellLeaving(const Leaver& leaver) {
  Tell(kDeparture, static_cast<uint32_t>(leaver.rank), leaver.runs, "");
}

void Control::Finish(Deadline deadline) {
  // A process that ends with unread news of others resets its connections, and what is still on
  // its way there may be lost.
  const auto on_its_way = [](const Line& line) {
    int bytes = 0;
    return line.socket && ioctl(line.socket.fd(), TIOCOUTQ, &bytes) == 0 && bytes > 0;
  };
  while (std::any_of(lines_.begin(), lines_.end(), on_its_way) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kLookAgain);
  }
  for (const Line& line : lines_) {
    if (line.socket) (void)shutdown(line.socket.fd(), SHUT_WR);
  }
}

void Control::Shutdown() {
  for (const Line& line : lines_) {
    if (line.socket) (void)shutdown(line.socket.fd(), SHUT_RDWR);
  }
}

}  // namespace dtrain::runtime
