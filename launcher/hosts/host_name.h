// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::hosts {

inline constexpr size_t kMaxNameLength = 253;  // of a DNS name

struct NameFault {
  size_t offset = 0;
  std::string what;
};

inline constexpr absl::string_view kNameAdvice =
    "use letters, digits, '.', '_' and '-', not '-' or '.' first";

// What is wrong with a host name or IPv4 address; none when it is fine. An allow-list, so that no
// name can mean anything to a shell, to ssh's own command line or to a terminal.
std::optional<NameFault> FindHostNameFault(absl::string_view host,
                                           size_t max_length = kMaxNameLength);
// Likewise for a login name, which may also hold '@' and '+'.
std::optional<NameFault> FindUserFault(absl::string_view user);

// An IPv6 literal without brackets, perhaps with a zone: fe80::1%eth0.
bool IsIpv6(absl::string_view text);

// Equal for two spellings of one name or address: case, zeros of an IPv6 address.
std::string HostKey(absl::string_view host);

}  // namespace dtrain::hosts
