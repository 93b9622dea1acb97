// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/os/unique_fd.h"

// systemd's side of a service: sd_notify(3), its watchdog and socket activation, by their
// documented protocols. libsystemd does the same but is not static, and the agent needs glibc only.
namespace dtrain::agent {

// What systemd gave this process when it started it. Taken once: the variables are gone afterwards,
// so that no shepherd inherits them.
struct Systemd {
  std::string notify_socket;            // empty: nobody wants to know
  Duration watchdog = {};               // between two signs of life; zero: none is due
  std::optional<os::UniqueFd> fd;       // agent.sock, when systemd listens there for us
  std::optional<os::UniqueFd> http_fd;  // http.sock, likewise

  static Systemd Take();
  // "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=..." Errors are ignored: it is only news.
  void Notify(const std::string& state) const;
};

}  // namespace dtrain::agent
