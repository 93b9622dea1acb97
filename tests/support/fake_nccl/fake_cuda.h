// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the fake NCCL needs of the fake driver beyond the real functions.
extern "C" {
// Runs `work(argument)` on the stream's thread, after what is there.
void fake_cuda_enqueue(void* stream, void (*work)(void*), void* argument);
// Whether [pointer, pointer + bytes) is GPU memory.
int fake_cuda_is_device(const void* pointer, unsigned long bytes);
}
