// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/node.pb.h"

// Which addresses of which nodes can be reached is found out by connecting. The connecting side
// sends "dtrain-probe/1 " and the job's token (32 bytes) in hex digits, the answering side sends
// its own 32 random bytes, which its inventory announced: so both know whom they met, whatever a
// name or a route says. A user chooses the addresses and the token. Hex digits behind that word are
// no request in any other protocol, so no server does something because an agent connects to it.
namespace dtrain::inventory {

inline constexpr size_t kProbeBytes = 32;
// What the connecting side sends.
std::string ProbeGreeting(absl::string_view token);

// Answers probes of one job. Loop thread. Whoever sends anything else (a port scanner, a
// browser) gets no byte back and is dropped.
class ProbeListener {
 public:
  struct Options {
    Duration token_timeout = std::chrono::seconds(5);
    size_t max_pending = 256;  // connections that have not sent their token; the oldest gives way
  };

  // Listens on the wildcard address, on a port of the kernel's choice. `token` has kProbeBytes.
  static absl::StatusOr<std::unique_ptr<ProbeListener>> Make(loop::Loop& loop, std::string token,
                                                             Options options);
  static absl::StatusOr<std::unique_ptr<ProbeListener>> Make(loop::Loop& loop, std::string token);
  ~ProbeListener();
  ProbeListener(const ProbeListener&) = delete;
  ProbeListener& operator=(const ProbeListener&) = delete;

  uint16_t port() const { return port_; }
  const std::string& reply() const { return reply_; }
  size_t pending() const { return connections_.size(); }

 private:
  struct Connection;
  using Connections = std::list<std::unique_ptr<Connection>>;
  ProbeListener(loop::Loop& loop, std::string token, Options options, os::UniqueFd fd,
                uint16_t port);
  void Accept();
  bool AcceptOne();
  void Read(Connections::iterator it);

  loop::Loop& loop_;
  const std::string expected_;
  const std::string reply_;
  const Options options_;
  const uint16_t port_;
  os::UniqueFd fd_;
  loop::FdWatch watch_;
  loop::Timer pause_;
  Connections connections_;  // oldest first
};

// Tries all targets of one request, at most 64 at a time, each for at most the request's timeout.
// Begins no more than 64 in one turn of the loop, as some may fail at once.
// Loop thread. Destroying it ends the tries without a report.
class Prober {
 public:
  using Done = absl::AnyInvocable<void(v1::ProbeReport report)>;
  // `done` is called once, later, from the loop, with the outcomes in the targets' order; it may
  // destroy the prober.
  Prober(loop::Loop& loop, v1::ProbeRequest request, Done done);
  ~Prober();
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

 private:
  struct Try;
  using Tries = std::list<std::unique_ptr<Try>>;
  void StartMore();
  void StartMoreLater();
  bool Start(int target);
  void OnConnected(Tries::iterator it);
  void OnReply(Tries::iterator it);
  void Fail(Tries::iterator it, std::string error);
  void Finish(int target, std::string error);
  void End(Tries::iterator it);

  loop::Loop& loop_;
  const v1::ProbeRequest request_;
  const Duration timeout_;
  Done done_;
  v1::ProbeReport report_;
  int next_ = 0;
  Tries tries_;
  loop::Timer next_turn_;  // for more of them, or for the report
};

}  // namespace dtrain::inventory
