// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/plan/plan.h"

namespace dtrain::plan {
namespace {

using Row = std::vector<std::string>;

// "GPU-1a2b3c4d": enough of a UUID to tell the GPUs of one node apart.
std::string Short(const std::string& uuid) { return Escape(uuid.substr(0, 12), 16); }

std::string FormatGpus(const v1::WorkerSpec& worker) {
  const auto& uuids = worker.gpu_uuids();
  if (!worker.set_visible_gpus()) return "-";
  if (uuids.empty()) return "none";
  if (!worker.narrowed_gpus()) {
    return absl::StrCat(Short(uuids[worker.local_rank() % uuids.size()]), " of ", uuids.size());
  }
  std::string text;
  for (const std::string& uuid : uuids)
    absl::StrAppend(&text, text.empty() ? "" : ",", Short(uuid));
  return text;
}

bool HasSeveralPrograms(const Plan& plan) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const PlannedNode& node) {
    return std::any_of(node.workers.begin(), node.workers.end(),
                       [](const v1::WorkerSpec& worker) { return worker.program() > 0; });
  });
}

}  // namespace

std::string FormatRankTable(const Plan& plan) {
  std::vector<Row> rows(plan.world_size + 1);
  rows[0] = {"rank", "node", "host", "local", "gpus", "cores"};
  const bool several = HasSeveralPrograms(plan);
  if (several) rows[0].insert(rows[0].begin() + 1, "program");
  for (size_t n = 0; n < plan.nodes.size(); ++n) {
    const PlannedNode& node = plan.nodes[n];
    for (const v1::WorkerSpec& worker : node.workers) {
      rows[worker.rank() + 1] = {absl::StrCat(worker.rank()),
                                 absl::StrCat(n),
                                 node.entry.host,
                                 absl::StrCat(worker.local_rank(), "/", node.workers.size()),
                                 FormatGpus(worker),
                                 worker.cpulist().empty() ? "-" : worker.cpulist()};
      Row& row = rows[worker.rank() + 1];
      if (several) row.insert(row.begin() + 1, absl::StrCat(worker.program() + 1));
    }
  }
  std::vector<size_t> width(rows[0].size());
  for (const Row& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t c = 0; c + 1 < row.size(); ++c) {
      absl::StrAppend(&text, row[c], std::string(width[c] - row[c].size() + 2, ' '));
    }
    absl::StrAppend(&text, row.back(), "\n");
  }
  if (plan.made_blind) {
    absl::StrAppend(&text, "No host was asked, because the slots are given; ",
                    "dtrain launch -v prints GPUs and cores.\n");
  }
  return text;
}

}  // namespace dtrain::plan
