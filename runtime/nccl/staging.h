// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/base/communicator.h"
#include "runtime/nccl/handle.h"

namespace dtrain::runtime {

// Memory on the GPU where collectives meet whose buffers NCCL cannot use as they are, and the way
// there and back: for the host's through two pinned chunks, of which one is filled or emptied while
// the other travels. Everything goes over the communicator's stream. One thread at a time.
class Staging {
 public:
  // Room for one piece of a collective; the same on all ranks, whatever memory their GPUs have.
  static constexpr size_t kBytes = size_t{64} << 20;

  explicit Staging(std::shared_ptr<NcclHandle> handle) : handle_(std::move(handle)) {}
  // Call Free first where the driver may be called.
  ~Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // kBytes on the GPU. Its users come one after another, in the order of the stream.
  Result<char*> Room();
  // To the room; the source has been read on return if it is the host's.
  MaybeError Bring(char* room, const void* from, size_t bytes, Deadline deadline);
  // From the room, behind what the stream has; the bytes are there on return if it is the host's.
  MaybeError Fetch(void* to, const char* room, size_t bytes, Deadline deadline);

  void Free();

 private:
  struct Chunk {
    void* memory = nullptr;
    NcclHandle::Point busy;  // the copy from or to it
  };

  MaybeError Prepare();
  MaybeError Check(const char* what, int code);
  MaybeError Occupy(Chunk& chunk);

  const std::shared_ptr<NcclHandle> handle_;
  Chunk chunks_[2];
  abi::CuDevicePointer memory_ = 0;
};

// Where `pointer` points to. Pinned memory of the host counts as host memory, managed memory as
// that of every device. Fails for memory of another device than this one. Any thread, with whatever
// context.
Result<bool> OnDevice(const CudaApi& cuda, const Device& device, const void* pointer);

}  // namespace dtrain::runtime
