// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::os {

// For a process that lives long and does little: few arenas, so that what one thread has freed
// serves the next. Before the first thread.
void KeepHeapSmall();

// For a process that passes much on: what it has freed, up to 4 MiB, serves the next buffer. Given
// back and taken anew, half of the pages of all output were faults. Before the first thread.
void ReuseBuffers();

// Gives pages that hold nothing any more back to the system. Takes about a millisecond.
void TrimHeap();

}  // namespace dtrain::os
