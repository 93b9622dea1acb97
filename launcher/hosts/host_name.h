// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/source.h"

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

// Host names in the compressed form rack[0-1]node[01-16,20].example: counted before anything is
// expanded, so that a range of a billion costs nothing but an error.
class HostPattern {
 public:
  // One name, taken as it is.
  static HostPattern Literal(absl::string_view host);
  // At most kMaxHosts names, each of them valid. `at` is where `text` starts.
  static absl::StatusOr<HostPattern> Parse(const Source& source, Position at,
                                           absl::string_view text);

  size_t count() const { return count_; }
  // Each name in turn, the last group running fastest, until `visit` fails.
  absl::Status Expand(absl::FunctionRef<absl::Status(std::string)> visit) const;

 private:
  struct Range {
    uint64_t low = 0;
    uint64_t high = 0;
    size_t width = 0;  // padded with zeros to as many digits as the low end was written with
  };
  struct Piece {
    std::string text;           // comes before the group
    std::vector<Range> ranges;  // empty: only text
  };

  static absl::StatusOr<Range> ParseRange(const Source& source, Position at,
                                          absl::string_view text);
  static absl::StatusOr<std::vector<Range>> ParseGroup(const Source& source, Position at,
                                                       absl::string_view text);
  absl::Status ExpandFrom(size_t piece, const std::string& prefix,
                          absl::FunctionRef<absl::Status(std::string)> visit) const;

  std::vector<Piece> pieces_;
  size_t count_ = 1;
};

}  // namespace dtrain::hosts
