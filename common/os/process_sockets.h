// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

// What a process that runs is at, beyond what /proc says of it. All answer as of nobody where it
// may not be looked at; it is not held up.
namespace dtrain::os {

// Of a TCP socket which the process has tried to connect to this machine itself, in vain: the port
// that it had. Another one a while later: it tries again and again. Absent: there is none.
std::optional<uint16_t> FailedLoopbackConnect(pid_t pid);

// Whether it has a socket of IPv4 or IPv6. True also where that cannot be seen (Linux before 5.6).
bool HasNetworkSocket(pid_t pid);

// What the process itself has set a variable of its environment to since it was started, as far as
// the C library's copy is found. Bytes of its own choice, at most 256 of them.
std::optional<std::string> VariableSetByItself(pid_t pid, absl::string_view name);

}  // namespace dtrain::os
