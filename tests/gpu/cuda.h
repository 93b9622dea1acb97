// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "tests/gpu/result.h"

namespace dtrain::gpu_check {

using Device = int;
using Pointer = unsigned long long;  // CUdeviceptr
using Handle = void*;                // contexts, streams, events, modules, graphs

struct Uuid {
  unsigned char bytes[16];
};

// CUmemAllocationProp and CUmemAccessDesc, for memory that is mapped piece by piece.
struct Location {
  int type = 1;  // a device
  int id = 0;
};
struct AllocationProperties {
  int type = 1;  // pinned
  int handle_types = 0;
  Location location;
  void* security = nullptr;
  unsigned char flags[8] = {};
};
static_assert(sizeof(AllocationProperties) == 32);
struct Access {
  Location location;
  int flags = 3;  // read and write
};
struct IpcHandle {
  char bytes[64];
};

// libcuda.so.1, or DTRAIN_CUDA_LIBRARY, opened by name as libdtrain does it. Written against the
// binary interface a second time, so that a mistake there is not repeated here.
struct Cuda {
  int (*Init)(unsigned);
  int (*ErrorString)(int, const char**);
  int (*DriverVersion)(int*);
  int (*DeviceCount)(int*);
  int (*DeviceGet)(Device*, int);
  int (*DeviceName)(char*, int, Device);
  int (*DeviceUuid)(Uuid*, Device);
  int (*PrimaryRetain)(Handle*, Device);
  int (*ContextPush)(Handle);
  int (*StreamCreate)(Handle*, unsigned);
  int (*StreamDestroy)(Handle);
  int (*EventCreate)(Handle*, unsigned);
  int (*EventDestroy)(Handle);
  int (*EventRecord)(Handle, Handle);
  int (*EventQuery)(Handle);
  int (*StreamWait)(Handle, Handle, unsigned);
  int (*MemAlloc)(Pointer*, size_t);
  int (*MemFree)(Pointer);
  int (*HostAlloc)(void**, size_t, unsigned);
  int (*HostFree)(void*);
  int (*CopyToDevice)(Pointer, const void*, size_t, Handle);
  int (*CopyToHost)(void*, Pointer, size_t, Handle);
  int (*CopyOnDevice)(Pointer, Pointer, size_t, Handle);
  int (*PointerAttribute)(void*, int, Pointer);

  // Not in every driver, and some not in the fake: null then.
  int (*MemInfo)(size_t*, size_t*);
  int (*EventElapsed)(float*, Handle, Handle);
  int (*MemAllocManaged)(Pointer*, size_t, unsigned);
  int (*MemAllocAsync)(Pointer*, size_t, Handle);
  int (*MemFreeAsync)(Pointer, Handle);
  int (*HostRegister)(void*, size_t, unsigned);
  int (*HostUnregister)(void*);
  int (*IpcGet)(IpcHandle*, Pointer);
  int (*IpcOpen)(Pointer*, IpcHandle, unsigned);
  int (*IpcClose)(Pointer);
  int (*Granularity)(size_t*, const AllocationProperties*, int);
  int (*MemCreate)(unsigned long long*, size_t, const AllocationProperties*, unsigned long long);
  int (*MemReserve)(Pointer*, size_t, size_t, Pointer, unsigned long long);
  int (*MemMap)(Pointer, size_t, size_t, unsigned long long, unsigned long long);
  int (*MemSetAccess)(Pointer, size_t, const Access*, size_t);
  int (*ModuleLoad)(Handle*, const void*);
  int (*ModuleFunction)(Handle*, Handle, const char*);
  int (*Launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                Handle, void**, void**);
  int (*BeginCapture)(Handle, int);
  int (*EndCapture)(Handle, Handle*);
  int (*GraphInstantiate)(Handle*, Handle, unsigned long long);
  int (*GraphLaunch)(Handle, Handle);
  int (*GraphExecDestroy)(Handle);
  int (*GraphDestroy)(Handle);

  // Prints "could not run" and ends the process when there is no driver or no GPU.
  static const Cuda& Open(Result& result);

  // "out of memory (CUDA error 2)".
  std::string Text(int error) const;
  std::string UuidText(Device device) const;  // "GPU-..." as nvidia-smi writes it
};

// A context on GPU `ordinal`, current on this thread, and what every check needs with it. A failed
// call misses the check and ends the process.
class Gpu {
 public:
  Gpu(Result& result, int ordinal);

  const Cuda& api() const { return api_; }
  Device device() const { return device_; }
  void Must(int error, const char* what) const;

  Handle NewStream() const;
  // Waits for all that `stream` has now, at most `limit`; false when it takes longer.
  bool Drained(Handle stream, std::chrono::seconds limit) const;
  void Drain(Handle stream) const;
  Pointer Allocate(size_t bytes) const;
  // Done on return.
  void Put(Pointer to, const void* from, size_t bytes, Handle stream) const;
  void Get(void* to, Pointer from, size_t bytes, Handle stream) const;

  // Keeps `stream` busy for about `time`, without the host waiting: a kernel that spins, or, where
  // no module can be loaded, copies. Says which.
  const char* Busy(Handle stream, std::chrono::milliseconds time);

 private:
  Result& result_;
  const Cuda& api_;
  Device device_ = 0;
  Handle context_ = nullptr;
  Handle spin_ = nullptr;
  bool looked_for_spin_ = false;
  Pointer scratch_ = 0;
};

// The GPU that a rank of a check is to use: as the launcher says, else that of its local rank.
int OrdinalInEnvironment();

}  // namespace dtrain::gpu_check
