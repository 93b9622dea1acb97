// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/inventory/probe.h"
#include "agent/inventory/wildcard_socket.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::inventory {
namespace {

constexpr int kBacklog = 1024;       // all nodes of a large job probe at the same moment
constexpr int kAcceptsPerTurn = 64;  // so that a flood leaves the loop time for the rest
// Out of descriptors with none of ours to give up: long enough not to spin, short enough to answer
// within any probe timeout once there are some again.
constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(50);

// Takes the same time wherever the first difference is, so that timing tells nothing of the token.
bool EqualInConstantTime(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace

std::string ProbeGreeting(absl::string_view token) {
  return absl::StrCat("dtrain-probe/1 ", absl::BytesToHexString(token));
}

struct ProbeListener::Connection {
  Connection(loop::Loop& loop, os::UniqueFd socket)
      : fd(std::move(socket)), watch(loop, fd.get()), timer(loop) {}
  os::UniqueFd fd;
  loop::FdWatch watch;
  loop::Timer timer;
  std::string received;
};

absl::StatusOr<std::unique_ptr<ProbeListener>> ProbeListener::Make(loop::Loop& loop,
                                                                   std::string token) {
  return Make(loop, std::move(token), Options());
}

absl::StatusOr<std::unique_ptr<ProbeListener>> ProbeListener::Make(loop::Loop& loop,
                                                                   std::string token,
                                                                   Options options) {
  if (token.size() != kProbeBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the probe token has ", token.size(), " bytes instead of ", kProbeBytes));
  }
  absl::StatusOr<BoundSocket> bound = BindWildcard(/*reuse=*/false);
  if (bound.ok() && listen(bound->fd.get(), kBacklog) != 0) {
    bound = PosixError(errno, absl::StrCat("listen on TCP port ", bound->port));
  }
  if (!bound.ok()) {
    return absl::Status(bound.status().code(), absl::StrCat("open a port for reachability probes: ",
                                                            bound.status().message()));
  }
  return std::unique_ptr<ProbeListener>(
      new ProbeListener(loop, std::move(token), options, std::move(bound->fd), bound->port));
}

ProbeListener::ProbeListener(loop::Loop& loop, std::string token, Options options, os::UniqueFd fd,
                             uint16_t port)
    : loop_(loop),
      expected_(ProbeGreeting(token)),
      reply_(os::RandomBytes(kProbeBytes)),
      options_(options),
      port_(port),
      fd_(std::move(fd)),
      watch_(loop, fd_.get()),
      pause_(loop) {
  watch_.OnReadable([this] { Accept(); });
}

ProbeListener::~ProbeListener() = default;

void ProbeListener::Accept() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (AcceptOne()) continue;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (!connections_.empty()) {
        connections_.pop_front();
        continue;
      }
      pause_.After(kPauseWithoutDescriptors, [this] { Accept(); });
      return;
    }
    break;  // EAGAIN; or the connection ended before we took it, and the watch tells of the next
  }
  watch_.OnReadable([this] { Accept(); });
}

bool ProbeListener::AcceptOne() {
  os::UniqueFd socket(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return false;
  if (connections_.size() >= options_.max_pending) connections_.pop_front();
  auto it = connections_.insert(connections_.end(),
                                std::make_unique<Connection>(loop_, std::move(socket)));
  (*it)->timer.After(options_.token_timeout, [this, it] { connections_.erase(it); });
  (*it)->watch.OnReadable([this, it] { Read(it); });
  return true;
}

void ProbeListener::Read(Connections::iterator it) {
  Connection& connection = **it;
  char buffer[128];  // more than that, to notice who sends more
  ssize_t n = recv(connection.fd.get(), buffer, sizeof(buffer), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    connection.watch.OnReadable([this, it] { Read(it); });
    return;
  }
  if (n > 0) {
    connection.received.append(buffer, static_cast<size_t>(n));
    if (connection.received.size() < expected_.size()) {
      connection.watch.OnReadable([this, it] { Read(it); });
      return;
    }
    if (EqualInConstantTime(connection.received, expected_)) {
      // Fits into the empty send buffer; a peer that is gone by now has no use for it.
      (void)send(connection.fd.get(), reply_.data(), reply_.size(), MSG_NOSIGNAL);
    }
  }
  connections_.erase(it);
}

}  // namespace dtrain::inventory
