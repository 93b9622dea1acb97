// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace dtrain::os {

// A write to a pipe that nobody reads, or past RLIMIT_FSIZE, fails with EPIPE or EFBIG; by default
// it ends the process. Programs that Spawn starts get the defaults back.
void FailWritesWithoutSignals();

// Those of `signals` that are not ignored. Whoever started us with one ignored (nohup, a shell's
// background job) meant it to stay so.
std::vector<int> NotIgnored(std::vector<int> signals);

}  // namespace dtrain::os
