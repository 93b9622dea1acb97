// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/streams.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dtrain::runtime {
namespace {

// Messages that one system call handles.
constexpr size_t kPieces = 16;
// The reader sleeps until so much is there: each wake costs a change of process.
constexpr size_t kLow = size_t{128} << 10;
// How long to look for bytes before sleeping. A sleep and a wake cost 15 to 40 us on a virtual
// machine, in which a small message could have gone there and back several times.
constexpr std::chrono::microseconds kSpinForBytes{40};

bool Over(Deadline deadline) { return std::chrono::steady_clock::now() >= deadline; }

}  // namespace

Result<std::unique_ptr<Streams>> Streams::Make(std::vector<int> leaders,
                                               std::vector<Socket> sockets) {
  std::unique_ptr<Streams> streams(new Streams(std::move(leaders)));
  streams->interrupt_ = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!streams->interrupt_) {
    return Error{DTRAIN_ERROR_RESOURCES, std::string("cannot make an eventfd: ") +
                                             std::strerror(errno) + "; see ulimit -n"};
  }
  for (Socket& socket : sockets) streams->lines_.emplace_back().socket = std::move(socket);
  return streams;
}

void Streams::Send(int node, const char* data, size_t bytes, Flight& flight) {
  if (bytes == 0) return;
  Line& line = lines_[static_cast<size_t>(node)];
  line.out.push_back({const_cast<char*>(data), bytes, &flight});
  ++flight.open;
  if (line.out.size() == 1) (void)Write(line);
}

void Streams::Receive(int node, char* data, size_t bytes, Flight& flight) {
  if (bytes == 0) return;
  lines_[static_cast<size_t>(node)].in.push_back({data, bytes, &flight});
  ++flight.open;
}

void Streams::Done(std::deque<Message>& messages, size_t bytes) {
  while (bytes > 0) {
    Message& first = messages.front();
    const size_t n = std::min(bytes, first.left);
    first.data += n;
    first.left -= n;
    bytes -= n;
    if (first.left > 0) return;
    --first.flight->open;
    messages.pop_front();
  }
}

namespace {

template <typename Messages>
size_t Gather(const Messages& messages, iovec* pieces) {
  size_t n = 0;
  for (const auto& message : messages) {
    if (n == kPieces) break;
    pieces[n++] = {message.data, message.left};
  }
  return n;
}

}  // namespace

ssize_t Streams::Write(Line& line) {
  iovec pieces[kPieces];
  msghdr header{};
  header.msg_iov = pieces;
  header.msg_iovlen = Gather(line.out, pieces);
  const ssize_t n = sendmsg(line.socket.fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) Done(line.out, static_cast<size_t>(n));
  return n;
}

ssize_t Streams::Read(Line& line) {
  iovec pieces[kPieces];
  msghdr header{};
  header.msg_iov = pieces;
  header.msg_iovlen = Gather(line.in, pieces);
  const ssize_t n = recvmsg(line.socket.fd(), &header, MSG_DONTWAIT);
  if (n > 0) Done(line.in, static_cast<size_t>(n));
  return n;
}

void Streams::SetLow(Line& line) {
  const int low = static_cast<int>(std::min(line.in.front().left, kLow));
  if (low == line.low) return;
  line.low = low;
  (void)setsockopt(line.socket.fd(), SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
}

Error Streams::Lost(size_t node, ssize_t result) const {
  return {DTRAIN_ERROR_NETWORK, "lost the connection to rank " + std::to_string(leaders_[node]) +
                                    " (" + (result == 0 ? "it was closed" : std::strerror(errno)) +
                                    ")"};
}

Error Streams::Late(const Flight& flight) const {
  std::string names;
  for (size_t node = 0; node < lines_.size(); ++node) {
    const auto pending = [&](const std::deque<Message>& messages) {
      return std::any_of(messages.begin(), messages.end(),
                         [&](const Message& message) { return message.flight == &flight; });
    };
    if (!pending(lines_[node].in) && !pending(lines_[node].out)) continue;
    names += (names.empty() ? "rank " : " and rank ") + std::to_string(leaders_[node]);
  }
  return {DTRAIN_ERROR_TIMEOUT, "timed out waiting for " + names + " on another node"};
}

MaybeError Streams::Await(Flight& flight, Deadline deadline) {
  while (flight.open > 0) {
    if (MaybeError error = crowded_ ? std::nullopt : Spin(flight, deadline)) return error;
    if (flight.open == 0) break;
    if (MaybeError error = Poll(deadline)) return error;
    if (flight.open > 0 && Over(deadline)) return Late(flight);
  }
  return std::nullopt;
}

// Reads and writes what is possible now.
MaybeError Streams::Move(size_t node, bool reads, bool writes, bool& moved) {
  Line& line = lines_[node];
  const auto broken = [&moved](ssize_t n) {
    moved |= n > 0;
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  };
  if (reads && !line.in.empty()) {
    const ssize_t n = Read(line);
    if (broken(n)) return Lost(node, n);
  }
  if (writes && !line.out.empty()) {
    const ssize_t n = Write(line);
    if (broken(n)) return Lost(node, n);
  }
  return std::nullopt;
}

// Moves bytes as soon as they can be moved, until none have for a moment.
MaybeError Streams::Spin(const Flight& flight, Deadline deadline) {
  auto now = std::chrono::steady_clock::now();
  auto end = std::min(now + kSpinForBytes, deadline);
  while (flight.open > 0 && now < end && !interrupted_.load(std::memory_order_relaxed)) {
    bool moved = false;
    for (size_t node = 0; node < lines_.size(); ++node) {
      if (MaybeError error = Move(node, true, true, moved)) return error;
    }
    now = std::chrono::steady_clock::now();
    if (moved) end = std::min(now + kSpinForBytes, deadline);
  }
  return std::nullopt;
}

// Waits until something can move, and moves it.
MaybeError Streams::Poll(Deadline deadline) {
  std::vector<pollfd> entries{{interrupt_.fd(), POLLIN, 0}};
  for (Line& line : lines_) {
    const int events = (line.in.empty() ? 0 : POLLIN) | (line.out.empty() ? 0 : POLLOUT);
    entries.push_back({events == 0 ? -1 : line.socket.fd(), static_cast<short>(events), 0});
    if (!line.in.empty()) SetLow(line);
  }
  if (poll(entries.data(), entries.size(), MillisecondsUntil(deadline)) <= 0) return std::nullopt;
  bool moved = false;
  for (size_t node = 0; node < lines_.size(); ++node) {
    const int events = entries[node + 1].revents;
    const bool broken = (events & (POLLERR | POLLHUP | POLLNVAL)) != 0;
    const bool reads = broken || (events & POLLIN) != 0, writes = broken || (events & POLLOUT) != 0;
    if (MaybeError error = Move(node, reads, writes, moved)) return error;
  }
  if (entries[0].revents != 0 && !moved) {
    return Error{DTRAIN_ERROR_NETWORK, "the wait was interrupted"};
  }
  return std::nullopt;
}

void Streams::Interrupt() {
  interrupted_.store(true);
  (void)eventfd_write(interrupt_.fd(), 1);
}

void Streams::Shutdown() {
  for (const Line& line : lines_) {
    if (line.socket) (void)shutdown(line.socket.fd(), SHUT_RDWR);
  }
}

}  // namespace dtrain::runtime
