// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/base/clock.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/job/campaign_core.h"
#include "launcher/job/job_core.h"

// The options of one attempt of a launch whose own are `asked`.
namespace dtrain {

// Of a new attempt, with secrets of its own.
job::JobOptions OptionsOf(const job::BeginAttempt& begin, job::JobOptions asked,
                          const job::CampaignOptions& campaign);
// Of one that a launcher before us began, as the journal has it. `age`: of the job.
job::JobOptions OptionsOf(const v1::JournalState& before, job::JobOptions asked, Duration age);

}  // namespace dtrain
