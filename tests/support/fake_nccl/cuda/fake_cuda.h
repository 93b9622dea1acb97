// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// What the fake NCCL needs of the fake driver beyond the real functions.
extern "C" {

// `launch` runs on the host, at once or at each launch of the graph that captured the kernel; `run`
// runs on the stream's thread; `release` runs when neither a stream nor a graph needs it.
struct fake_cuda_kernel {
  void (*launch)(void* argument);
  void (*run)(void* argument);
  void (*release)(void* argument);
  void* argument;
};

// A CUDA error code. A stream of another context is an error.
int fake_cuda_submit(void* stream, const fake_cuda_kernel* kernel);
int fake_cuda_capturing(void* stream);
// Whether [pointer, pointer + bytes) is memory that a kernel of GPU `device` may use.
int fake_cuda_usable(const void* pointer, size_t bytes, int device);
// A kernel of GPU `device` used memory that is not its own: spoils the canary, and the context.
void fake_cuda_fault(int device);
int fake_cuda_lost(int device);
// Waits until everything that the streams of GPU `device` have now is done.
void fake_cuda_drain(int device);
// Memory that can be taken away at once. NULL: none left.
void* fake_cuda_map(size_t bytes, int device);
int fake_cuda_unmap(void* memory);
int fake_cuda_mapped(const void* pointer, size_t bytes);
}
