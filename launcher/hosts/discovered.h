// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::hosts {

// What a host discovery script prints: HOST or HOST:SLOTS on each line, as Horovod's, with
// brackets around an IPv6 address that has slots. Empty lines count for nothing; the last line of
// a host counts. No line at all is a list without hosts. `slots`: of a host whose line names none.
// Errors name the line. Pure.
//
// Source: horovod/runner/elastic/discovery.py.
absl::StatusOr<HostList> ParseDiscovered(absl::string_view text, std::optional<uint32_t> slots);

}  // namespace dtrain::hosts
