// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/fake_nccl/nccl/world.h"

// How the ranks of a new communicator find each other.
namespace fake_nccl {

struct UniqueId {
  char bytes[128];
};

// Starts a thread that listens where the id says, and ends when all ranks have asked it for the
// memory file. A result code.
int MakeRoot(UniqueId& id);
// Asks the root. A result code; kInProgress: `stop` was sooner.
int AskRoot(const UniqueId& id, int rank, int size, const Waiter& stop,
            std::shared_ptr<World>& world);

}  // namespace fake_nccl
