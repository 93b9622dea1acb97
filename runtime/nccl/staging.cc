// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/staging.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace dtrain::runtime {
namespace {

// Large enough that a copy's start costs nothing beside it, small enough to stay in the caches.
constexpr size_t kChunk = size_t{2} << 20;

constexpr char kWhat[] = "a copy between host and GPU";

abi::CuDevicePointer Number(const void* pointer) {
  return reinterpret_cast<abi::CuDevicePointer>(pointer);
}

}  // namespace

void Staging::Free() {
  const CudaApi& cuda = handle_->session()->libraries().cuda;
  for (Chunk& chunk : chunks_) {
    if (chunk.memory != nullptr) cuda.host_free(chunk.memory);
    chunk = {};
  }
  if (memory_ != 0) cuda.mem_free(memory_);
  memory_ = 0;
}

MaybeError Staging::Check(const char* what, int code) {
  if (code == abi::kCudaSuccess) return std::nullopt;
  const Session& session = *handle_->session();
  return handle_->session()->Fail(
      {DTRAIN_ERROR_DEVICE, std::string(what) + " failed: " + session.libraries().cuda.Text(code)});
}

MaybeError Staging::Prepare() {
  const CudaApi& cuda = handle_->session()->libraries().cuda;
  for (Chunk& chunk : chunks_) {
    if (chunk.memory != nullptr) continue;
    const int code = cuda.host_alloc(&chunk.memory, kChunk, abi::kCuHostPortable);
    if (MaybeError error = Check("allocating pinned memory", code)) return error;
  }
  return std::nullopt;
}

Result<char*> Staging::Room() {
  if (memory_ != 0) return reinterpret_cast<char*>(memory_);
  const CudaApi& cuda = handle_->session()->libraries().cuda;
  const int code = cuda.mem_alloc(&memory_, kBytes);
  if (code == abi::kCudaSuccess) return reinterpret_cast<char*>(memory_);
  memory_ = 0;
  return handle_->session()->Fail(
      {DTRAIN_ERROR_RESOURCES,
       "no room for " + std::to_string(kBytes >> 20) +
           " MiB on the GPU, to bring buffers of the host there: " + cuda.Text(code)});
}

MaybeError Staging::Occupy(Chunk& chunk) {
  auto point = handle_->Record(handle_->stream());
  if (!point.ok()) return handle_->session()->Fail(point.error());
  chunk.busy = std::move(*point);
  return std::nullopt;
}

MaybeError Staging::Bring(char* room, const void* from, size_t bytes, Deadline deadline) {
  const Session& session = *handle_->session();
  const CudaApi& cuda = session.libraries().cuda;
  const abi::CuStream stream = handle_->stream();
  const auto on_device = OnDevice(cuda, *session.device(), from);
  if (!on_device.ok()) return handle_->session()->Fail(on_device.error());
  if (*on_device) {
    return Check("copying on the GPU",
                 cuda.copy_on_device(Number(room), Number(from), bytes, stream));
  }
  if (MaybeError error = Prepare()) return error;
  const char* const source = static_cast<const char*>(from);
  for (size_t at = 0, i = 0; at < bytes; at += kChunk, ++i) {
    Chunk& chunk = chunks_[i % 2];
    const size_t n = std::min(kChunk, bytes - at);
    if (MaybeError error = handle_->Await(chunk.busy, kWhat, deadline)) return error;
    std::memcpy(chunk.memory, source + at, n);
    const int code = cuda.copy_to_device(Number(room + at), chunk.memory, n, stream);
    if (MaybeError error = Check("copying to the GPU", code)) return error;
    if (MaybeError error = Occupy(chunk)) return error;
  }
  return std::nullopt;
}

MaybeError Staging::Fetch(void* to, const char* room, size_t bytes, Deadline deadline) {
  const Session& session = *handle_->session();
  const CudaApi& cuda = session.libraries().cuda;
  const abi::CuStream stream = handle_->stream();
  const auto on_device = OnDevice(cuda, *session.device(), to);
  if (!on_device.ok()) return handle_->session()->Fail(on_device.error());
  if (*on_device) {
    return Check("copying on the GPU",
                 cuda.copy_on_device(Number(to), Number(room), bytes, stream));
  }
  if (MaybeError error = Prepare()) return error;
  char* const target = static_cast<char*>(to);
  const size_t chunks = (bytes + kChunk - 1) / kChunk;
  for (size_t i = 0; i <= chunks; ++i) {
    if (i < chunks) {
      Chunk& chunk = chunks_[i % 2];
      // It may still be on its way to the GPU for what came before.
      if (MaybeError error = handle_->Await(chunk.busy, kWhat, deadline)) return error;
      const size_t n = std::min(kChunk, bytes - i * kChunk);
      const int code = cuda.copy_to_host(chunk.memory, Number(room + i * kChunk), n, stream);
      if (MaybeError error = Check("copying from the GPU", code)) return error;
      if (MaybeError error = Occupy(chunk)) return error;
    }
    if (i > 0) {
      const Chunk& chunk = chunks_[(i - 1) % 2];
      if (MaybeError error = handle_->Await(chunk.busy, kWhat, deadline)) return error;
      const size_t at = (i - 1) * kChunk;
      std::memcpy(target + at, chunk.memory, std::min(kChunk, bytes - at));
    }
  }
  return std::nullopt;
}

Result<bool> OnDevice(const CudaApi& cuda, const Device& device, const void* pointer) {
  // The driver may know nothing of memory where no context is current.
  const Device::Scope scope(device);
  const auto number = Number(pointer);
  unsigned type = 0, managed = 0;
  int owner = -1;
  int code = cuda.pointer_attribute(&type, abi::kCuPointerMemoryType, number);
  // Memory that CUDA has never heard of.
  if (code == abi::kCudaInvalidValue) return false;
  if (code == abi::kCudaSuccess) {
    code = cuda.pointer_attribute(&managed, abi::kCuPointerIsManaged, number);
  }
  const bool owned = managed == 0 && type == abi::kCuMemoryDevice;
  if (code == abi::kCudaSuccess && owned) {
    code = cuda.pointer_attribute(&owner, abi::kCuPointerDeviceOrdinal, number);
  }
  if (code != abi::kCudaSuccess) {
    return Error{DTRAIN_ERROR_DEVICE, "asking where a buffer is failed: " + cuda.Text(code)};
  }
  if (!owned || owner == device.ordinal()) return managed != 0 || owned;
  return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
               "a buffer is memory of GPU " + std::to_string(owner) +
                   ", but this process takes part in the job with GPU " +
                   std::to_string(device.ordinal()) +
                   ": call cudaSetDevice before memory is made, or "
                   "before dtrain_init, which takes the GPU that is current"};
}

}  // namespace dtrain::runtime
