// SPDX-License-Identifier: Apache-2.0
// Memory of the GPU: plain, and such as NCCL may register.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "runtime/nccl/nccl_communicator.h"

namespace dtrain::runtime {
namespace {

using std::chrono::steady_clock;

constexpr size_t kAlignment = 4096;

}  // namespace

// The plain kind by default: NCCL's own is mapped by all GPUs of the machine, in pieces of 2 MiB,
// and pays only where it is registered.
Result<void*> NcclCommunicator::Allocate(size_t bytes, bool registrable) {
  if (MaybeError error = session_->broken()) return *error;
  if (bytes > SIZE_MAX / 2) return Error{DTRAIN_ERROR_RESOURCES, "no GPU has so much memory"};
  const size_t whole = bytes + kAlignment;
  auto block = TakeBlock(whole, registrable && session_->libraries().nccl.registers());
  if (!block.ok()) {
    return Error{block.error().code,
                 std::to_string(bytes) + " bytes of GPU memory: " + block.error().message};
  }
  block->bytes = bytes;
  block->registrable = registrable;
  if (MaybeError error = Clear(*block, whole)) {
    if (!session_->broken()) static_cast<void>(GiveBack(*block));
    return *error;
  }
  void* const pointer =
      reinterpret_cast<void*>((block->base + kAlignment - 1) / kAlignment * kAlignment);
  blocks_[pointer] = *block;
  return pointer;
}

Result<NcclCommunicator::Block> NcclCommunicator::TakeBlock(size_t bytes, bool of_nccl) {
  Block block;
  block.of_nccl = of_nccl;
  if (!of_nccl) {
    const Device::Scope scope(*session_->device());
    const CudaApi& cuda = session_->libraries().cuda;
    const int code = cuda.mem_alloc(&block.base, bytes);
    if (code == abi::kCudaSuccess) return block;
    return Error{DTRAIN_ERROR_RESOURCES, cuda.Text(code)};
  }
  const auto place = std::make_shared<void*>(nullptr);
  const auto take = [place, bytes, &nccl = session_->libraries().nccl] {
    return nccl.mem_alloc(place.get(), bytes);
  };
  if (MaybeError error =
          session_->Try("ncclMemAlloc", take, steady_clock::now() + options_.init_timeout,
                        "ncclMemAlloc did not come back in time")) {
    return Error{session_->broken() ? error->code : DTRAIN_ERROR_RESOURCES, error->message};
  }
  block.base = reinterpret_cast<abi::CuDevicePointer>(*place);
  return block;
}

MaybeError NcclCommunicator::Clear(const Block& block, size_t bytes) {
  const Device::Scope scope(*session_->device());
  const CudaApi& cuda = session_->libraries().cuda;
  const int code = cuda.memset8(block.base, 0, bytes, handle_->stream());
  if (code != abi::kCudaSuccess) {
    return Error{DTRAIN_ERROR_DEVICE, "clearing GPU memory failed: " + cuda.Text(code)};
  }
  auto cleared = handle_->Record(handle_->stream());
  if (!cleared.ok()) return session_->Fail(cleared.error());
  return handle_->Await(*cleared, "clearing GPU memory",
                        steady_clock::now() + options_.init_timeout);
}

MaybeError NcclCommunicator::Free(void* memory) {
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "this is not memory of dtrain_alloc_device"};
  }
  const Block block = found->second;
  blocks_.erase(found);
  return GiveBack(block);
}

// The driver waits for the whole GPU before it frees, and NCCL does not, which takes the memory
// away at once: on the thread that may be left behind.
MaybeError NcclCommunicator::GiveBack(const Block& block) {
  const auto code = std::make_shared<int>(abi::kCudaSuccess);
  const auto free = [code, block, &cuda = session_->libraries().cuda,
                     &nccl = session_->libraries().nccl]() -> int {
    *code = block.of_nccl ? cuda.context_synchronize() : cuda.mem_free(block.base);
    if (*code != abi::kCudaSuccess || !block.of_nccl) return abi::kNcclSuccess;
    return nccl.mem_free(reinterpret_cast<void*>(block.base));
  };
  if (MaybeError error = session_->Try(block.of_nccl ? "ncclMemFree" : "cuMemFree", free,
                                       steady_clock::now() + options_.init_timeout,
                                       "freeing memory of the GPU did not end in time")) {
    return error;
  }
  if (*code == abi::kCudaSuccess) return std::nullopt;
  return Error{DTRAIN_ERROR_DEVICE,
               "freeing GPU memory failed: " + session_->libraries().cuda.Text(*code)};
}

// After the communicator's end. What NCCL had registered when it was aborted may still be in use by
// other ranks' GPUs.
void NcclCommunicator::GiveBackAll() {
  const Device::Scope scope(*session_->device());
  size_t left = 0;
  for (const auto& [memory, block] : std::exchange(blocks_, {})) {
    if (!block.of_nccl) {
      session_->libraries().cuda.mem_free(block.base);
    } else if (session_->broken() || GiveBack(block)) {
      left += block.bytes;
    }
  }
  if (left == 0) return;
  std::fprintf(stderr,
               "dtrain: %s: %zu bytes of GPU memory that could be registered with NCCL stay until "
               "the process ends\n",
               handle_->me().c_str(), left);
}

// ---- Registration ----

// NCCL may say that it succeeded and leave the place as it was.
Result<bool> NcclHandle::Register(Registrations::Entry entry, Deadline deadline) {
  const auto place = std::make_shared<void*>(nullptr);
  const auto enter = [place, comm = Comm(), memory = const_cast<char*>(entry.begin),
                      bytes = entry.bytes, &nccl = session_->libraries().nccl] {
    return nccl.comm_register(comm, memory, bytes, place.get());
  };
  if (MaybeError error = session_->Try("ncclCommRegister", enter, deadline,
                                       "ncclCommRegister did not come back in time")) {
    return *error;
  }
  if (*place == nullptr) return false;
  entry.handle = *place;
  registrations_.Add(entry);
  return true;
}

// Where it goes wrong, NCCL still works in memory that is about to go.
MaybeError NcclHandle::Deregister(const void* memory, Deadline deadline) {
  const auto entry = registrations_.Take(memory);
  if (!entry) return std::nullopt;
  const auto leave = [comm = Comm(), handle = entry->handle, &nccl = session_->libraries().nccl] {
    return nccl.comm_deregister(comm, handle);
  };
  return session_->Call("ncclCommDeregister", leave, deadline);
}

size_t NcclCommunicator::RegistrableBytes(const void* memory) const {
  const auto found = blocks_.find(memory);
  return found == blocks_.end() || !found->second.registrable ? 0 : found->second.bytes;
}

Result<bool> NcclCommunicator::Register(void* memory, size_t bytes, uint64_t id) {
  if (!session_->libraries().nccl.registers()) return false;
  return handle_->Register({static_cast<char*>(memory), bytes, id, nullptr},
                           steady_clock::now() + options_.init_timeout);
}

MaybeError NcclCommunicator::Deregister(const void* memory) {
  return handle_->Deregister(memory, steady_clock::now() + options_.init_timeout);
}

// Once: it may happen in every step.
void NcclCommunicator::SayCopied(const Collective& what) const {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  std::fprintf(stderr,
               "dtrain: %s: collective %llu (%s) has registered buffers, but NCCL may work in such "
               "only when all ranks use the same ones in the same way: they are copied first, "
               "which takes longer\n",
               handle_->me().c_str(), static_cast<unsigned long long>(what.number),
               Describe(what).c_str());
}

}  // namespace dtrain::runtime
