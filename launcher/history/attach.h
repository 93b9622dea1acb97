// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launcher/detached/job_folder.h"
#include "launcher/history/options.h"
#include "launcher/status/look_watch.h"

namespace dtrain::history {

// `dtrain attach`: shows a job's output until it has ended, then its report. Returns the job's exit
// code; 0 when Ctrl-C left it; 141 when our stdout was closed. Whatever becomes of us, the job goes
// on. `watch`: of a folder above the job's.
int Attach(const detached::JobFolder& job, const Options& options, status::LookWatch& watch);

}  // namespace dtrain::history
