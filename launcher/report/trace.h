// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/base/clock.h"
#include "launcher/job/job_core.h"
#include "launcher/report/timeline.h"

namespace dtrain::report {

// What a timeline shows of an event, before the job has heard of it.
void Trace(Timeline& timeline, const job::JobCore& core, const job::Event& event, TimePoint now);
// All nodes have come: those that came early have waited.
void TraceMeeting(Timeline& timeline, const job::JobCore& core, TimePoint now);

}  // namespace dtrain::report
