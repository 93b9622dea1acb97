// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_dial.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "launcher/transport/passing.h"

namespace dtrain::transport {
namespace {

constexpr std::chrono::milliseconds kProxyEnds(200);

// Waits until `fd` (-1: nothing) has `events`.
absl::Status WaitFor(int fd, short events, TimePoint deadline, int cancel) {
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd p[2] = {{fd, events, 0}, {cancel, POLLIN, 0}};
    int n = poll(p, 2, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (n < 0 && errno == EINTR) continue;
    if (p[1].revents != 0) return absl::CancelledError("given up");
    if (n == 0) return absl::DeadlineExceededError("no answer");
    return absl::OkStatus();
  }
}

// While an agent is started it may say nothing for long, but its machine acknowledges.
constexpr std::chrono::milliseconds kSilence = std::chrono::seconds(15);
constexpr int kProbeEvery = 5;  // s

void SetInt(int fd, int option, int value) {
  setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
}

void BreakWhenSilent(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  SetInt(fd, TCP_KEEPIDLE, kProbeEvery);
  SetInt(fd, TCP_KEEPINTVL, kProbeEvery);
  SetInt(fd, TCP_USER_TIMEOUT, static_cast<int>(kSilence.count()));
}

int Family(const std::string& name) {
  return name == "inet" ? AF_INET : name == "inet6" ? AF_INET6 : AF_UNSPEC;
}

// `ssh -G` says every name in lower case; the user is told what the user wrote.
const std::string& AsWritten(const SshSettings& settings, const Target& target) {
  return absl::EqualsIgnoreCase(settings.host_name, target.host) ? target.host : settings.host_name;
}

absl::Status Bind(int fd, const std::string& address, int family) {
  addrinfo hints = {}, *list = nullptr;
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  std::string what = absl::StrCat("bind to the ssh configuration's BindAddress ", Escape(address));
  if (getaddrinfo(address.c_str(), nullptr, &hints, &list) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": not an address of this kind"));
  }
  int rc = bind(fd, list->ai_addr, list->ai_addrlen);
  int error = errno;
  freeaddrinfo(list);
  return rc == 0 ? absl::OkStatus() : PosixError(error, what);
}

absl::Status CannotConnect(int error_number, const std::string& what) {
  return PassingError(PosixError(error_number, what), WhatPassesOf(error_number));
}

absl::StatusOr<os::UniqueFd> ConnectTo(const addrinfo& address, const SshSettings& settings,
                                       TimePoint deadline, int cancel) {
  os::UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return PosixError(errno, "create a socket");
  int on = 1;
  // Without it authentication alone takes 40 ms longer: its small packets wait for each other.
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  BreakWhenSilent(fd.get());
  if (!settings.bind_address.empty()) {
    absl::Status bound = Bind(fd.get(), settings.bind_address, address.ai_family);
    if (!bound.ok()) return bound;
  }
  char text[INET6_ADDRSTRLEN + 20] = {};
  getnameinfo(address.ai_addr, address.ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  std::string what = absl::StrCat("connect to ", text, " port ", settings.port);
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return CannotConnect(errno, what);
    absl::Status waited = WaitFor(fd.get(), POLLOUT, deadline, cancel);
    if (absl::IsDeadlineExceeded(waited)) {
      return PassingError(absl::DeadlineExceededError(absl::StrCat(what, ": no answer in time")),
                          "no answer");
    }
    if (!waited.ok()) return waited;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return CannotConnect(error, what);
  }
  return fd;
}

absl::StatusOr<Dialed> DialDirect(const SshSettings& settings, const Target& target,
                                  NameAnswers& names, TimePoint deadline, int cancel) {
  auto addresses = LookUp(settings.host_name, AsWritten(settings, target), settings.port,
                          Family(settings.address_family), names, deadline, cancel);
  if (!addresses.ok()) return addresses.status();
  absl::Status first;
  for (addrinfo* a = (*addresses)->first; a != nullptr; a = a->ai_next) {
    // A silent address leaves half of the time to the next one.
    TimePoint until =
        a->ai_next == nullptr ? deadline : Clock::now() + (deadline - Clock::now()) / 2;
    auto fd = ConnectTo(*a, settings, until, cancel);
    if (fd.ok()) return Dialed{std::move(*fd), nullptr};
    if (absl::IsCancelled(fd.status())) return fd.status();
    first.Update(fd.status());
  }
  return first;
}

