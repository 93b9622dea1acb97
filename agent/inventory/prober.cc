// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/inventory/probe.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"

namespace dtrain::inventory {
namespace {

constexpr size_t kTriesAtOnce = 64;  // descriptors: far below any usual limit
constexpr uint32_t kDefaultTimeoutMs = 3000;
constexpr uint32_t kMaxTimeoutMs = 120'000;

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};

std::optional<SocketAddress> ParseAddress(const std::string& ip, uint32_t port) {
  SocketAddress out;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    out.length = sizeof(*v4);
    return out;
  }
  if (inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    out.length = sizeof(*v6);
    return out;
  }
  return std::nullopt;
}

std::string Where(const v1::ProbeTarget& target) {
  return absl::StrCat("connect to ", Escape(target.ip()), " port ", target.port());
}

std::string ConnectError(const v1::ProbeTarget& target, int error) {
  return absl::StrCat(Where(target), ": ", PosixErrorText(error),
                      error == ECONNREFUSED
                          ? " (the node's agent is not there: another machine has this address, or "
                            "a firewall rejects the port)"
                          : "");
}

std::string CheckRequest(const v1::ProbeRequest& request, const v1::ProbeTarget& target) {
  if (request.token().size() != kProbeBytes) {
    return absl::StrCat("the probe token has ", request.token().size(), " bytes instead of ",
                        kProbeBytes);
  }
  if (target.expected_reply().size() != kProbeBytes) {
    return absl::StrCat("the node announced a probe reply of ", target.expected_reply().size(),
                        " bytes instead of ", kProbeBytes);
  }
  if (target.port() == 0 || target.port() > 65535) {
    return absl::StrCat("the node announced probe port ", target.port());
  }
  return "";
}

}  // namespace

struct Prober::Try {
  Try(loop::Loop& loop, int target_index, os::UniqueFd socket)
      : target(target_index), fd(std::move(socket)), watch(loop, fd.get()), timer(loop) {}
  const int target;
  TimePoint started;
  bool connected = false;
  std::string received;
  os::UniqueFd fd;
  loop::FdWatch watch;
  loop::Timer timer;
};

Prober::Prober(loop::Loop& loop, v1::ProbeRequest request, Done done)
    : loop_(loop),
      request_(std::move(request)),
      timeout_(std::chrono::milliseconds(request_.timeout_ms() == 0
                                             ? kDefaultTimeoutMs
                                             : std::min(request_.timeout_ms(), kMaxTimeoutMs))),
      done_(std::move(done)),
      next_turn_(loop) {
  for (const v1::ProbeTarget& target : request_.targets()) {
    v1::ProbeOutcome* outcome = report_.add_outcomes();
    outcome->set_node(target.node());
    outcome->set_ip(target.ip());
  }
  StartMore();
}

Prober::~Prober() = default;

void Prober::StartMore() {
  for (size_t begun = 0; next_ < request_.targets_size() && tries_.size() < kTriesAtOnce; ++begun) {
    if (begun == kTriesAtOnce) return StartMoreLater();
    if (!Start(next_)) break;  // waits for descriptors of the running tries
    ++next_;
  }
  if (next_ < request_.targets_size() || !tries_.empty()) return;
  next_turn_.After(Duration::zero(), [this] {
    Done done = std::move(done_);
    done(std::move(report_));  // may destroy *this
  });
}

void Prober::StartMoreLater() {
  next_turn_.After(Duration::zero(), [this] { StartMore(); });
}

bool Prober::Start(int target_index) {
  const v1::ProbeTarget& target = request_.targets(target_index);
  std::string problem = CheckRequest(request_, target);
  std::optional<SocketAddress> address = ParseAddress(target.ip(), target.port());
  if (problem.empty() && !address) {
    problem = absl::StrCat("'", Escape(target.ip()), "' is not an IPv4 or IPv6 address");
  }
  if (!problem.empty()) {
    Finish(target_index, std::move(problem));
    return true;
  }
  os::UniqueFd fd(
      socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    if ((errno == EMFILE || errno == ENFILE) && !tries_.empty()) return false;
    Finish(target_index, absl::StrCat(Where(target), ": ", PosixErrorText(errno)));
    return true;
  }
  int one = 1;
  // Only for the sake of speed; without it the probe works as well.
  (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  TimePoint started = loop_.Now();
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address->storage), address->length) != 0 &&
      errno != EINPROGRESS) {
    Finish(target_index, ConnectError(target, errno));
    return true;
  }
  auto it = tries_.insert(tries_.end(), std::make_unique<Try>(loop_, target_index, std::move(fd)));
  (*it)->started = started;
  (*it)->timer.After(timeout_, [this, it] {
    Fail(it, absl::StrCat(Where(request_.targets((*it)->target)), ": no answer within ",
                          std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count(),
                          " ms", (*it)->connected ? " after connecting" : ""));
  });
  (*it)->watch.OnWritable([this, it] { OnConnected(it); });
  return true;
}

void Prober::OnConnected(Tries::iterator it) {
  Try& attempt = **it;
  const v1::ProbeTarget& target = request_.targets(attempt.target);
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(attempt.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == 0) {
    attempt.connected = true;
    const std::string words = ProbeGreeting(request_.token());
    ssize_t n = send(attempt.fd.get(), words.data(), words.size(), MSG_NOSIGNAL);
    if (n < 0) error = errno;
    // The send buffer is empty: less than all of these bytes would be a broken network stack.
    if (n >= 0 && static_cast<size_t>(n) != words.size()) error = EIO;
  }
  if (error != 0) {
    Fail(it, ConnectError(target, error));
    return;
  }
  attempt.watch.OnReadable([this, it] { OnReply(it); });
}

void Prober::OnReply(Tries::iterator it) {
  Try& attempt = **it;
  const v1::ProbeTarget& target = request_.targets(attempt.target);
  char buffer[kProbeBytes];
  ssize_t n = recv(attempt.fd.get(), buffer, kProbeBytes - attempt.received.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    attempt.watch.OnReadable([this, it] { OnReply(it); });
    return;
  }
  if (n <= 0) {
    // A probe listener that does not know our token, and any other kind of server, end like this.
    Fail(it, absl::StrCat(Where(target), ": answered by another machine or program: it closed the ",
                          "connection without the node's reply"));
    return;
  }
  attempt.received.append(buffer, static_cast<size_t>(n));
  if (attempt.received.size() < kProbeBytes) {
    attempt.watch.OnReadable([this, it] { OnReply(it); });
    return;
  }
  if (attempt.received != target.expected_reply()) {
    Fail(it, absl::StrCat(Where(target), ": answered by another machine: the address is not the ",
                          "node's alone (docker0 and virbr0 have the same one everywhere)"));
    return;
  }
  auto took = std::chrono::duration_cast<std::chrono::microseconds>(loop_.Now() - attempt.started);
  v1::ProbeOutcome* outcome = report_.mutable_outcomes(attempt.target);
  outcome->set_reached(true);
  outcome->set_round_trip_us(static_cast<uint32_t>(took.count()));
  End(it);
}

void Prober::Fail(Tries::iterator it, std::string error) {
  Finish((*it)->target, std::move(error));
  End(it);
}

void Prober::Finish(int target, std::string error) {
  report_.mutable_outcomes(target)->set_error(std::move(error));
}

void Prober::End(Tries::iterator it) {
  tries_.erase(it);
  StartMoreLater();  // many may end in one turn
}

}  // namespace dtrain::inventory
