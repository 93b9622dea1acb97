// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/staging.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace dtrain::runtime {
namespace {

// Large enough that a copy's start costs nothing beside it, small enough to stay in the caches.
constexpr size_t kChunk = size_t{2} << 20;

abi::CuDevicePointer Number(const char* device) {
  return reinterpret_cast<abi::CuDevicePointer>(device);
}

}  // namespace

Staging::~Staging() {
  for (const Chunk& chunk : chunks_) {
    if (chunk.free != nullptr) cuda_.event_destroy(chunk.free);
    if (chunk.memory != nullptr) cuda_.host_free(chunk.memory);
  }
  if (last_user_ != nullptr) cuda_.event_destroy(last_user_);
  if (memory_ != 0) cuda_.mem_free(memory_);
}

MaybeError Staging::Check(const char* what, int code) {
  if (code == abi::kCudaSuccess) return std::nullopt;
  return handle_.Fail({DTRAIN_ERROR_DEVICE, std::string(what) + " failed: " + cuda_.Text(code)});
}

MaybeError Staging::Prepare() {
  for (Chunk& chunk : chunks_) {
    if (chunk.memory == nullptr) {
      const int code = cuda_.host_alloc(&chunk.memory, kChunk, abi::kCuHostPortable);
      if (MaybeError error = Check("allocating pinned memory", code)) return error;
    }
    if (chunk.free == nullptr) {
      const int code = cuda_.event_create(&chunk.free, abi::kCuEventDisableTiming);
      if (MaybeError error = Check("making an event", code)) return error;
    }
  }
  return std::nullopt;
}

Result<char*> Staging::Reserve(size_t bytes, abi::CuStream stream) {
  if (last_user_ == nullptr) {
    const int code = cuda_.event_create(&last_user_, abi::kCuEventDisableTiming);
    if (MaybeError error = Check("making an event", code)) return *error;
  }
  if (bytes > size_) {
    // Freeing waits for the memory's users.
    if (memory_ != 0) cuda_.mem_free(memory_);
    memory_ = 0;
    size_ = 0;
    const int code = cuda_.mem_alloc(&memory_, bytes);
    if (code != abi::kCudaSuccess) {
      memory_ = 0;
      return handle_.Fail(
          {DTRAIN_ERROR_RESOURCES,
           "no room for " + std::to_string(bytes) +
               " bytes on the GPU, to bring buffers of the host there: " + cuda_.Text(code)});
    }
    size_ = bytes;
  }
  if (MaybeError error = Check("waiting in a stream", cuda_.stream_wait(stream, last_user_, 0))) {
    return *error;
  }
  return reinterpret_cast<char*>(memory_);
}

MaybeError Staging::Occupy(abi::CuStream stream) {
  return Check("recording an event", cuda_.event_record(last_user_, stream));
}

MaybeError Staging::ToDevice(char* device, const void* host, size_t bytes, abi::CuStream stream,
                             Deadline deadline) {
  if (MaybeError error = Prepare()) return error;
  const char* from = static_cast<const char*>(host);
  for (size_t at = 0, i = 0; at < bytes; at += kChunk, ++i) {
    const Chunk& chunk = chunks_[i % 2];
    const size_t n = std::min(kChunk, bytes - at);
    if (MaybeError error = handle_.Wait(chunk.free, deadline)) return error;
    std::memcpy(chunk.memory, from + at, n);
    int code = cuda_.copy_to_device(Number(device + at), chunk.memory, n, stream);
    if (code == abi::kCudaSuccess) code = cuda_.event_record(chunk.free, stream);
    if (MaybeError error = Check("copying to the GPU", code)) return error;
  }
  return std::nullopt;
}

MaybeError Staging::ToHost(void* host, const char* device, size_t bytes, abi::CuStream stream,
                           Deadline deadline) {
  if (MaybeError error = Prepare()) return error;
  char* to = static_cast<char*>(host);
  const size_t chunks = (bytes + kChunk - 1) / kChunk;
  for (size_t i = 0; i <= chunks; ++i) {
    if (i < chunks) {
      const Chunk& chunk = chunks_[i % 2];
      // It may still be on its way to the GPU for what came before.
      if (MaybeError error = handle_.Wait(chunk.free, deadline)) return error;
      const size_t n = std::min(kChunk, bytes - i * kChunk);
      int code = cuda_.copy_to_host(chunk.memory, Number(device + i * kChunk), n, stream);
      if (code == abi::kCudaSuccess) code = cuda_.event_record(chunk.free, stream);
      if (MaybeError error = Check("copying from the GPU", code)) return error;
    }
    if (i > 0) {
      const Chunk& chunk = chunks_[(i - 1) % 2];
      if (MaybeError error = handle_.Wait(chunk.free, deadline)) return error;
      const size_t at = (i - 1) * kChunk;
      std::memcpy(to + at, chunk.memory, std::min(kChunk, bytes - at));
    }
  }
  return std::nullopt;
}

bool OnDevice(const CudaApi& cuda, const void* pointer) {
  const auto number = reinterpret_cast<abi::CuDevicePointer>(pointer);
  unsigned type = 0;
  // Memory that CUDA has never heard of is an error here, and is the host's.
  if (cuda.pointer_attribute(&type, abi::kCuPointerMemoryType, number) != abi::kCudaSuccess) {
    return false;
  }
  if (type == abi::kCuMemoryDevice) return true;
  unsigned managed = 0;
  return cuda.pointer_attribute(&managed, abi::kCuPointerIsManaged, number) == abi::kCudaSuccess &&
         managed != 0;
}

}  // namespace dtrain::runtime
