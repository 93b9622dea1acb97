// SPDX-License-Identifier: Apache-2.0
// Kinds of memory: libdtrain has to find out by itself where a buffer is, and be right.
#include <unistd.h>

#include <cstring>

#include "tests/gpu/checks.h"

namespace dtrain::gpu_check {
namespace {

constexpr size_t kCount = 100'000;
constexpr size_t kBytes = kCount * sizeof(float);

// Sums `memory` in place and compares. The host can touch it when `on_host`.
void Sum(Result& result, Gpu& gpu, Handle stream, const std::string& kind, void* memory,
         bool on_host) {
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = ValueAt(i, dtrain_rank());
  if (on_host) {
    std::memcpy(memory, values.data(), kBytes);
  } else {
    gpu.Put(NumberOf(memory), values.data(), kBytes, stream);
  }
  MustDtrain(result, dtrain_allreduce(memory, memory, kCount, DTRAIN_FLOAT32, DTRAIN_SUM),
             kind.c_str());
  if (on_host) {
    std::memcpy(values.data(), memory, kBytes);
  } else {
    gpu.Get(values.data(), NumberOf(memory), kBytes, stream);
  }
  for (size_t i = 0; i < kCount; ++i) {
    if (values[i] == SumAt(i, dtrain_size())) continue;
    result.Miss(kind + " memory: element " + std::to_string(i) + " is wrong");
    return;
  }
  result.Text(kind, "exact");
}

// Mapped piece by piece, as PyTorch's expandable segments are. 0: not in this driver.
Pointer MapPieces(const Gpu& gpu) {
  const Cuda& cuda = gpu.api();
  if (cuda.MemCreate == nullptr || cuda.MemReserve == nullptr || cuda.MemMap == nullptr ||
      cuda.MemSetAccess == nullptr || cuda.Granularity == nullptr) {
    return 0;
  }
  AllocationProperties properties;
  properties.location.id = gpu.device();
  size_t piece = 0;
  gpu.Must(cuda.Granularity(&piece, &properties, 0), "cuMemGetAllocationGranularity");
  Pointer start = 0;
  gpu.Must(cuda.MemReserve(&start, 2 * piece, 0, 0, 0), "cuMemAddressReserve");
  for (size_t i = 0; i < 2; ++i) {
    unsigned long long handle = 0;
    gpu.Must(cuda.MemCreate(&handle, piece, &properties, 0), "cuMemCreate");
    gpu.Must(cuda.MemMap(start + i * piece, piece, 0, handle, 0), "cuMemMap");
  }
  Access access;
  access.location.id = gpu.device();
  gpu.Must(cuda.MemSetAccess(start, 2 * piece, &access, 1), "cuMemSetAccess");
  // Across the border of the two.
  return start + piece - kBytes / 2 / 256 * 256;
}

// Another process's memory on the same GPU.
class Neighbour {
 public:
  // Before this process has begun with CUDA, which does not survive a fork.
  Neighbour() {
    if (pipe(handle_) != 0 || pipe(end_) != 0) return;
    child_ = fork();
    if (child_ != 0) return;
    close(end_[1]);
    Result result("neighbour");
    const Gpu gpu(result, OrdinalInEnvironment());
    IpcHandle handle = {};
    char byte = 0;
    if (gpu.api().IpcGet == nullptr || gpu.api().IpcGet(&handle, gpu.Allocate(kBytes)) != 0 ||
        write(handle_[1], &handle, sizeof(handle)) < 0) {
      _exit(1);
    }
    // Until the parent has used it, or is gone.
    _exit(read(end_[0], &byte, 1) < 0 ? 1 : 0);
  }
  ~Neighbour() { close(end_[1]); }

  bool Get(IpcHandle& handle) {
    close(handle_[1]);
    return child_ > 0 && read(handle_[0], &handle, sizeof(handle)) == sizeof(handle);
  }

