// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/job/campaign_core.h"

// What a job's journal says of its attempts, for the CampaignCore of the next launcher. `unix_now`:
// the wall clock at `now`, in nanoseconds. Pure.
namespace dtrain::job {

// Of an attempt that has ended, without the times.
v1::RestartDecided RestartOf(const CampaignCore& campaign, const AttemptRecord& ended);

// What it must know of the attempts before, of a job with these hosts.
CampaignPast PastOf(const v1::JournalState& state, const hosts::HostList& hosts, TimePoint now,
                    int64_t unix_now);

// The other way round, while an attempt runs: what a journal would say by now, without that
// attempt's own hosts and plan.
v1::JournalState StateOf(const CampaignCore& campaign, TimePoint now, int64_t unix_now);

// Who has asked for the end, as for EndedBy.
std::string StopFrom(const v1::StopAsked& stop);

}  // namespace dtrain::job
