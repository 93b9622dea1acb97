// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/inventory/probe.h"
#include "common/os/fd.h"

namespace dtrain::inventory {

// A listener whose queue is full drops connection requests, as a firewall or a dead host does.
class BlackHole {
 public:
  BlackHole() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(listener_.get(), generic, length), 0);
    EXPECT_EQ(listen(listener_.get(), 0), 0);
    EXPECT_EQ(getsockname(listener_.get(), generic, &length), 0);
    port_ = ntohs(address.sin_port);
    for (int i = 0; i < 4; ++i) {
      fillers_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)connect(fillers_.back().get(), generic, length);
    }
  }
  uint16_t port() const { return port_; }

 private:
  os::UniqueFd listener_;
  std::vector<os::UniqueFd> fillers_;
  uint16_t port_ = 0;
};

// While it lives, this process can open `spare` more descriptors.
class LowLimit {
 public:
  explicit LowLimit(rlim_t spare) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    os::UniqueFd lowest_free(dup(STDERR_FILENO));
    rlimit low = before_;
    low.rlim_cur = static_cast<rlim_t>(lowest_free.get()) + spare;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~LowLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  LowLimit(const LowLimit&) = delete;
  LowLimit& operator=(const LowLimit&) = delete;

 private:
  rlimit before_ = {};
};

class ProbeTest : public ::testing::Test {
 protected:
  static constexpr Duration kDeadline = std::chrono::seconds(20);

  // Runs the loop until `done`; false when that took too long.
  bool RunUntil(const std::function<bool()>& done) {
    const TimePoint deadline = loop_.Now() + kDeadline;
    while (!done()) {
      if (loop_.Now() > deadline) return false;
      loop_.context().run_one_for(std::chrono::milliseconds(20));
    }
    return true;
  }

  std::unique_ptr<ProbeListener> Listen(ProbeListener::Options options = {}) {
    absl::StatusOr<std::unique_ptr<ProbeListener>> made =
        ProbeListener::Make(loop_, token_, options);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }

  // A client of the listener at `port` that has connected.
  os::UniqueFd Client(uint16_t port) {
    os::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_TRUE(os::SetNonBlocking(fd.get(), true).ok());
    return fd;
  }

  // Sends `bytes` as the listener takes them, and returns all that came back when the listener has
  // dropped the connection; nothing when it has not within the deadline.
  std::optional<std::string> Exchange(int fd, std::string bytes) {
    std::string got;
    size_t sent = 0;
    bool ended = RunUntil([&] {
      ssize_t n = 0;
      while (sent < bytes.size() &&
             (n = send(fd, &bytes[sent], bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT)) > 0) {
        sent += static_cast<size_t>(n);
      }
      char buffer[256];
      while ((n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
        got.append(buffer, static_cast<size_t>(n));
      }
      return n == 0 || errno != EAGAIN;
    });
    if (!ended) return std::nullopt;
    return got;
  }

  static void AddTarget(v1::ProbeRequest& request, const std::string& ip, uint32_t port,
                        const std::string& reply) {
    v1::ProbeTarget* target = request.add_targets();
    target->set_node(static_cast<uint32_t>(request.targets_size()));
    target->set_ip(ip);
    target->set_port(port);
    target->set_expected_reply(reply);
  }

  v1::ProbeRequest Request(uint32_t timeout_ms = 10'000) {
    v1::ProbeRequest request;
    request.set_token(token_);
    request.set_timeout_ms(timeout_ms);
    return request;
  }

  v1::ProbeReport Probe(v1::ProbeRequest request) {
    std::optional<v1::ProbeReport> report;
    Prober prober(loop_, std::move(request), [&](v1::ProbeReport r) { report = std::move(r); });
    EXPECT_FALSE(report.has_value()) << "called back from the constructor";
    EXPECT_TRUE(RunUntil([&] { return report.has_value(); }));
    return report.value_or(v1::ProbeReport());
  }

  v1::ProbeOutcome ProbeOne(const std::string& ip, uint32_t port, const std::string& reply,
                            uint32_t timeout_ms = 10'000) {
    v1::ProbeRequest request = Request(timeout_ms);
    AddTarget(request, ip, port, reply);
    v1::ProbeReport report = Probe(std::move(request));
    EXPECT_EQ(report.outcomes_size(), 1);
    return report.outcomes_size() == 1 ? report.outcomes(0) : v1::ProbeOutcome();
  }

  // Before descriptors are taken away: the loop opens its own when it is first used, and UBSan
  // opens a pipe when it first sees an object of some class.
  void Rehearse() {
    std::unique_ptr<ProbeListener> listener = Listen();
    EXPECT_TRUE(ProbeOne("127.0.0.1", listener->port(), listener->reply()).reached());
    os::UniqueFd client = Client(listener->port());
    EXPECT_EQ(Exchange(client.get(), greeting_), listener->reply());
  }

  loop::Loop loop_;
  const std::string token_ = os::RandomBytes(kProbeBytes);
  const std::string greeting_ = ProbeGreeting(token_);
};

}  // namespace dtrain::inventory
