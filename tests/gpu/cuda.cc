// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/cuda.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace dtrain::gpu_check {
namespace {

using std::chrono::steady_clock;

constexpr int kNotReady = 600;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kNoTiming = 2;
constexpr size_t kScratchBytes = size_t{16} << 20;

// Spins until `ns` nanoseconds have passed on the GPU's own clock. Text for the oldest GPU that
// NCCL still supports; the driver compiles it.
constexpr char kSpin[] = R"(.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 ns)
{
  .reg .u64 %t<4>;
  .reg .pred %again;
  ld.param.u64 %t0, [ns];
  mov.u64 %t1, %globaltimer;
LOOP:
  mov.u64 %t2, %globaltimer;
  sub.u64 %t3, %t2, %t1;
  setp.lt.u64 %again, %t3, %t0;
  @%again bra LOOP;
  ret;
}
)";

template <typename F>
bool Find(void* library, F& function, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    function = reinterpret_cast<F>(dlsym(library, name));
    if (function != nullptr) return true;
  }
  return false;
}

// The name of the first one that is missing, or nullptr.
const char* FindNeeded(void* library, Cuda& cuda) {
  const auto missing = [&](auto& function, std::initializer_list<const char*> names) {
    return Find(library, function, names) ? nullptr : *names.begin();
  };
  for (const char* name : {missing(cuda.Init, {"cuInit"}),
                           missing(cuda.ErrorString, {"cuGetErrorString"}),
                           missing(cuda.DriverVersion, {"cuDriverGetVersion"}),
                           missing(cuda.DeviceCount, {"cuDeviceGetCount"}),
                           missing(cuda.DeviceGet, {"cuDeviceGet"}),
                           missing(cuda.DeviceName, {"cuDeviceGetName"}),
                           missing(cuda.DeviceUuid, {"cuDeviceGetUuid_v2", "cuDeviceGetUuid"}),
                           missing(cuda.PrimaryRetain, {"cuDevicePrimaryCtxRetain"}),
                           missing(cuda.ContextPush, {"cuCtxPushCurrent_v2"}),
                           missing(cuda.StreamCreate, {"cuStreamCreate"}),
                           missing(cuda.StreamDestroy, {"cuStreamDestroy_v2"}),
                           missing(cuda.EventCreate, {"cuEventCreate"}),
                           missing(cuda.EventDestroy, {"cuEventDestroy_v2"}),
                           missing(cuda.EventRecord, {"cuEventRecord"}),
                           missing(cuda.EventQuery, {"cuEventQuery"}),
                           missing(cuda.StreamWait, {"cuStreamWaitEvent"}),
                           missing(cuda.MemAlloc, {"cuMemAlloc_v2"}),
                           missing(cuda.MemFree, {"cuMemFree_v2"}),
                           missing(cuda.HostAlloc, {"cuMemHostAlloc"}),
                           missing(cuda.HostFree, {"cuMemFreeHost"}),
                           missing(cuda.CopyToDevice, {"cuMemcpyHtoDAsync_v2"}),
                           missing(cuda.CopyToHost, {"cuMemcpyDtoHAsync_v2"}),
                           missing(cuda.CopyOnDevice, {"cuMemcpyDtoDAsync_v2"}),
                           missing(cuda.PointerAttribute, {"cuPointerGetAttribute"})}) {
    if (name != nullptr) return name;
  }
  return nullptr;
}

void FindOptional(void* library, Cuda& cuda) {
  Find(library, cuda.MemInfo, {"cuMemGetInfo_v2"});
  // Of CUDA 13; it differs only in what it asks of events of several contexts.
  Find(library, cuda.EventElapsed, {"cuEventElapsedTime"});
  Find(library, cuda.MemAllocManaged, {"cuMemAllocManaged"});
  Find(library, cuda.MemAllocAsync, {"cuMemAllocAsync"});
  Find(library, cuda.MemFreeAsync, {"cuMemFreeAsync"});
  Find(library, cuda.HostRegister, {"cuMemHostRegister_v2"});
  Find(library, cuda.HostUnregister, {"cuMemHostUnregister"});
  Find(library, cuda.IpcGet, {"cuIpcGetMemHandle"});
  Find(library, cuda.IpcOpen, {"cuIpcOpenMemHandle_v2"});
  Find(library, cuda.IpcClose, {"cuIpcCloseMemHandle"});
  Find(library, cuda.Granularity, {"cuMemGetAllocationGranularity"});
  Find(library, cuda.MemCreate, {"cuMemCreate"});
  Find(library, cuda.MemReserve, {"cuMemAddressReserve"});
  Find(library, cuda.MemMap, {"cuMemMap"});
  Find(library, cuda.MemSetAccess, {"cuMemSetAccess"});
  Find(library, cuda.ModuleLoad, {"cuModuleLoadData"});
  Find(library, cuda.ModuleFunction, {"cuModuleGetFunction"});
  Find(library, cuda.Launch, {"cuLaunchKernel"});
  Find(library, cuda.BeginCapture, {"cuStreamBeginCapture_v2"});
  Find(library, cuda.EndCapture, {"cuStreamEndCapture"});
  Find(library, cuda.GraphInstantiate, {"cuGraphInstantiateWithFlags"});
  Find(library, cuda.GraphLaunch, {"cuGraphLaunch"});
  Find(library, cuda.GraphExecDestroy, {"cuGraphExecDestroy"});
  Find(library, cuda.GraphDestroy, {"cuGraphDestroy"});
}

}  // namespace

