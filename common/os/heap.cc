// SPDX-License-Identifier: Apache-2.0
#include "common/os/heap.h"

#include <malloc.h>

namespace dtrain::os {

void KeepHeapSmall() { (void)mallopt(M_ARENA_MAX, 2); }

void ReuseBuffers() {
  constexpr int kLargest = 2 << 20;
  constexpr int kKept = 4 << 20;
  (void)mallopt(M_MMAP_THRESHOLD, kLargest);
  (void)mallopt(M_TRIM_THRESHOLD, kKept);
}

void TrimHeap() { (void)malloc_trim(0); }

}  // namespace dtrain::os
