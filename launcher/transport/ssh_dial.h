// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/os/unique_fd.h"
#include "launcher/transport/child.h"
#include "launcher/transport/name_lookup.h"
#include "launcher/transport/ssh_config.h"

// From a name to a connected stream socket on which ssh can be spoken. Blocks, but never longer
// than its deadline, and no longer than until `cancel` becomes readable.
namespace dtrain::transport {

// The command an ssh connection runs through; ended and reaped with this.
class Proxy {
 public:
  Proxy(os::Child child, os::UniqueFd error) : child_(std::move(child)), error_(std::move(error)) {}
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  // Poll this; when readable, call ReadError. -1 after its end.
  int error_fd() const { return error_.get(); }
  void ReadError();
  absl::string_view error_text() const { return tail_.text(); }

 private:
  os::Child child_;
  os::UniqueFd error_;
  Tail tail_;
};

struct Dialed {
  os::UniqueFd socket;
  std::unique_ptr<Proxy> proxy;  // null: a TCP connection
};

// What is dialed breaks (ETIMEDOUT) when its other end acknowledges nothing for 15 s, until this is
// called: a job that runs has its lease. Does nothing for a proxy's.
void AllowSilence(int socket);

// `names`: of all that one command dials. IsUnknownHost: there is no such name. UNAVAILABLE: nobody
// could tell whether there is. DEADLINE_EXCEEDED, CANCELLED.
absl::StatusOr<Dialed> Dial(const SshSettings& settings, const Target& target,
                            const std::string& config_file, NameAnswers& names, TimePoint deadline,
                            int cancel);

// Sleeps; CANCELLED when that was cut short.
absl::Status Pause(Duration duration, int cancel);

}  // namespace dtrain::transport
