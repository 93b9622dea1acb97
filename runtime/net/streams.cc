// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/streams.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dtrain::runtime {
namespace {

using Milliseconds = std::chrono::milliseconds;

// Messages that one system call handles.
constexpr size_t kPieces = 16;
// The reader sleeps until so much is there: each wake costs a change of process.
constexpr size_t kLow = size_t{128} << 10;

int MillisecondsLeft(Deadline deadline) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp(left, Milliseconds(0), Milliseconds(1000)).count());
}

bool Over(Deadline deadline) { return std::chrono::steady_clock::now() >= deadline; }

}  // namespace

Streams::~Streams() {
  for (const Line& line : lines_) {
    if (line.fd >= 0) close(line.fd);
  }
  if (listener_ >= 0) close(listener_);
  if (interrupt_ >= 0) close(interrupt_);
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
  const ssize_t n = sendmsg(line.fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) Done(line.out, static_cast<size_t>(n));
  return n;
}

ssize_t Streams::Read(Line& line) {
  iovec pieces[kPieces];
  msghdr header{};
  header.msg_iov = pieces;
  header.msg_iovlen = Gather(line.in, pieces);
  const ssize_t n = recvmsg(line.fd, &header, MSG_DONTWAIT);
  if (n > 0) Done(line.in, static_cast<size_t>(n));
  return n;
}

void Streams::SetLow(Line& line) {
  const int low = static_cast<int>(std::min(line.in.front().left, kLow));
  if (low == line.low) return;
  line.low = low;
  (void)setsockopt(line.fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
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
    if (MaybeError error = Poll(deadline)) return error;
    if (flight.open > 0 && Over(deadline)) return Late(flight);
  }
  return std::nullopt;
}

// Waits until something can move, and moves it.
MaybeError Streams::Poll(Deadline deadline) {
  std::vector<pollfd> entries{{interrupt_, POLLIN, 0}};
  for (Line& line : lines_) {
    const int events = (line.in.empty() ? 0 : POLLIN) | (line.out.empty() ? 0 : POLLOUT);
    entries.push_back({events == 0 ? -1 : line.fd, static_cast<short>(events), 0});
    if (!line.in.empty()) SetLow(line);
  }
  if (poll(entries.data(), entries.size(), MillisecondsLeft(deadline)) <= 0) return std::nullopt;
  if (entries[0].revents != 0) return Error{DTRAIN_ERROR_NETWORK, "the wait was interrupted"};
  for (size_t node = 0; node < lines_.size(); ++node) {
    Line& line = lines_[node];
    const int events = entries[node + 1].revents;
    const bool broken = (events & (POLLERR | POLLHUP | POLLNVAL)) != 0;
    ssize_t n = 1;
    if (!line.in.empty() && (broken || (events & POLLIN) != 0)) n = Read(line);
    if (n > 0 && !line.out.empty() && (broken || (events & POLLOUT) != 0)) n = Write(line);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) continue;
    return Lost(node, n);
  }
  return std::nullopt;
}

void Streams::Interrupt() { (void)eventfd_write(interrupt_, 1); }

void Streams::Shutdown() {
  for (const Line& line : lines_) {
    if (line.fd >= 0) (void)shutdown(line.fd, SHUT_RDWR);
  }
}

// ---- Connecting ----

