// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "dtrain/v1/job.pb.h"

// Which of the workers' output reaches our stdout and stderr. Log files get all of it. Pure.
namespace dtrain::output {

enum class Streams { kNone, kStdout, kStderr, kBoth };

struct Shown {
  std::vector<std::pair<uint32_t, uint32_t>> ranks;  // from, to; empty: all (--show-ranks)
  std::optional<std::set<uint32_t>> local_ranks;     // on each node; absent: all
  Streams streams = Streams::kBoth;                  // of local ranks that are not named here:
  std::map<uint32_t, Streams> streams_of = {};
};

bool IsShown(const Shown& shown, Rank rank, uint32_t local_rank, v1::StreamKind stream);

// A warning when ranks are to be shown that a job of this size does not have; empty: none.
std::string WarningOfRanks(const Shown& shown, uint32_t world_size);

}  // namespace dtrain::output
