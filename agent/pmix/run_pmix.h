// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::pmix {

// The PMIx server of one job on one node, until its shepherd closes `channel` (frames: PmixRequest
// in, PmixEvent out). Ranks connect to `listener`, and until one has, nothing is loaded. Returns
// the process's exit code.
int RunPmix(int channel, int listener);

}  // namespace dtrain::pmix