 private:
  int handle_[2] = {-1, -1};
  int end_[2] = {-1, -1};
  pid_t child_ = -1;
};

void SumNeighbours(Result& result, Gpu& gpu, Handle stream, Neighbour& neighbour) {
  IpcHandle handle = {};
  Pointer memory = 0;
  if (gpu.api().IpcOpen == nullptr)
    return result.CouldNot("IPC: the driver has no functions for it");
  if (!neighbour.Get(handle)) return result.CouldNot("IPC: the other process got no memory");
  constexpr unsigned kLazyPeerAccess = 1;
  gpu.Must(gpu.api().IpcOpen(&memory, handle, kLazyPeerAccess), "cuIpcOpenMemHandle");
  Sum(result, gpu, stream, "ipc", Address(memory), false);
  gpu.Must(gpu.api().IpcClose(memory), "cuIpcCloseMemHandle");
}

}  // namespace

int CheckWhere(const Arguments&) {
  Neighbour neighbour;
  Result result("where");
  Gpu gpu(result, OrdinalInEnvironment());
  const Cuda& cuda = gpu.api();
  Begin(result);
  const Handle stream = gpu.NewStream();
  Pointer memory = gpu.Allocate(kBytes);
  Sum(result, gpu, stream, "device", Address(memory), false);
  void* pinned = nullptr;
  gpu.Must(cuda.HostAlloc(&pinned, kBytes, 1), "cuMemHostAlloc");
  Sum(result, gpu, stream, "pinned", pinned, true);
  std::vector<float> plain(kCount + 1024);
  Sum(result, gpu, stream, "host", plain.data(), true);

  if (cuda.MemAllocAsync == nullptr) {
    result.CouldNot("memory of the driver's pool: no cuMemAllocAsync");
  } else {
    gpu.Must(cuda.MemAllocAsync(&memory, kBytes, stream), "cuMemAllocAsync");
    gpu.Drain(stream);
    Sum(result, gpu, stream, "pool", Address(memory), false);
    gpu.Must(cuda.MemFreeAsync(memory, stream), "cuMemFreeAsync");
  }
  if (memory = MapPieces(gpu); memory == 0) {
    result.CouldNot("memory mapped in pieces: no cuMemMap");
  } else {
    Sum(result, gpu, stream, "mapped in pieces", Address(memory), false);
  }
  if (cuda.MemAllocManaged == nullptr) {
    result.CouldNot("managed memory: no cuMemAllocManaged");
  } else {
    gpu.Must(cuda.MemAllocManaged(&memory, kBytes, 1), "cuMemAllocManaged");
    Sum(result, gpu, stream, "managed", Address(memory), true);
  }
  if (cuda.HostRegister == nullptr) {
    result.CouldNot("registered memory of the host: no cuMemHostRegister");
  } else {
    void* page = reinterpret_cast<void*>((NumberOf(plain.data()) + 4095) / 4096 * 4096);
    gpu.Must(cuda.HostRegister(page, kBytes, 1), "cuMemHostRegister");
    Sum(result, gpu, stream, "registered", page, true);
    gpu.Must(cuda.HostUnregister(page), "cuMemHostUnregister");
  }
  SumNeighbours(result, gpu, stream, neighbour);
  End(result);
  return result.Print();
}

// Registered with NCCL on all ranks and used alike, and then in ways that NCCL would hang at.
int CheckMixedMemory(const Arguments&) {
  Result result("mixed-memory");
  Gpu gpu(result, OrdinalInEnvironment());
  Begin(result);
  const Handle stream = gpu.NewStream();
  void* memory = nullptr;
  int registered = 0;
  MustDtrain(result, dtrain_alloc_registrable(2 * kBytes, &memory), "dtrain_alloc_registrable");
  MustDtrain(result, dtrain_register(memory, nullptr, &registered), "dtrain_register");
  result.Text("NCCL registers", registered == 1 ? "yes" : "no: NCCL declines");
  char* const own = static_cast<char*>(memory);
  void* const plain = Address(gpu.Allocate(kBytes));
  const bool first = dtrain_rank() == 0;
  for (int i = 0; i < 20; ++i) {
    Sum(result, gpu, stream, "registered", own, false);
    Sum(result, gpu, stream, "registered on rank 0 only", first ? own : plain, false);
    Sum(result, gpu, stream, "registered, at other offsets", first ? own + kBytes : own, false);
  }
  MustDtrain(result, dtrain_free(memory), "dtrain_free");
  End(result);
  return result.Print();
}

}  // namespace dtrain::gpu_check
