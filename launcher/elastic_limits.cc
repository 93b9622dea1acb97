// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic_limits.h"

#include <algorithm>
#include <cstdint>

namespace dtrain {

// -N MIN:MAX counts hosts, -np and --min-np ranks. Who gives no number begins with all hosts, and
// goes on with any. Of several hosts a job begins with two at least, as the first round proves by
// which network they reach each other.
elastic::ElasticOptions LimitsOf(const cli::LaunchOptions& options, const hosts::HostList& hosts) {
  const cli::ElasticOptions& flags = options.elastic;
  const auto listed = static_cast<uint32_t>(hosts.entries.size());
  elastic::ElasticOptions limits;
  limits.most = {flags.most_ranks, options.job.plan.nodes};
  const std::optional<uint32_t> ranks = options.job.plan.ranks;
  const bool counts_ranks = ranks || flags.least_ranks;
  const uint32_t most = std::min(listed, limits.most.hosts.value_or(listed));
  const uint32_t proven = options.job.net.empty() ? 2 : 1;
  limits.start.ranks = ranks.value_or(flags.least_ranks.value_or(1));
  // -N 3 is 3:3.
  const uint32_t least_hosts =
      options.job.min_nodes > 0 ? options.job.min_nodes : options.job.plan.nodes.value_or(0);
  limits.start.hosts = least_hosts > 0 ? least_hosts : counts_ranks ? 1 : most;
  limits.start.hosts = std::max(limits.start.hosts, std::min(proven, most));
  limits.later.ranks = flags.least_ranks.value_or(ranks.value_or(1));
  limits.later.hosts = std::max<uint32_t>(least_hosts, 1);

  limits.most_resets = flags.most_resets;
  limits.join_timeout = options.restarts.join_timeout;
  if (flags.discover.empty()) {
    for (const hosts::HostEntry& entry : hosts.entries) limits.fixed_hosts.push_back(entry.host);
  }
  return limits;
}

std::optional<elastic::CoolDown> CoolDownOf(const cli::ElasticOptions& options) {
  if (!options.cool_down) return std::nullopt;
  return elastic::CoolDown{options.cool_down->first, options.cool_down->second};
}

}  // namespace dtrain
