// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::stores {

// The key-value server of a job's ranks, until its shepherd closes `channel` (frames: a Meeting in,
// StoreEvents out). Ranks come to `listener`. Returns the process's exit code.
int RunStore(int channel, int listener);

}  // namespace dtrain::stores
