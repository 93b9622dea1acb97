// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/cuda/memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "tests/support/fake_nccl/cuda/fake_cuda.h"

namespace fake_cuda {
namespace {

constexpr size_t kLargest = size_t{4} << 30;
constexpr size_t kPage = 4096;

struct Heap {
  std::mutex mutex;
  std::map<uintptr_t, Block> blocks;
  // By kind, device and room; the last one freed is the first one given out.
  std::map<std::tuple<MemoryKind, int, size_t>, std::vector<void*>> free;
};

Heap& TheHeap() {
  static auto* const heap = new Heap;
  return *heap;
}

void* Fresh(size_t room) {
  void* memory = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::memset(memory, 0xa5, room);
  return memory;
}

}  // namespace

std::optional<Block> FindBlock(const void* pointer, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(TheHeap().mutex);
  auto block = TheHeap().blocks.upper_bound(at);
  if (block == TheHeap().blocks.begin()) return std::nullopt;
  --block;
  if (at + bytes > block->first + block->second.bytes) return std::nullopt;
  return block->second;
}

bool OnDevice(const void* pointer, size_t bytes) {
  const auto block = FindBlock(pointer, bytes);
  return block && block->kind != MemoryKind::kPinned;
}

bool Pinned(const void* pointer, size_t bytes) {
  const auto block = FindBlock(pointer, bytes);
  return block && block->kind == MemoryKind::kPinned;
}

int AllocateBlock(Context& context, MemoryKind kind, size_t bytes, void** out) {
  if (bytes == 0) return kInvalidValue;
  if (bytes > kLargest) return kOutOfMemory;
  const size_t room = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(TheHeap().mutex);
  auto& free = TheHeap().free[{kind, context.device, room}];
  void* memory = nullptr;
  if (!free.empty()) {
    memory = free.back();
    free.pop_back();
  } else {
    memory = Fresh(room);
    if (memory == nullptr) return kOutOfMemory;
  }
  TheHeap().blocks[reinterpret_cast<uintptr_t>(memory)] = {bytes, room, context.device, kind};
  *out = memory;
  return kOk;
}

int FreeBlock(MemoryKind kind, void* memory) {
  const std::lock_guard lock(TheHeap().mutex);
  const auto block = TheHeap().blocks.find(reinterpret_cast<uintptr_t>(memory));
  if (block == TheHeap().blocks.end()) return kInvalidValue;
  const bool managed = kind == MemoryKind::kDevice && block->second.kind == MemoryKind::kManaged;
  if (block->second.kind != kind && !managed) return kInvalidValue;
  TheHeap().free[{block->second.kind, block->second.device, block->second.room}].push_back(memory);
  TheHeap().blocks.erase(block);
  return kOk;
}

int UnmapBlock(void* memory) {
  const std::lock_guard lock(TheHeap().mutex);
  const auto block = TheHeap().blocks.find(reinterpret_cast<uintptr_t>(memory));
  if (block == TheHeap().blocks.end() || block->second.kind != MemoryKind::kMapped) {
    return kInvalidValue;
  }
  // The addresses stay taken, so that whoever still uses them is found out.
  madvise(memory, block->second.room, MADV_DONTNEED);
  mprotect(memory, block->second.room, PROT_NONE);
  TheHeap().blocks.erase(block);
  return kOk;
}

}  // namespace fake_cuda

FAKE_EXPORT int fake_cuda_usable(const void* pointer, size_t bytes, int device) {
  const auto block = fake_cuda::FindBlock(pointer, bytes);
  if (!block || block->kind == fake_cuda::MemoryKind::kPinned) return block ? 1 : 0;
  return block->kind == fake_cuda::MemoryKind::kManaged || block->device == device ? 1 : 0;
}

FAKE_EXPORT void* fake_cuda_map(size_t bytes, int device) {
  using namespace fake_cuda;
  void* memory = nullptr;
  return AllocateBlock(ContextOf(device), MemoryKind::kMapped, bytes, &memory) == kOk ? memory
                                                                                      : nullptr;
}

FAKE_EXPORT int fake_cuda_unmap(void* memory) { return fake_cuda::UnmapBlock(memory); }

FAKE_EXPORT int fake_cuda_mapped(const void* pointer, size_t bytes) {
  const auto block = fake_cuda::FindBlock(pointer, bytes);
  return block && block->kind == fake_cuda::MemoryKind::kMapped ? 1 : 0;
}