namespace {

// The first bytes on a connection: who speaks, and whom it takes the other side for.
struct Card {
  uint64_t magic = 0x64747261696e2d31;
  uint32_t node = 0;
  uint16_t from = 0;  // the port that it listens on
  uint16_t to = 0;
  bool operator==(const Card&) const = default;
};

int MakeSocket(const sockaddr_storage& address) {
  return socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

const sockaddr* Generic(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

void SendAtOnce(int fd) {
  const int yes = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

}  // namespace

Result<std::unique_ptr<Streams>> Streams::Make(int node, std::vector<int> leaders,
                                               const std::string& ip) {
  std::unique_ptr<Streams> streams(new Streams(node, std::move(leaders)));
  streams->lines_.resize(streams->leaders_.size());
  if (MaybeError error = streams->Listen(ip)) return *error;
  return streams;
}

MaybeError Streams::Listen(const std::string& ip) {
  const auto failed = [&] {
    return Error{DTRAIN_ERROR_RESOURCES,
                 "cannot listen on " + Printable(ip) + ": " + std::strerror(errno)};
  };
  interrupt_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (interrupt_ < 0) return failed();
  const auto address = SocketAddress(ip, 0);
  if (!address) return Error{DTRAIN_ERROR_LAUNCHER, Printable(ip) + ": not a numeric address"};
  listener_ = MakeSocket(*address);
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (listener_ < 0 || bind(listener_, Generic(*address), sizeof(*address)) != 0 ||
      listen(listener_, static_cast<int>(leaders_.size())) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return failed();
  }
  port_ = PortOf(bound);
  return std::nullopt;
}

MaybeError Streams::Connect(const std::vector<NodeEndpoint>& endpoints, Deadline deadline) {
  for (int peer = 0; peer < node_; ++peer) {
    if (MaybeError error = Reach(peer, endpoints, deadline)) return error;
  }
  MaybeError error = Admit(endpoints, deadline);
  close(listener_);
  listener_ = -1;
  return error;
}

MaybeError Streams::Reach(int peer, const std::vector<NodeEndpoint>& endpoints, Deadline deadline) {
  const auto at = static_cast<size_t>(peer);
  const NodeEndpoint& endpoint = endpoints[at];
  const uint16_t port = endpoint.ports[at];
  const auto failed = [&](int number) {
    return Error{number == ETIMEDOUT ? DTRAIN_ERROR_TIMEOUT : DTRAIN_ERROR_NETWORK,
                 "cannot connect to rank " + std::to_string(leaders_[at]) + " at " +
                     Printable(endpoint.ip) + " port " + std::to_string(port) + ": " +
                     std::strerror(number)};
  };
  const auto address = SocketAddress(endpoint.ip, port);
  if (!address) return failed(EADDRNOTAVAIL);
  const int fd = lines_[at].fd = MakeSocket(*address);
  if (fd < 0) return failed(errno);
  SendAtOnce(fd);
  if (connect(fd, Generic(*address), sizeof(*address)) != 0 && errno != EINPROGRESS) {
    return failed(errno);
  }
  pollfd entry{fd, POLLOUT, 0};
  while (poll(&entry, 1, MillisecondsLeft(deadline)) <= 0) {
    if (Over(deadline)) return failed(ETIMEDOUT);
  }
  int number = 0;
  socklen_t length = sizeof(number);
  (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &length);
  if (number != 0) return failed(number);
  Card card;
  card.node = static_cast<uint32_t>(node_);
  card.from = port_;
  card.to = port;
  if (send(fd, &card, sizeof(card), MSG_NOSIGNAL) != sizeof(card)) return failed(errno);
  return std::nullopt;
}

std::vector<int> Streams::Missing() const {
  std::vector<int> ranks;
  for (size_t node = static_cast<size_t>(node_) + 1; node < lines_.size(); ++node) {
    if (lines_[node].fd < 0) ranks.push_back(leaders_[node]);
  }
  return ranks;
}

// Anybody may connect to a port: who is not one of the later nodes is shown out.
MaybeError Streams::Admit(const std::vector<NodeEndpoint>& endpoints, Deadline deadline) {
  std::vector<int> strangers;
  MaybeError error;
  while (!Missing().empty() && !error) {
    std::vector<pollfd> entries{{listener_, POLLIN, 0}};
    for (const int fd : strangers) entries.push_back({fd, POLLIN, 0});
    if (poll(entries.data(), entries.size(), MillisecondsLeft(deadline)) > 0) {
      Welcome(strangers, endpoints);
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        const int low = sizeof(Card);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
        strangers.push_back(fd);
      }
    }
    if (Missing().empty() || !Over(deadline)) continue;
    error = Error{DTRAIN_ERROR_TIMEOUT,
                  "rank " + std::to_string(Missing().front()) +
                      " has not connected; is that process still running, and may the addresses "
                      "of these two talk to each other?"};
  }
  for (const int fd : strangers) close(fd);
  return error;
}

// Reads the cards of those who have shown one.
void Streams::Welcome(std::vector<int>& strangers, const std::vector<NodeEndpoint>& endpoints) {
  const auto settled = [&](int fd) {
    Card card;
    const ssize_t n = recv(fd, &card, sizeof(card), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    const size_t node = card.node;
    Card expected;
    expected.node = card.node;
    expected.to = port_;
    const bool one_of_us =
        n == sizeof(card) && node > static_cast<size_t>(node_) && node < lines_.size();
    if (one_of_us) expected.from = endpoints[node].ports[node];
    if (!one_of_us || card != expected || lines_[node].fd >= 0) {
      close(fd);
      return true;
    }
    SendAtOnce(fd);
    lines_[node].low = static_cast<int>(sizeof(Card));
    lines_[node].fd = fd;
    return true;
  };
  strangers.erase(std::remove_if(strangers.begin(), strangers.end(), settled), strangers.end());
}

}  // namespace dtrain::runtime
