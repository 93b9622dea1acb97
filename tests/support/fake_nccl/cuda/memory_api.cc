// SPDX-License-Identifier: Apache-2.0
// The driver's functions for memory and copies.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/fake_nccl/cuda/capture.h"
#include "tests/support/fake_nccl/cuda/memory.h"
#include "tests/support/fake_nccl/cuda/stream.h"

namespace {

using namespace fake_cuda;

using Address = unsigned long long;

template <typename T>
T* At(Address number) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(number));
}

int Allocate(MemoryKind kind, size_t bytes, void** out) {
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  if (const int code = Forbidden()) return code;
  return AllocateBlock(*context, kind, bytes, out);
}

// Waits for everything on the GPU, as the real one.
int Free(MemoryKind kind, void* memory) {
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  if (const int code = Forbidden()) return code;
  TheDriver().freeing.fetch_add(1);
  Drain(*context);
  TheDriver().freeing.fetch_sub(1);
  return FreeBlock(kind, memory);
}

int FindOwn(void* handle, Context*& context, StreamPointer& stream) {
  if (const int code = Enter(context)) return code;
  stream = FindStream(*context, handle);
  return stream == nullptr || &stream->context != context ? kInvalidHandle : kOk;
}

// At the time it runs: what was there at the call may be gone.
void CopyOnDevice(Context& context, void* to, const void* from, size_t bytes, const void* device) {
  if (!OnDevice(device, bytes)) return Fault(context);
  std::memcpy(to, from, bytes);
}

int Memset(Address memory, unsigned char value, size_t bytes, void* handle) {
  Context* context = nullptr;
  StreamPointer stream;
  if (const int code = FindOwn(handle, context, stream)) return code;
  void* to = At<void>(memory);
  if (!OnDevice(to, bytes)) return kInvalidValue;
  return Submit(*stream, {nullptr, [context, to, value, bytes] {
                            if (!OnDevice(to, bytes)) return Fault(*context);
                            std::memset(to, value, bytes);
                          }});
}

}  // namespace

FAKE_EXPORT int cuMemAlloc_v2(Address* out, size_t bytes) {
  void* memory = nullptr;
  const int code = Allocate(MemoryKind::kDevice, bytes, &memory);
  *out = reinterpret_cast<uintptr_t>(memory);
  return code;
}

FAKE_EXPORT int cuMemAllocManaged(Address* out, size_t bytes, unsigned) {
  void* memory = nullptr;
  const int code = Allocate(MemoryKind::kManaged, bytes, &memory);
  *out = reinterpret_cast<uintptr_t>(memory);
  return code;
}

FAKE_EXPORT int cuMemFree_v2(Address memory) { return Free(MemoryKind::kDevice, At<void>(memory)); }

FAKE_EXPORT int cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  return Allocate(MemoryKind::kPinned, bytes, out);
}

FAKE_EXPORT int cuMemFreeHost(void* memory) { return Free(MemoryKind::kPinned, memory); }

// In the legacy stream; returns before it is done.
FAKE_EXPORT int cuMemsetD8_v2(Address memory, unsigned char value, size_t bytes) {
  return Memset(memory, value, bytes, nullptr);
}

FAKE_EXPORT int cuMemsetD8Async(Address memory, unsigned char value, size_t bytes, void* stream) {
  return Memset(memory, value, bytes, stream);
}

// Pinned memory is read when the copy runs, other memory before the call returns.
FAKE_EXPORT int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* handle) {
  Context* context = nullptr;
  StreamPointer stream;
  if (const int code = FindOwn(handle, context, stream)) return code;
  void* device = At<void>(to);
  if (!OnDevice(device, bytes)) return kInvalidValue;
  if (bytes == 0) return kOk;
  std::shared_ptr<std::vector<char>> staged;
  if (!FindBlock(from, bytes)) {
    const auto* begin = static_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    from = staged->data();
  }
  return Submit(*stream, {nullptr, [context, device, from, bytes, staged] {
                            CopyOnDevice(*context, device, from, bytes, device);
                          }});
}

// To memory that is not pinned it is done on return.
FAKE_EXPORT int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* handle) {
  Context* context = nullptr;
  StreamPointer stream;
  if (const int code = FindOwn(handle, context, stream)) return code;
  const void* device = At<void>(from);
  if (!OnDevice(device, bytes)) return kInvalidValue;
  if (bytes == 0) return kOk;
  MarkPointer mark;
  const int code = Submit(*stream,
                          {nullptr, [context, device, to,
                                     bytes] { CopyOnDevice(*context, to, device, bytes, device); }},
                          &mark);
  if (code != kOk) return code;
  if (mark != nullptr && !FindBlock(to, bytes)) mark->Await();
  return context->sticky.load();
}

FAKE_EXPORT int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* handle) {
  Context* context = nullptr;
  StreamPointer stream;
  if (const int code = FindOwn(handle, context, stream)) return code;
  void* target = At<void>(to);
  const void* source = At<void>(from);
  if (!OnDevice(source, bytes) || !OnDevice(target, bytes)) return kInvalidValue;
  if (bytes == 0) return kOk;
  return Submit(*stream, {nullptr, [context, target, source, bytes] {
                            if (!OnDevice(source, bytes)) return Fault(*context);
                            CopyOnDevice(*context, target, source, bytes, target);
                          }});
}

FAKE_EXPORT int cuPointerGetAttribute(void* value, int attribute, Address pointer) {
  Context* context = nullptr;
  if (const int code = Enter(context)) return code;
  const auto block = FindBlock(At<void>(pointer), 1);
  if (!block) return kInvalidValue;
  auto* number = static_cast<unsigned*>(value);
  switch (attribute) {
    case 2:
      *number = block->kind == MemoryKind::kPinned ? 1 : 2;
      return kOk;
    case 8:
      *number = block->kind == MemoryKind::kManaged ? 1 : 0;
      return kOk;
    case 9:
      *number = static_cast<unsigned>(block->device);
      return kOk;
    default:
      return kInvalidValue;
  }
}
