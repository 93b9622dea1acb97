// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "launcher/cli/options.h"
#include "launcher/elastic/elastic_core.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain {

// With how many ranks and hosts an elastic job may begin and go on, as its flags say it. `hosts`:
// all that it may ever use.
elastic::ElasticOptions LimitsOf(const cli::LaunchOptions& options, const hosts::HostList& hosts);

// For how long a host is not used after a failure there; none: for ever.
std::optional<elastic::CoolDown> CoolDownOf(const cli::ElasticOptions& options);

}  // namespace dtrain
