// SPDX-License-Identifier: Apache-2.0
// GPU memory for the program.
#include <algorithm>
#include <cstdint>

#include "runtime/nccl/nccl_communicator.h"

namespace dtrain::runtime {
namespace {

constexpr size_t kAlignment = 4096;

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Result<void*> NcclCommunicator::Allocate(size_t bytes, bool device) {
  if (!device) return nullptr;
  const Device::Scope scope(*device_);
  const NcclApi& nccl = libraries_.nccl;
  const CudaApi& cuda = libraries_.cuda;
  const size_t whole = RoundUp(std::max<size_t>(bytes, 1));
  if (whole < bytes) return Error{DTRAIN_ERROR_RESOURCES, "no GPU has so much memory"};
  Block block;
  void* memory = nullptr;
  if (nccl.mem_alloc != nullptr && nccl.mem_alloc(&block.base, whole) == abi::kNcclSuccess) {
    block.by_nccl = true;
    memory = block.base;
  } else {
    abi::CuDevicePointer base = 0;
    const int code = cuda.mem_alloc(&base, whole + kAlignment);
    if (code != abi::kCudaSuccess) {
      return Error{DTRAIN_ERROR_RESOURCES,
                   std::to_string(bytes) + " bytes of GPU memory: " + cuda.Text(code)};
    }
    block.base = reinterpret_cast<void*>(base);
    memory = reinterpret_cast<void*>(RoundUp(base));
  }
  const int code = cuda.memset8(reinterpret_cast<uintptr_t>(memory), 0, whole);
  if (code != abi::kCudaSuccess) {
    Release(block);
    return Error{DTRAIN_ERROR_DEVICE, "clearing GPU memory failed: " + cuda.Text(code)};
  }
  // Without registration it is only slower.
  if (block.by_nccl) {
    const MaybeError ignored = handle_->Try([&](abi::NcclComm* comm) {
      return nccl.register_buffer(comm, memory, whole, &block.registration);
    });
    if (ignored) block.registration = nullptr;
  }
  blocks_[memory] = block;
  return memory;
}

MaybeError NcclCommunicator::Free(void* memory) {
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "this is not memory of dtrain_alloc_device"};
  }
  const Device::Scope scope(*device_);
  Block block = found->second;
  blocks_.erase(found);
  Deregister(block);
  return Release(block);
}

void NcclCommunicator::Deregister(Block& block) {
  if (block.registration == nullptr) return;
  void* registration = block.registration;
  block.registration = nullptr;
  handle_->Try(
      [&](abi::NcclComm* comm) { return libraries_.nccl.deregister_buffer(comm, registration); });
}

MaybeError NcclCommunicator::Release(const Block& block) {
  if (block.by_nccl) {
    const int code = libraries_.nccl.mem_free(block.base);
    if (code == abi::kNcclSuccess) return std::nullopt;
    return Error{DTRAIN_ERROR_DEVICE,
                 "ncclMemFree: " + Printable(libraries_.nccl.error_string(code))};
  }
  const int code = libraries_.cuda.mem_free(reinterpret_cast<uintptr_t>(block.base));
  if (code == abi::kCudaSuccess) return std::nullopt;
  return Error{DTRAIN_ERROR_DEVICE, "freeing GPU memory failed: " + libraries_.cuda.Text(code)};
}

}  // namespace dtrain::runtime
