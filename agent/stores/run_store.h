// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::stores {

enum class Protocol {
  kHorovod,   // what horovodrun serves, over HTTP
  kTcpStore,  // PyTorch's
};

// A key-value server of a job's ranks, until its shepherd closes `channel` (frames: a Meeting in,
// for an elastic job ElasticDowns after it, StoreEvents out). Ranks come to `listener`. Returns the
// process's exit code.
int RunStore(Protocol protocol, int channel, int listener);

}  // namespace dtrain::stores
