// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/collective_table.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"

namespace dtrain::report {
namespace {

constexpr size_t kMostRows = 32;

}  // namespace

std::string CollectiveTable(const JobFacts& facts) {
  std::vector<const job::RankEnd*> rows;
  for (const job::RankEnd& rank : facts.ranks) {
    if (rank.progress.operations() > 0) rows.push_back(&rank);
  }
  if (rows.empty()) return "";
  std::stable_sort(rows.begin(), rows.end(), [](const auto* a, const auto* b) {
    return a->progress.wait_nanos() < b->progress.wait_nanos();
  });
  std::string table = absl::StrFormat("%6s  %-20s %12s %12s %12s %12s\n", "rank", "host",
                                      "collectives", "MB", "inside", "waiting");
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) {
    const v1::RankProgress& progress = rows[i]->progress;
    absl::StrAppendFormat(
        &table, "%6d  %-20s %12d %12.1f %12s %12s\n", rows[i]->rank.value(),
        Escape(HostOf(facts, rows[i]->node), 60), progress.operations(),
        static_cast<double>(progress.total_bytes()) / 1e6,
        Seconds(std::chrono::nanoseconds(static_cast<int64_t>(progress.busy_nanos()))),
        Seconds(std::chrono::nanoseconds(static_cast<int64_t>(progress.wait_nanos()))));
  }
  if (rows.size() > kMostRows) {
    absl::StrAppend(&table, "   and ", rows.size() - kMostRows, " more that waited longer\n");
  }
  return table;
}

}  // namespace dtrain::report
