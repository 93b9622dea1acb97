// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/v1/node.pb.h"

namespace dtrain::inventory {

// The interfaces of this process's network namespace with the addresses other machines could
// connect to, in the kernel's order. Asked through sockets, never sysfs, which may show the
// namespace of whoever mounted it. Left out: IPv6 link-local addresses, which need a scope that
// means nothing elsewhere, and the host's ends of containers' veth pairs, which have no others.
absl::StatusOr<std::vector<v1::Interface>> ReadInterfaces();

}  // namespace dtrain::inventory
