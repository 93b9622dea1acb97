// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/os/unique_fd.h"

namespace dtrain::pmix {

// Gives connections to libpmix's server in place of those that it accepts by itself.
//
// It listens on a port of 127.0.0.1, which every user of the machine can connect to, and believes
// what a client says of itself. We know who connects to us, so: once this has begun, accept() in
// this process, libpmix's calls included, closes whatever has connected and returns a connection
// that was given here, or fails with EAGAIN when none is waiting. So a connection to its port only
// makes libpmix ask.
class HandOver {
 public:
  // From now on, for the rest of the process. Fails when another library's accept() comes first.
  static absl::Status Begin();
  // Queues a connection for the server that listens on `port` and makes it ask. Not on a thread of
  // that server.
  static absl::Status Give(os::UniqueFd connection, uint16_t port);
};

}  // namespace dtrain::pmix
