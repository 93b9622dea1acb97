// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/hosts/source.h"

namespace dtrain::hosts {

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
