// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/shown.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dtrain::output {

bool IsShown(const Shown& shown, Rank rank, uint32_t local_rank, v1::StreamKind stream) {
  const auto has_rank = [&](const std::pair<uint32_t, uint32_t>& range) {
    return range.first <= rank.value() && rank.value() <= range.second;
  };
  if (!shown.ranks.empty() && std::none_of(shown.ranks.begin(), shown.ranks.end(), has_rank)) {
    return false;
  }
  if (shown.local_ranks && shown.local_ranks->count(local_rank) == 0) return false;
  const auto own = shown.streams_of.find(local_rank);
  const Streams streams = own == shown.streams_of.end() ? shown.streams : own->second;
  if (streams == Streams::kBoth) return true;
  return streams == (stream == v1::STREAM_KIND_STDERR ? Streams::kStderr : Streams::kStdout);
}

std::string WarningOfRanks(const Shown& shown, uint32_t world_size) {
  for (const auto& [from, to] : shown.ranks) {
    if (to < world_size) continue;
    return absl::StrCat("--show-ranks: the job has no rank ", std::max(from, world_size), ", only ",
                        world_size == 1 ? "0" : absl::StrCat("0 to ", world_size - 1));
  }
  return "";
}

}  // namespace dtrain::output
