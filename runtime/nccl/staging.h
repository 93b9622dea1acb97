// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/base/communicator.h"
#include "runtime/nccl/handle.h"

namespace dtrain::runtime {

// Memory on the GPU for buffers that are on the host, and the way there and back through two
// pinned chunks: while one is filled or emptied, the other one travels. Used by one thread at a
// time, with the device's context current.
class Staging {
 public:
  Staging(const CudaApi& cuda, NcclHandle& handle) : cuda_(cuda), handle_(handle) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // At least `bytes` on the GPU, until the next Reserve. `stream` waits for its last user.
  Result<char*> Reserve(size_t bytes, abi::CuStream stream);
  // The work that `stream` has now is the memory's last user.
  MaybeError Occupy(abi::CuStream stream);

  // Enqueues on `stream` what brings `bytes` to the GPU; the host memory has been read on return.
  MaybeError ToDevice(char* device, const void* host, size_t bytes, abi::CuStream stream,
                      Deadline deadline);
  // After the work that `stream` has; the bytes are there on return.
  MaybeError ToHost(void* host, const char* device, size_t bytes, abi::CuStream stream,
                    Deadline deadline);

 private:
  struct Chunk {
    void* memory = nullptr;
    abi::CuEvent free = nullptr;  // the copy from or to it is done
  };

  MaybeError Prepare();
  MaybeError Check(const char* what, int code);

  const CudaApi& cuda_;
  NcclHandle& handle_;
  Chunk chunks_[2];
  abi::CuDevicePointer memory_ = 0;
  size_t size_ = 0;
  abi::CuEvent last_user_ = nullptr;
};

// Where `pointer` points to. Pinned memory of the host counts as host memory.
bool OnDevice(const CudaApi& cuda, const void* pointer);

}  // namespace dtrain::runtime