const Cuda& Cuda::Open(Result& result) {
  static Cuda cuda = {};
  if (cuda.Init != nullptr) return cuda;
  const char* file = std::getenv("DTRAIN_CUDA_LIBRARY");
  if (file == nullptr) file = "libcuda.so.1";
  const auto give = [&](const std::string& why) {
    result.CouldNot(why);
    result.Give();
  };
  void* library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) give(std::string("no driver: ") + dlerror());
  if (const char* name = FindNeeded(library, cuda); name != nullptr) {
    give(std::string(file) + " has no " + name);
  }
  FindOptional(library, cuda);
  int devices = 0;
  if (const int error = cuda.Init(0); error != 0) give("cuInit: " + cuda.Text(error));
  if (cuda.DeviceCount(&devices) != 0 || devices == 0) give("no GPU");
  return cuda;
}

std::string Cuda::Text(int error) const {
  const char* text = nullptr;
  if (ErrorString(error, &text) != 0 || text == nullptr) text = "unknown";
  return std::string(text) + " (CUDA error " + std::to_string(error) + ")";
}

std::string Cuda::UuidText(Device device) const {
  Uuid uuid = {};
  if (const int error = DeviceUuid(&uuid, device); error != 0) return Text(error);
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

Gpu::Gpu(Result& result, int ordinal) : result_(result), api_(Cuda::Open(result)) {
  Must(api_.DeviceGet(&device_, ordinal), "cuDeviceGet");
  Must(api_.PrimaryRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  Must(api_.ContextPush(context_), "cuCtxPushCurrent");
}

void Gpu::Must(int error, const char* what) const {
  if (error == 0) return;
  result_.Miss(std::string(what) + ": " + api_.Text(error));
  result_.Give();
}

Handle Gpu::NewStream() const {
  Handle stream = nullptr;
  Must(api_.StreamCreate(&stream, kNonBlocking), "cuStreamCreate");
  return stream;
}

bool Gpu::Drained(Handle stream, std::chrono::seconds limit) const {
  Handle event = nullptr;
  Must(api_.EventCreate(&event, kNoTiming), "cuEventCreate");
  Must(api_.EventRecord(event, stream), "cuEventRecord");
  const auto deadline = steady_clock::now() + limit;
  int state = kNotReady;
  while ((state = api_.EventQuery(event)) == kNotReady) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  Must(state, "cuEventQuery");
  Must(api_.EventDestroy(event), "cuEventDestroy");
  return true;
}

void Gpu::Drain(Handle stream) const {
  if (Drained(stream, std::chrono::seconds(30))) return;
  result_.Miss("a stream was not done after 30 s");
  result_.Give();
}

Pointer Gpu::Allocate(size_t bytes) const {
  Pointer memory = 0;
  Must(api_.MemAlloc(&memory, bytes), "cuMemAlloc");
  return memory;
}

void Gpu::Put(Pointer to, const void* from, size_t bytes, Handle stream) const {
  if (bytes == 0) return;
  Must(api_.CopyToDevice(to, from, bytes, stream), "cuMemcpyHtoDAsync");
  Drain(stream);
}

void Gpu::Get(void* to, Pointer from, size_t bytes, Handle stream) const {
  if (bytes == 0) return;
  Must(api_.CopyToHost(to, from, bytes, stream), "cuMemcpyDtoHAsync");
  Drain(stream);
}

const char* Gpu::Busy(Handle stream, std::chrono::milliseconds time) {
  if (!looked_for_spin_ && api_.ModuleLoad != nullptr && api_.ModuleFunction != nullptr &&
      api_.Launch != nullptr) {
    Handle module = nullptr;
    Must(api_.ModuleLoad(&module, kSpin), "cuModuleLoadData");
    Must(api_.ModuleFunction(&spin_, module, "spin"), "cuModuleGetFunction");
  }
  looked_for_spin_ = true;
  if (spin_ != nullptr) {
    unsigned long long ns = static_cast<unsigned long long>(time.count()) * 1'000'000;
    void* arguments[] = {&ns};
    Must(api_.Launch(spin_, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
    return "a kernel that spins";
  }
  // 16 MiB take some 3 ms in host memory, which is what a fake copies.
  if (scratch_ == 0) scratch_ = Allocate(2 * kScratchBytes);
  for (int i = 0; i < static_cast<int>(time.count() / 3); ++i) {
    Must(api_.CopyOnDevice(scratch_, scratch_ + kScratchBytes, kScratchBytes, stream),
         "cuMemcpyDtoDAsync");
  }
  return "copies";
}

int OrdinalInEnvironment() {
  const char* text = std::getenv("DTRAIN_DEVICE");
  if (text == nullptr) text = std::getenv("LOCAL_RANK");
  return text == nullptr ? 0 : std::atoi(text);
}

}  // namespace dtrain::gpu_check
