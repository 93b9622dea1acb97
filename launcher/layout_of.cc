// SPDX-License-Identifier: Apache-2.0
#include "launcher/layout_of.h"

#include <utility>

namespace dtrain {

output::Layout LayoutOf(const plan::Plan& plan, std::string job_id, uint32_t attempt) {
  output::Layout layout;
  layout.job_id = std::move(job_id);
  layout.attempt = attempt;
  layout.ranks.resize(plan.world_size);
  for (uint32_t node = 0; node < plan.nodes.size(); ++node) {
    layout.hosts.push_back(plan.nodes[node].entry.host);
    for (const v1::WorkerSpec& worker : plan.nodes[node].workers) {
      layout.ranks[worker.rank()] = {node, worker.local_rank()};
    }
  }
  return layout;
}

}  // namespace dtrain
