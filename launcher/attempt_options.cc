// SPDX-License-Identifier: Apache-2.0
#include "launcher/attempt_options.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/os/fd.h"

namespace dtrain {
namespace {

constexpr Duration kRetryOfRestart = std::chrono::seconds(10);

}  // namespace

job::JobOptions OptionsOf(const job::BeginAttempt& begin, job::JobOptions asked,
                          const job::CampaignOptions& campaign) {
  const uint32_t least_hosts = campaign.least_hosts;
  job::JobOptions options = std::move(asked);
  options.keep_spares = campaign.spares;
  options.attempt = begin.attempt;
  options.incarnation = os::RandomBytes(16);
  options.probe_token = os::RandomBytes(32);
  options.told_time_limit = options.time_limit;
  options.time_limit = begin.time_limit;
  // Who has spares does without a host that cannot be reached at first, too.
  if (begin.attempt > 0 || campaign.spares) {
    options.min_nodes = begin.hosts.size() > least_hosts ? least_hosts : 0;
    options.doubtful = begin.doubtful;
  }
  // What a restart cannot reach is tried again by the next, for --join-timeout in all.
  if (begin.attempt > 0) {
    options.retry_for =
        std::min<Duration>({options.retry_for, kRetryOfRestart, campaign.join_timeout});
  }
  options.unheard.resize(begin.hosts.size());
  for (const job::Unheard& unheard : begin.unheard) {
    const auto at = std::find(begin.hosts.begin(), begin.hosts.end(), unheard.host);
    options.unheard[static_cast<size_t>(at - begin.hosts.begin())] = unheard.boot_id;
    options.clear_at = std::max(options.clear_at, unheard.dead_at);
  }
  // A rankfile says itself where each rank is.
  if (options.plan.rankfile.empty()) {
    for (const uint32_t host : begin.seats) {
      const auto at = std::find(begin.hosts.begin(), begin.hosts.end(), host);
      const bool is_there = at != begin.hosts.end();
      options.seats.push_back(
          is_there ? std::optional(NodeId(static_cast<uint32_t>(at - begin.hosts.begin())))
                   : std::nullopt);
    }
  }
  if (options.plan.nodes) {
    options.plan.nodes = std::min(*options.plan.nodes, static_cast<uint32_t>(begin.hosts.size()));
  }
  return options;
}

job::JobOptions OptionsOf(const v1::JournalState& before, job::JobOptions asked, Duration age) {
  job::JobOptions options = std::move(asked);
  options.attempt = before.attempt().attempt();
  options.incarnation = before.attempt().incarnation();
  options.probe_token = os::RandomBytes(32);
  if (options.time_limit > Duration::zero()) {
    options.told_time_limit = options.time_limit;
    options.time_limit = std::max<Duration>(options.time_limit - age, std::chrono::milliseconds(1));
  }
  return options;
}

}  // namespace dtrain
