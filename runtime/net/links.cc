// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/links.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dtrain::runtime {
namespace {

using Milliseconds = std::chrono::milliseconds;

// How long a connection may take to show its card, so that strangers cannot use up descriptors.
constexpr auto kGreeting = std::chrono::seconds(5);
constexpr size_t kMostStrangers = 64;
// A node under a flood of strangers may turn away one of ours: it comes again, after a little more
// each time, 2 s in all.
constexpr int kMostTries = 15;
constexpr Milliseconds kPause{20};

// The first bytes on a connection: who comes, and that it knows the listener's token. The answer is
// the token of who came.
struct Card {
  uint64_t magic = 0x64747261696e2d32;  // "dtrain-2"
  Token token{};
  uint32_t node = 0;
  uint32_t use = 0;
};
static_assert(sizeof(Card) == 32, "both sides take it for this long");

Deadline Now() { return std::chrono::steady_clock::now(); }

Socket MakeSocket(const sockaddr_storage& address) {
  return Socket(socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

const sockaddr* Generic(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

void SetOption(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

// Readable means that so many bytes are there, or the end.
void SetLow(int fd, size_t bytes) {
  SetOption(fd, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
}

bool Later(ssize_t n) { return n < 0 && (errno == EAGAIN || errno == EINTR); }

// Takes as long wherever they differ.
bool Same(const Token& a, const Token& b) {
  unsigned char different = 0;
  for (size_t i = 0; i < a.size(); ++i) different |= static_cast<unsigned char>(a[i] ^ b[i]);
  return different == 0;
}

}  // namespace

Links::Links(int node, std::vector<int> leaders) : node_(node), leaders_(std::move(leaders)) {
  for (auto& lines : lines_) lines.resize(leaders_.size());
}

Result<std::unique_ptr<Links>> Links::Listen(int node, std::vector<int> leaders,
                                             const std::string& ip) {
  std::unique_ptr<Links> links(new Links(node, std::move(leaders)));
  const auto address = SocketAddress(ip, 0);
  if (!address) return Error{DTRAIN_ERROR_LAUNCHER, Printable(ip) + ": not a numeric address"};
  links->listener_ = MakeSocket(*address);
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  Token& token = links->endpoint_.token;
  if (!links->listener_ || bind(links->listener_.fd(), Generic(*address), sizeof(*address)) != 0 ||
      listen(links->listener_.fd(), SOMAXCONN) != 0 ||
      getsockname(links->listener_.fd(), reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return Error{DTRAIN_ERROR_RESOURCES,
                 "cannot listen on " + Printable(ip) + ": " + std::strerror(errno)};
  }
  links->endpoint_.ip = ip;
  links->endpoint_.port = PortOf(bound);
  return links;
}

MaybeError Links::Connect(const std::vector<NodeEndpoint>& endpoints, Deadline deadline) {
  for (size_t peer = 0; peer < static_cast<size_t>(node_); ++peer) {
    for (const Use use : {Use::kData, Use::kControl}) {
      outgoing_.push_back({peer, use, {}});
      if (MaybeError error = Begin(outgoing_.back(), endpoints)) return error;
    }
  }
  MaybeError error;
  while (!error && !Complete()) {
    if (Now() >= deadline) {
      error = Late(endpoints);
    } else {
      error = Turn(endpoints, deadline);
    }
  }
  outgoing_.clear();
  strangers_.clear();
  listener_ = {};
  return error;
}

bool Links::Complete() const {
  for (const auto& lines : lines_) {
    for (size_t peer = 0; peer < lines.size(); ++peer) {
      if (peer != static_cast<size_t>(node_) && !lines[peer]) return false;
    }
  }
  return true;
}

// Waits until something can go on, and goes on with it.
MaybeError Links::Turn(const std::vector<NodeEndpoint>& endpoints, Deadline deadline) {
  std::vector<pollfd> entries{{listener_.fd(), POLLIN, 0}};
  for (const Outgoing& line : outgoing_) {
    if (!line.socket) deadline = std::min(deadline, line.again);
    entries.push_back({line.socket.fd(), static_cast<short>(line.greeted ? POLLIN : POLLOUT), 0});
  }
  for (const Stranger& stranger : strangers_) {
    deadline = std::min(deadline, stranger.until);
    entries.push_back({stranger.socket.fd(), POLLIN, 0});
  }
  const int ready = poll(entries.data(), entries.size(), MillisecondsUntil(deadline));
  const Deadline now = Now();
  size_t at = 1;
  for (Outgoing& line : outgoing_) {
    const bool moves = ready > 0 && entries[at++].revents != 0;
    MaybeError error;
    if (!line.socket && now >= line.again) {
      error = Begin(line, endpoints);
    } else if (line.socket && moves) {
      error = Advance(line, endpoints);
    }
    if (error) return error;
  }
  std::erase_if(outgoing_, [&](const Outgoing& l) { return bool{line(l.use, l.peer)}; });
  const auto settled = [&](Stranger& stranger) {
    const bool moves = ready > 0 && entries[at++].revents != 0;
    return moves ? Welcome(stranger.socket, endpoints) : now >= stranger.until;
  };
  std::vector<Stranger> left;
  for (Stranger& stranger : strangers_) {
    if (!settled(stranger)) left.push_back(std::move(stranger));
  }
  strangers_ = std::move(left);
  return ready > 0 && entries[0].revents != 0 ? Accept() : std::nullopt;
}

Error Links::Failed(const Outgoing& line, const std::vector<NodeEndpoint>& endpoints,
                    const std::string& why) const {
  const NodeEndpoint& endpoint = endpoints[line.peer];
  return {DTRAIN_ERROR_NETWORK, "cannot connect to rank " + std::to_string(leaders_[line.peer]) +
                                    " at " + Printable(endpoint.ip) + " port " +
                                    std::to_string(endpoint.port) + " from " + endpoint_.ip + ": " +
                                    why +
                                    "; is that process still running, and can these two addresses "
                                    "reach each other?"};
}

MaybeError Links::Begin(Outgoing& line, const std::vector<NodeEndpoint>& endpoints) {
  const NodeEndpoint& endpoint = endpoints[line.peer];
  const auto address = SocketAddress(endpoint.ip, endpoint.port);
  if (!address) return Failed(line, endpoints, "this is not a numeric address");
  line.greeted = false;
  line.socket = MakeSocket(*address);
  if (!line.socket) return Failed(line, endpoints, std::strerror(errno));
  SetOption(line.socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (connect(line.socket.fd(), Generic(*address), sizeof(*address)) != 0 && errno != EINPROGRESS) {
    return Failed(line, endpoints, std::strerror(errno));
  }
  return std::nullopt;
}

MaybeError Links::Advance(Outgoing& line, const std::vector<NodeEndpoint>& endpoints) {
  const int fd = line.socket.fd();
  ssize_t n = 0;
  if (!line.greeted) {
    int number = 0;
    socklen_t length = sizeof(number);
    (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &length);
    if (number != 0) return Failed(line, endpoints, std::strerror(number));
    Card card;
    card.token = endpoints[line.peer].token;
    card.node = static_cast<uint32_t>(node_);
    card.use = static_cast<uint32_t>(line.use);
    SetLow(fd, sizeof(Token));
    n = send(fd, &card, sizeof(card), MSG_NOSIGNAL);
    if (n == sizeof(card)) {
      line.greeted = true;
      return std::nullopt;
    }
  } else {
    Token answer;
    n = recv(fd, answer.data(), answer.size(), 0);
    if (Later(n)) return std::nullopt;
    if (n > 0) {
      if (n != static_cast<ssize_t>(answer.size()) || !Same(answer, endpoint_.token)) {
        return Failed(line, endpoints, "a process of another job answered");
      }
      SetLow(fd, 1);
      this->line(line.use, line.peer) = std::move(line.socket);
      return std::nullopt;
    }
  }
  const std::string why = n == 0 ? "it was closed" : std::strerror(errno);
  line.socket = {};
  if (++line.tries >= kMostTries) return Failed(line, endpoints, why);
  line.again = Now() + kPause * line.tries;
  return std::nullopt;
}

MaybeError Links::Accept() {
  Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) {
      return std::nullopt;  // it has gone again
    }
    if (!strangers_.empty()) {
      strangers_.clear();
      return std::nullopt;
    }
    return Error{DTRAIN_ERROR_RESOURCES,
                 std::string("cannot accept the connections of the other nodes: ") +
                     std::strerror(errno) + "; raise the limit (ulimit -n)"};
  }
  if (strangers_.size() >= kMostStrangers) strangers_.erase(strangers_.begin());
  SetLow(socket.fd(), sizeof(Card));
  strangers_.push_back({std::move(socket), Now() + kGreeting});
  return std::nullopt;
}

bool Links::Welcome(Socket& socket, const std::vector<NodeEndpoint>& endpoints) {
  Card card;
  const ssize_t n = recv(socket.fd(), &card, sizeof(card), 0);
  if (Later(n)) return false;
  const size_t peer = card.node;
  if (n != sizeof(card) || card.magic != Card().magic || !Same(card.token, endpoint_.token) ||
      peer <= static_cast<size_t>(node_) || peer >= leaders_.size() || card.use >= kUses) {
    return true;
  }
  // One of our nodes. It may replace its own connection: it connects again when the first broke.
  Socket& place = line(static_cast<Use>(card.use), peer);
  const Token& answer = endpoints[peer].token;
  if (send(socket.fd(), answer.data(), answer.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(answer.size())) {
    return true;
  }
  SetOption(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  SetLow(socket.fd(), 1);
  place = std::move(socket);
  return true;
}

Error Links::Late(const std::vector<NodeEndpoint>& endpoints) const {
  for (const Outgoing& line : outgoing_) {
    Error error = Failed(line, endpoints, line.greeted ? "it does not answer" : "it took too long");
    error.code = DTRAIN_ERROR_TIMEOUT;
    return error;
  }
  size_t peer = 0;
  for (const auto& lines : lines_) {
    peer = static_cast<size_t>(node_) + 1;
    while (peer < lines.size() && lines[peer]) ++peer;
    if (peer < lines.size()) break;
  }
  return {DTRAIN_ERROR_TIMEOUT, "rank " + std::to_string(leaders_[peer]) +
                                    " has not connected; is that process still running, and can "
                                    "the addresses of these two reach each other?"};
}

}  // namespace dtrain::runtime
