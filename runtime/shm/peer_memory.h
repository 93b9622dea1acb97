// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/shm/local_group.h"
#include "runtime/shm/memory.h"

namespace dtrain::runtime {

// The memory of the other ranks of this node: through their arenas directly, elsewhere through the
// kernel (process_vm_readv), which permits it between processes of one user unless a security
// module (Yama) or a container forbids it. One thread at a time.
class PeerMemory {
 public:
  // `arenas` by index; empty ones for ranks without.
  PeerMemory(const LocalGroup& group, std::vector<SharedMemory> arenas)
      : group_(group), arenas_(std::move(arenas)) {}

  // Where this process sees `offset` of that rank's arena; nullptr for kElsewhere.
  char* Direct(int index, int64_t offset) const;

  // Copies from `address` in that rank's process.
  MaybeError Read(int index, void* to, uint64_t address, size_t bytes) const;

 private:
  const LocalGroup& group_;
  const std::vector<SharedMemory> arenas_;
};

}  // namespace dtrain::runtime
