// SPDX-License-Identifier: Apache-2.0
#include "launcher/campaign_of.h"

#include <algorithm>
#include <set>

#include "launcher/job/outcome.h"
#include "launcher/report/attempts.h"

namespace dtrain {

bool IsElastic(const cli::LaunchOptions& options) {
  return options.elastic.on && !options.job.dry_run;
}

bool MayRestart(const cli::LaunchOptions& options) {
  return options.restarts.max_restarts > 0 || options.spares > 0;
}

hosts::HostList HostsOf(const cli::LaunchOptions& options) {
  const std::optional<uint32_t>& nodes = options.job.plan.nodes;
  const auto listed = static_cast<uint32_t>(options.hosts.entries.size());
  hosts::HostList hosts = options.hosts;
  const bool some = nodes && !IsElastic(options);  // others may take the places of these
  hosts.entries.resize(some ? std::min(*nodes + options.spares, listed) : listed);
  return hosts;
}

job::CampaignOptions CampaignOf(const cli::LaunchOptions& options, const hosts::HostList& hosts) {
  job::CampaignOptions campaign = options.restarts;
  for (const hosts::HostEntry& entry : hosts.entries) campaign.hosts.push_back(entry.host);
  const auto most = static_cast<uint32_t>(hosts.entries.size()) - options.spares;
  campaign.least_hosts = options.job.min_nodes > 0 ? options.job.min_nodes : most;
  if (IsElastic(options) && options.job.min_nodes == 0) {
    campaign.least_hosts = options.job.plan.nodes.value_or(most);
  }
  campaign.most_hosts = options.job.plan.nodes.value_or(most);
  campaign.spares = options.spares > 0;
  campaign.time_limit = options.job.time_limit;
  return campaign;
}

std::optional<uint32_t> IndexOf(const hosts::HostList& hosts, const std::string& name) {
  const auto at = std::find_if(hosts.entries.begin(), hosts.entries.end(),
                               [&name](const auto& entry) { return entry.host == name; });
  if (at == hosts.entries.end()) return std::nullopt;
  return static_cast<uint32_t>(at - hosts.entries.begin());
}

hosts::HostList ListOf(const hosts::HostList& hosts, const std::vector<uint32_t>& indices) {
  hosts::HostList list = hosts;
  list.entries.clear();
  for (const uint32_t index : indices) list.entries.push_back(hosts.entries[index]);
  return list;
}

std::vector<uint32_t> JoinedOf(const report::JobFacts& attempt, const hosts::HostList& hosts) {
  std::vector<uint32_t> joined;
  for (const job::NodeView& node : attempt.nodes) {
    // One that was let go had come, and there was nothing for it to do.
    if (!node.joined || (node.gone && !node.let_go)) continue;
    if (const auto host = IndexOf(hosts, node.host)) joined.push_back(*host);
  }
  return joined;
}

std::vector<uint32_t> SeatsOf(const report::JobFacts& attempt, const hosts::HostList& hosts) {
  std::vector<uint32_t> seats;
  std::set<NodeId> seen;
  for (const job::RankEnd& rank : attempt.ranks) {
    if (!seen.insert(rank.node).second) continue;
    if (const auto host = IndexOf(hosts, report::HostOf(attempt, rank.node))) {
      seats.push_back(*host);
    }
  }
  return seats;
}

job::AttemptEnded EndOf(const report::JobFacts& attempt, TimePoint dead_at,
                        const std::vector<std::pair<NodeId, TimePoint>>& unheard,
                        const hosts::HostList& hosts) {
  job::AttemptEnded ended;
  ended.verdict = attempt.verdict;
  ended.cause = report::CauseLine(attempt);
  for (const NodeId node : attempt.verdict.nodes) {
    if (const auto host = IndexOf(hosts, report::HostOf(attempt, node))) {
      ended.hosts.push_back(*host);
    }
  }
  for (const job::GpuFault& fault : *attempt.gpus) {
    if (fault.kind != job::XidKind::kHardware) continue;
    const auto host = IndexOf(hosts, report::HostOf(attempt, fault.node));
    if (host) ended.bad_gpus.push_back({*host, job::NameOf(fault)});
  }
  for (const job::NodeView& node : attempt.nodes) {
    if (!node.spare || !node.gone || node.let_go) continue;
    if (const auto host = IndexOf(hosts, node.host)) ended.lost_spares.push_back(*host);
  }
  ended.joined = std::all_of(
      attempt.verdict.nodes.begin(), attempt.verdict.nodes.end(), [&attempt](NodeId node) {
        return node.value() < attempt.nodes.size() && attempt.nodes[node.value()].joined;
      });
  ended.dead_at = dead_at;
  for (const job::RankEnd& rank : attempt.ranks) {
    ended.ran =
        std::max<Duration>(ended.ran, std::chrono::nanoseconds(rank.exit.monotonic_nanos()));
  }
  for (const auto& [node, at] : unheard) {
    const auto host = IndexOf(hosts, report::HostOf(attempt, node));
    if (!host) continue;
    ended.unheard.push_back({*host, at, attempt.nodes[node.value()].inventory.boot_id()});
  }
  ended.done = !attempt.ranks.empty() &&
               std::all_of(attempt.ranks.begin(), attempt.ranks.end(), [](const auto& rank) {
                 return rank.ended && !HasFailed(rank.exit) && !rank.exit.told_to_stop();
               });
  return ended;
}

}  // namespace dtrain
