// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/os/spawn.h"
#include "common/os/unique_fd.h"
#include "launcher/migrate/options.h"

namespace dtrain::migrate {

// After that without an answer ssh gives up.
inline constexpr Duration kSshSilence = std::chrono::seconds(15);

// An ssh, or what --rsh names, that runs `dtrain migrate --receive` on another machine. What it
// says of itself goes to our stderr. Destroying it ends it.
class Ssh {
 public:
  Ssh() = default;
  ~Ssh() { (void)End(); }
  Ssh(const Ssh&) = delete;
  Ssh& operator=(const Ssh&) = delete;

  absl::Status Start(const Options& options);

  // To the other end's stdin and stdout. Does not block.
  int fd() const { return stream_.get(); }
  // For messages: what was started, in short.
  const std::string& command() const { return command_; }
  // "exit status 255"; empty: it had to be killed, or nothing is known.
  std::string End();

 private:
  std::string command_;
  os::Child child_;
  os::UniqueFd stream_;
};

}  // namespace dtrain::migrate
