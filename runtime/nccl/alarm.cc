// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/alarm.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

namespace dtrain::runtime {
namespace {

constexpr int kChildren = 8;  // a job of 4096 ranks is four connections deep
constexpr size_t kTokenSize = 16;
constexpr size_t kLongestText = 2000;
// How long a connection may take to say who it is, so that a stranger cannot hold up the others.
constexpr auto kGreeting = std::chrono::seconds(5);

struct Hello {
  char token[kTokenSize];  // the parent's
  int32_t rank;            // the child's
};

struct News {
  uint32_t size;  // of the text that follows; kGoodbye has none
  int32_t code;
};
constexpr int32_t kGoodbye = -1;
constexpr int32_t kLeaving = -2;  // a count of collectives, uint32_t, and who leaves

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

std::optional<Address> NumericAddress(const std::string& ip, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(ip.c_str(), std::to_string(port).c_str(), &hints, &list) != 0)
    return std::nullopt;
  Address address;
  std::memcpy(&address.storage, list->ai_addr, list->ai_addrlen);
  address.size = list->ai_addrlen;
  freeaddrinfo(list);
  return address;
}

std::string Where(const std::string& ip, uint16_t port) {
  const bool v6 = ip.find(':') != std::string::npos;
  return (v6 ? "[" + Printable(ip) + "]" : Printable(ip)) + ":" + std::to_string(port);
}

Error Failure(const std::string& what, int error) {
  return {DTRAIN_ERROR_NETWORK, what + ": " + std::strerror(error)};
}

// False when the deadline has passed.
bool WaitFor(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd entry{fd, events, 0};
    const int n = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), 3'600'000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

// Exactly `size` bytes, or false.
bool Receive(int fd, void* data, size_t size, Deadline deadline) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = recv(fd, at, size, MSG_DONTWAIT);
    if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (!WaitFor(fd, POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

// Few bytes on a connection whose buffer is empty: they fit, or the peer is gone.
bool SendBytes(int fd, const void* data, size_t size) {
  return send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

int Socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

// A machine that lost its power sends no end of the connection: ask, after 30 s of silence.
void KeepAlive(int fd) {
  const int on = 1, idle = 30, interval = 10, count = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

// Longer than Printable allows: it names a collective, a rank and a cause.
std::string Clean(std::string text) {
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Alarm>> Alarm::Listen(const std::string& ip) {
  auto address = NumericAddress(ip, 0);
  if (!address) {
    return Error{DTRAIN_ERROR_ENVIRONMENT, Printable(ip) + " is not a numeric address"};
  }
  std::string token(kTokenSize, '\0');
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return Failure("reading random bytes", errno);
  }
  const int fd = Socket(address->storage.ss_family);
  if (fd < 0) return Failure("opening a socket", errno);
  auto* storage = reinterpret_cast<sockaddr*>(&address->storage);
  if (bind(fd, storage, address->size) != 0 || listen(fd, 2 * kChildren) != 0 ||
      getsockname(fd, storage, &address->size) != 0) {
    const int error = errno;
    close(fd);
    return Failure("listening on " + Printable(ip), error);
  }
  const uint16_t port = address->storage.ss_family == AF_INET6
                            ? ntohs(reinterpret_cast<sockaddr_in6*>(storage)->sin6_port)
                            : ntohs(reinterpret_cast<sockaddr_in*>(storage)->sin_port);
  return std::unique_ptr<Alarm>(new Alarm(fd, port, std::move(token)));
}

Alarm::~Alarm() {
  if (listener_ >= 0) close(listener_);
  for (const Link& link : links_) {
    if (link.fd >= 0) close(link.fd);
  }
}

MaybeError Alarm::Connect(int rank, const std::vector<Member>& members, Deadline deadline) {
  // The parent's kernel takes the connection and the greeting before the parent looks, so that
  // nobody waits for anybody in a circle.
  if (MaybeError error = ConnectToParent(rank, members, deadline)) return error;
  if (MaybeError error = AwaitChildren(rank, members, deadline)) return error;
  close(listener_);
  listener_ = -1;
  for (const Link& link : links_) KeepAlive(link.fd);
  return std::nullopt;
}

MaybeError Alarm::ConnectToParent(int rank, const std::vector<Member>& members, Deadline deadline) {
  if (rank == 0) return std::nullopt;
  const int parent = (rank - 1) / kChildren;
  const Member& member = members[static_cast<size_t>(parent)];
  const std::string what = "connecting to " + RankAt(parent, member) + " at " +
                           Where(member.ip, member.port) + " from " +
                           RankAt(rank, members[static_cast<size_t>(rank)]);
  const auto address = NumericAddress(member.ip, member.port);
  if (!address || member.token.size() != kTokenSize) return Failure(what, EADDRNOTAVAIL);
  Link link;
  link.peer = RankAt(parent, member);
  link.fd = Socket(address->storage.ss_family);
  if (link.fd < 0) return Failure(what, errno);
  links_.push_back(link);
  const auto* to = reinterpret_cast<const sockaddr*>(&address->storage);
  if (connect(link.fd, to, address->size) != 0) {
    if (errno != EINPROGRESS) return Failure(what, errno);
    if (!WaitFor(link.fd, POLLOUT, deadline)) {
      return Error{DTRAIN_ERROR_TIMEOUT, what + ": no answer; is a firewall between them?"};
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(link.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Failure(what, error);
  }
  Hello hello{};
  std::memcpy(hello.token, member.token.data(), kTokenSize);
  hello.rank = rank;
  if (!SendBytes(link.fd, &hello, sizeof(hello))) return Failure(what, errno);
  // The answer is this rank's own token.
  char answer[kTokenSize];
  if (!Receive(link.fd, answer, sizeof(answer), deadline)) {
    return Error{DTRAIN_ERROR_TIMEOUT, what + ": it does not answer as a rank of this job"};
  }
  if (std::string_view(answer, kTokenSize) != token_) {
    return Error{DTRAIN_ERROR_NETWORK, what + ": another program answers there"};
  }
  return std::nullopt;
}

std::optional<int> Alarm::Greet(int fd, Deadline deadline) {
  Hello hello{};
  const Deadline soon = std::min(deadline, std::chrono::steady_clock::now() + kGreeting);
  if (!Receive(fd, &hello, sizeof(hello), soon)) return std::nullopt;
  if (std::string_view(hello.token, kTokenSize) != token_) return std::nullopt;
  return hello.rank;
}

MaybeError Alarm::AwaitChildren(int rank, const std::vector<Member>& members, Deadline deadline) {
  std::set<int> missing;
  for (int child = rank * kChildren + 1; child <= rank * kChildren + kChildren; ++child) {
    if (static_cast<size_t>(child) < members.size()) missing.insert(child);
  }
  while (!missing.empty()) {
    if (!WaitFor(listener_, POLLIN, deadline)) {
      std::string names;
      for (const int child : missing) {
        names += (names.empty() ? "" : ", ") + RankAt(child, members[static_cast<size_t>(child)]);
      }
      return Error{DTRAIN_ERROR_TIMEOUT, "no connection from " + names + " to " +
                                             RankAt(rank, members[static_cast<size_t>(rank)]) +
                                             " at " +
                                             Where(members[static_cast<size_t>(rank)].ip, port_) +
                                             "; is a firewall between them?"};
    }
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) continue;
    const auto child = Greet(fd, deadline);
    const bool expected = child && missing.erase(*child) > 0;
    const std::string token = expected ? members[static_cast<size_t>(*child)].token : "";
    if (!expected || !SendBytes(fd, token.data(), token.size())) {
      close(fd);
      continue;
    }
    links_.push_back({fd, RankAt(*child, members[static_cast<size_t>(*child)]), ""});
  }
  return std::nullopt;
}

void Alarm::AddTo(std::vector<pollfd>& entries) const {
  for (const Link& link : links_) {
    if (link.fd >= 0) entries.push_back({link.fd, POLLIN, 0});
  }
}

MaybeError Alarm::Check() {
  for (Link& link : links_) {
    if (MaybeError error = Read(link)) return error;
  }
  return std::nullopt;
}

MaybeError Alarm::Read(Link& link) {
  while (link.fd >= 0) {
    char buffer[1024];
    const ssize_t n = recv(link.fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
    if (n <= 0) {
      close(link.fd);
      link.fd = -1;
      return Error{DTRAIN_ERROR_NETWORK, "lost the connection to " + link.peer +
                                             ": its process has ended, or its machine is gone"};
    }
    link.received.append(buffer, static_cast<size_t>(n));
    MaybeError error;
    while (link.fd >= 0 && Take(link, error)) {
    }
    if (error) return error;
  }
  return std::nullopt;
}

bool Alarm::Take(Link& link, MaybeError& error) {
  News news{};
  if (error || link.received.size() < sizeof(news)) return false;
  std::memcpy(&news, link.received.data(), sizeof(news));
  if (news.code == kGoodbye || news.size > kLongestText) {
    close(link.fd);
    link.fd = -1;
    if (news.code != kGoodbye) {
      error = Error{DTRAIN_ERROR_NETWORK, "nonsense from " + link.peer};
    }
    return false;
  }
  if (link.received.size() < sizeof(news) + news.size) return false;
  const std::string text = link.received.substr(sizeof(news), news.size);
  link.received.erase(0, sizeof(news) + news.size);
  if (news.code == kLeaving) {
    Hear(link, text);
    return true;
  }
  const bool known = news.code > DTRAIN_OK && news.code <= DTRAIN_ERROR_DEVICE;
  error = Error{known ? static_cast<dtrain_status>(news.code) : DTRAIN_ERROR_NETWORK, Clean(text)};
  return false;
}

// Passed on only when it tells more than what was known, so that it comes to an end.
void Alarm::Hear(const Link& from, const std::string& text) {
  uint32_t runs = 0;
  if (text.size() <= sizeof(runs)) return;
  std::memcpy(&runs, text.data(), sizeof(runs));
  if (!leaver_.empty() && static_cast<int32_t>(runs - leavers_runs_) >= 0) return;
  leaver_ = Clean(text.substr(sizeof(runs)));
  leavers_runs_ = runs;
  Send(kLeaving, text, &from);
}

void Alarm::TellLeaving(const std::string& me, uint32_t runs) {
  Send(kLeaving, std::string(reinterpret_cast<const char*>(&runs), sizeof(runs)) + me, nullptr);
}

void Alarm::Raise(const Error& error) { Send(error.code, error.message, nullptr); }

void Alarm::Send(int32_t code, const std::string& whole, const Link* but) {
  const std::string text = whole.substr(0, kLongestText);
  const News news{static_cast<uint32_t>(text.size()), code};
  std::string bytes(reinterpret_cast<const char*>(&news), sizeof(news));
  bytes += text;
  for (const Link& link : links_) {
    if (link.fd >= 0 && &link != but) SendBytes(link.fd, bytes.data(), bytes.size());
  }
}

void Alarm::SayGoodbye() {
  const News news{0, kGoodbye};
  for (Link& link : links_) {
    if (link.fd < 0) continue;
    SendBytes(link.fd, &news, sizeof(news));
    close(link.fd);
    link.fd = -1;
  }
}

}  // namespace dtrain::runtime
