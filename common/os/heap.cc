// SPDX-License-Identifier: Apache-2.0
#include "common/os/heap.h"

#include <malloc.h>

namespace dtrain::os {

void KeepHeapSmall() { (void)mallopt(M_ARENA_MAX, 2); }

void TrimHeap() { (void)malloc_trim(0); }

}  // namespace dtrain::os
