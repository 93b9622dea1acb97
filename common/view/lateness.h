// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/clock.h"

namespace dtrain::view {

// Who comes late to collectives, in bins of time. Nobody measures that: but the rank that waits
// least for others is the one that they wait for. Pure.
class Lateness {
 public:
  static constexpr std::chrono::seconds kBin{10};
  static constexpr size_t kMostBins = 360;  // an hour

  // How long each rank has waited in collectives so far, by rank; none: it has not used them. To be
  // called about once a bin; `length`: since the last call. Without any data there is no bin.
  void Sample(absl::Span<const std::optional<uint64_t>> wait_nanos, Duration length);

  // "seconds" of a bin, the number of the "first" one told, and in "late" a text for each from
  // `bin` on, with a character of the base64 alphabet for each rank: by how many 64ths of the time
  // it waited less than the rank that waited most; "-" is no data.
  // At most the last `most` bins.
  nlohmann::ordered_json Since(uint64_t bin, uint64_t most = kMostBins) const;

 private:
  std::vector<std::optional<uint64_t>> last_;
  std::deque<std::string> bins_;
  uint64_t first_ = 0;
};

}  // namespace dtrain::view