constexpr std::chrono::seconds kJumpBeat(5);

// OpenSSH makes the connection to the last host of the list and goes through the others first.
std::vector<std::string> JumpCommand(const SshSettings& settings, const std::string& config_file,
                                     TimePoint deadline) {
  auto seconds = std::chrono::ceil<std::chrono::seconds>(deadline - Clock::now()).count();
  const auto beats = std::chrono::ceil<std::chrono::seconds>(settings.jump_silence) / kJumpBeat;
  std::vector<std::string> argv = {
      "ssh", "-T",
      "-o",  "BatchMode=yes",
      "-o",  absl::StrCat("ConnectTimeout=", std::max<int64_t>(seconds, 1)),
      "-o",  absl::StrCat("ServerAliveInterval=", kJumpBeat.count()),
      "-o",  absl::StrCat("ServerAliveCountMax=", beats)};
  if (!config_file.empty()) argv.insert(argv.end(), {"-F", config_file});
  std::string jump = settings.proxy_jump;
  size_t comma = jump.rfind(',');
  if (comma != std::string::npos) {
    argv.insert(argv.end(), {"-J", jump.substr(0, comma)});
    jump.erase(0, comma + 1);
  }
  bool v6 = absl::StrContains(settings.host_name, ':');
  argv.insert(
      argv.end(),
      {"-W", absl::StrCat(v6 ? "[" : "", settings.host_name, v6 ? "]" : "", ":", settings.port),
       "--", absl::StartsWith(jump, "ssh://") ? jump : "ssh://" + jump});
  return argv;
}

absl::StatusOr<Dialed> DialThrough(std::vector<std::string> argv) {
  auto child = StartChild(std::move(argv), /*stdout_apart=*/false);
  if (!child.ok()) return child.status();
  return Dialed{std::move(child->stream),
                std::make_unique<Proxy>(std::move(child->process), std::move(child->error))};
}

}  // namespace

Proxy::~Proxy() {
  SignalChild(child_, SIGTERM, /*whole_group=*/true);
  pollfd p{child_.pidfd.get(), POLLIN, 0};
  if (poll(&p, 1, kProxyEnds.count()) != 1) SignalChild(child_, SIGKILL, /*whole_group=*/true);
  (void)os::WaitAndReap(child_.pidfd.get());
}

void Proxy::ReadError() {
  char buffer[16384];
  for (;;) {
    ssize_t n = read(error_.get(), buffer, sizeof(buffer));
    if (n > 0) {
      tail_.Add(absl::string_view(buffer, static_cast<size_t>(n)));
      if (n == sizeof(buffer)) return;  // there may be no end to it: the caller polls again
      continue;
    }
    if (n == 0) error_.Reset();
    return;
  }
}

void AllowSilence(int socket) {
  SetInt(socket, TCP_USER_TIMEOUT, 0);
  // Linux's own: a connection that lives long is probed after two hours.
  SetInt(socket, TCP_KEEPIDLE, 7200);
  SetInt(socket, TCP_KEEPINTVL, 75);
}

absl::StatusOr<Dialed> Dial(const SshSettings& settings, const Target& target,
                            const std::string& config_file, NameAnswers& names, TimePoint deadline,
                            int cancel) {
  if (!settings.proxy_jump.empty()) {
    return DialThrough(JumpCommand(settings, config_file, deadline));
  }
  if (!settings.proxy_command.empty()) {
    auto command = ExpandTokens(settings.proxy_command, TokensFor(settings, target));
    if (!command.ok()) return command.status();
    return DialThrough({"/bin/sh", "-c", absl::StrCat("exec ", *command)});
  }
  return DialDirect(settings, target, names, deadline, cancel);
}

absl::Status Pause(Duration duration, int cancel) {
  absl::Status waited = WaitFor(-1, 0, Clock::now() + duration, cancel);
  return absl::IsDeadlineExceeded(waited) ? absl::OkStatus() : waited;
}

}  // namespace dtrain::transport
