// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launcher/detached/job_folder.h"
#include "launcher/output/options.h"

namespace dtrain::history {

// How a job's own launch would show its output, as far as its words can be read again; without
// files, and without times: those of now would be wrong.
output::Options OutputOptionsOf(const detached::JobFolder& job);

}  // namespace dtrain::history
