// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::os {

// For a process that lives long and does little: few arenas, so that what one thread has freed
// serves the next. Before the first thread.
void KeepHeapSmall();

// For a process that passes much on: up to 4 MiB of what it has freed serve the next buffers.
// Otherwise glibc returns a freed buffer to the system, and the next one of that size costs a page
// fault for each page. Before the first thread.
void ReuseBuffers();

// Gives pages that hold nothing any more back to the system. Takes about a millisecond.
void TrimHeap();

}  // namespace dtrain::os
