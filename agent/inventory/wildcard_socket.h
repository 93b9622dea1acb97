// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace dtrain::inventory {

struct BoundSocket {
  os::UniqueFd fd;
  uint16_t port = 0;
};

// A non-blocking TCP socket bound to a port of the kernel's choice on the wildcard address, IPv6
// and IPv4 alike; IPv4 alone on a machine without IPv6. `reuse` sets SO_REUSEADDR and SO_REUSEPORT.
absl::StatusOr<BoundSocket> BindWildcard(bool reuse);

}  // namespace dtrain::inventory
