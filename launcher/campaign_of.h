// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "launcher/cli/options.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/job/campaign_core.h"
#include "launcher/report/facts.h"

// What CampaignCore needs to know of a launch and of how its attempts end; it knows hosts by their
// index. Pure.
namespace dtrain {

bool IsElastic(const cli::LaunchOptions& options);
bool MayRestart(const cli::LaunchOptions& options);

// The hosts that attempts may use. Spares come after those that the plan is for.
hosts::HostList HostsOf(const cli::LaunchOptions& options);
job::CampaignOptions CampaignOf(const cli::LaunchOptions& options, const hosts::HostList& hosts);

// None: it was not in the list when the launch began, as happens with --discover.
std::optional<uint32_t> IndexOf(const hosts::HostList& hosts, const std::string& name);
hosts::HostList ListOf(const hosts::HostList& hosts, const std::vector<uint32_t>& indices);

// Those of `hosts` that have joined the attempt, ascending.
std::vector<uint32_t> JoinedOf(const report::JobFacts& attempt, const hosts::HostList& hosts);

// How an attempt on some of `hosts` ended.
// Those with ranks, by node rank.
std::vector<uint32_t> SeatsOf(const report::JobFacts& attempt, const hosts::HostList& hosts);
job::AttemptEnded EndOf(const report::JobFacts& attempt, TimePoint dead_at,
                        const std::vector<std::pair<NodeId, TimePoint>>& unheard,
                        const hosts::HostList& hosts);

}  // namespace dtrain
