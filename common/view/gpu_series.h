// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/v1/node.pb.h"

namespace dtrain::view {

// How the GPUs of a job have been over the last hour, in bins of time. Pure.
class GpuSeries {
 public:
  static constexpr std::chrono::seconds kBin{10};
  static constexpr size_t kMostBins = 360;  // an hour

  // What a node says of its GPUs: the last word before the end of a bin is that of the bin.
  void Take(const std::string& host, const v1::GpuStates& states);
  // Ends the bin. Before any GPU was heard of there are no bins.
  void EndBin();

  // "seconds" of a bin, the number of the "first" one told, and "gpus", each with a value for each
  // bin from `bin` on, null where nothing was heard. At most the last `most` bins.
  nlohmann::ordered_json Since(uint64_t bin, uint64_t most = kMostBins) const;

 private:
  struct Sample {
    int32_t percent = -1, used_mib = -1, watts = -1, celsius = -1;  // -1: not known
  };
  struct Gpu {
    uint32_t index = 0;
    int64_t total_mib = -1;
    std::optional<Sample> now;   // of the bin that is not over
    std::deque<Sample> samples;  // the last of them is of the last bin
  };

  std::map<std::pair<std::string, std::string>, Gpu> gpus_;  // by host and uuid
  uint64_t end_ = 0;                                         // bins so far
};

}  // namespace dtrain::view
