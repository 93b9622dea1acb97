// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// What the workers and the launch print for programs, read. All of it comes from outside: what is
// not as expected is left out. Pure.
namespace dtrain::bench {

struct Timing {
  double time_us = 0;
  double algbw_gbs = 0;
  double busbw_gbs = 0;
  uint64_t wrong = 0;
};

// One size.
struct SizeRow : Timing {
  uint64_t bytes = 0;
  std::optional<Timing> in_place = std::nullopt;
  bool pipelined = false;   // means of calls back to back; else medians of single ones
  std::string memory = "";  // "plain", "shared" or "device"
};

// Two ranks.
struct PairRow {
  uint32_t from = 0;
  uint32_t to = 0;
  double latency_us = 0;
  double bandwidth_gbs = 0;
};

// An array of objects, whole, or as much of it as there is when each object has a line.
std::vector<SizeRow> ReadSizes(absl::string_view text);
std::vector<PairRow> ReadPairs(absl::string_view text);
// One line of such an array.
std::optional<SizeRow> ReadSizeLine(absl::string_view line);

// One step of training as a worker's line tells it; zero: not told.
struct Step {
  int rank = -1;  // -1: the line does not begin with one
  double seconds = 0;
  double compute = 0;
  double allreduce = 0;
  double optimiser = 0;
  double samples = 0;  // of this rank
  double bytes = 0;    // that this rank all-reduced
};

// "[3] dtrain-step {"seconds": 0.1, ...}"; nullopt for any other line.
std::optional<Step> ReadStep(absl::string_view line);

// Of the document that `dtrain launch --result-json` writes.
struct LaunchFacts {
  struct Rank {
    std::string host;
    double operations = 0;  // collectives of libdtrain
    double bytes = 0;
    double busy_s = 0;
    double wait_s = 0;
  };
  double startup_s = 0;  // until the workers ran
  double run_s = 0;
  size_t nodes = 0;
  std::vector<Rank> ranks;
};
std::optional<LaunchFacts> ReadLaunchFacts(absl::string_view text);

}  // namespace dtrain::bench
