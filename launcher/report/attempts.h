// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/job/campaign_core.h"
#include "launcher/report/facts.h"

// The attempts of a launch that may restart its workers, for people. Pure.
namespace dtrain::report {

// Why an attempt ended, on one line and without dtrain's name: "rank 3 on node2 exited with code
// 1", or the first line of what its verdict says. Valid after Finish.
std::string CauseLine(const JobFacts& facts);

// "attempt 0, ran 3.2 s: rank 3 on node2 exited with code 1", a line for each that has ended and
// a newline behind each; of very many the first and the last.
std::string AttemptLines(const std::vector<job::AttemptRecord>& ended);

}  // namespace dtrain::report
