// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tests/support/fake_nccl/cuda/driver.h"

// Memory that CUDA knows about. A freed block goes to the next request of its size, with what is
// in it.
namespace fake_cuda {

enum class MemoryKind { kDevice, kPinned, kManaged, kMapped };

struct Block {
  size_t bytes = 0;  // as asked for
  size_t room = 0;
  int device = 0;
  MemoryKind kind = MemoryKind::kDevice;
};

// The block that holds all of [pointer, pointer + bytes).
std::optional<Block> FindBlock(const void* pointer, size_t bytes);
// Whether copies may use it as memory of a GPU.
bool OnDevice(const void* pointer, size_t bytes);
bool Pinned(const void* pointer, size_t bytes);

int AllocateBlock(Context& context, MemoryKind kind, size_t bytes, void** out);
// kInvalidValue: no block of the kind begins there.
int FreeBlock(MemoryKind kind, void* memory);
// Takes the memory away without waiting for its users.
int UnmapBlock(void* memory);

}  // namespace fake_cuda
