// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "launcher/attempt_run.h"
#include "launcher/cli/options.h"
#include "launcher/handover.h"
#include "launcher/job/campaign_core.h"
#include "launcher/status/log_tails.h"

namespace dtrain {

// A launch whose workers run, as it is now: nothing may happen to it before its connections are
// cut.
struct PresentJob {
  const v1::Spec& spec;  // without what is known only once it is detached
  const cli::LaunchOptions& options;
  const LaunchClock& clock;
  const job::CampaignCore& campaign;
  const AttemptRun& attempt;
  std::vector<std::string> attempt_hosts;
  const status::LogTails& shown;
  Code* code = nullptr;  // null: none is staged
  bool may_restart = false;
};

// What its next launcher needs.
Handover::Job ToHandOver(const PresentJob& job, TimePoint now);

}  // namespace dtrain
