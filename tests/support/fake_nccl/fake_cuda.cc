// SPDX-License-Identifier: Apache-2.0
// A stand-in for the CUDA driver; README.md beside this says what it does.
#include "tests/support/fake_nccl/fake_cuda.h"

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNotReady = 600
};

constexpr size_t kLargest = size_t{4} << 30;

// Runs what it is given, in order, on its own thread.
class Stream {
 public:
  Stream() : thread_([this] { Loop(); }) {}
  ~Stream() {
    Push(nullptr);
    thread_.join();
  }
  void Push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void Loop() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (work == nullptr) return;
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

// The state that one recording of an event waits for.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;

  void Reach() {
    const std::lock_guard lock(mutex);
    reached = true;
    changed.notify_all();
  }
  void Await() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Mark> mark;  // of the last recording
};

struct Driver {
  std::mutex mutex;
  bool ready = false;
  std::map<uintptr_t, size_t> device_memory;
  std::map<uintptr_t, size_t> pinned_memory;
  std::set<Stream*> streams;
  Stream* default_stream = nullptr;
  char contexts[64] = {};  // &contexts[i] is the context of GPU i
};

// Never destroyed: threads of streams may run on while the process exits.
Driver& TheDriver() {
  static Driver* const driver = new Driver;
  return *driver;
}

thread_local std::vector<void*> stack;

int Devices() {
  const char* text = getenv("FAKE_CUDA_DEVICES");
  return text == nullptr ? 8 : atoi(text);
}

bool HasContext() { return !stack.empty() && stack.back() != nullptr; }

bool Within(const std::map<uintptr_t, size_t>& blocks, const void* pointer, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  auto block = blocks.upper_bound(at);
  if (block == blocks.begin()) return false;
  --block;
  return at + bytes <= block->first + block->second;
}

bool IsDevice(const void* pointer, size_t bytes) {
  const std::lock_guard lock(TheDriver().mutex);
  return Within(TheDriver().device_memory, pointer, bytes);
}

Stream& StreamOf(void* stream) {
  // NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
  if (reinterpret_cast<uintptr_t>(stream) > 2) return *static_cast<Stream*>(stream);
  const std::lock_guard lock(TheDriver().mutex);
  auto& stream_of_all = TheDriver().default_stream;
  if (stream_of_all == nullptr) TheDriver().streams.insert(stream_of_all = new Stream);
  return *stream_of_all;
}

// Returns when all streams have done what they have now.
void Synchronize() {
  std::vector<std::shared_ptr<Mark>> marks;
  {
    const std::lock_guard lock(TheDriver().mutex);
    for (Stream* stream : TheDriver().streams) {
      const auto mark = std::make_shared<Mark>();
      stream->Push([mark] { mark->Reach(); });
      marks.push_back(mark);
    }
  }
  for (const auto& mark : marks) mark->Await();
}

int Copy(void* to, const void* from, size_t bytes, const void* device, void* stream) {
  if (!HasContext()) return kInvalidContext;
  if (!IsDevice(device, bytes)) return kInvalidValue;
  if (bytes > 0) StreamOf(stream).Push([=] { std::memcpy(to, from, bytes); });
  return kOk;
}

int Allocate(std::map<uintptr_t, size_t>& blocks, void** out, size_t bytes) {
  if (!HasContext()) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  if (bytes > kLargest) return kOutOfMemory;
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, bytes) != 0) return kOutOfMemory;
  std::memset(memory, 0xa5, bytes);
  const std::lock_guard lock(TheDriver().mutex);
  blocks[reinterpret_cast<uintptr_t>(memory)] = bytes;
  *out = memory;
  return kOk;
}

int Free(std::map<uintptr_t, size_t>& blocks, void* memory) {
  if (!HasContext()) return kInvalidContext;
  Synchronize();  // as the real one
  {
    const std::lock_guard lock(TheDriver().mutex);
    if (blocks.erase(reinterpret_cast<uintptr_t>(memory)) == 0) return kInvalidValue;
  }
  free(memory);
  return kOk;
}

template <typename T>
T* At(unsigned long long number) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(number));
}

}  // namespace

EXPORT void fake_cuda_enqueue(void* stream, void (*work)(void*), void* argument) {
  StreamOf(stream).Push([=] { work(argument); });
}

EXPORT int fake_cuda_is_device(const void* pointer, unsigned long bytes) {
  return IsDevice(pointer, bytes) ? 1 : 0;
}

EXPORT int cuInit(unsigned) {
  const char* error = getenv("FAKE_CUDA_INIT_ERROR");
  if (error != nullptr && atoi(error) != 0) return atoi(error);
  if (Devices() == 0) return kNoDevice;
  TheDriver().ready = true;
  return kOk;
}

EXPORT int cuGetErrorString(int error, const char** text) {
  static const std::map<int, const char*> kTexts = {{kInvalidValue, "invalid argument"},
                                                    {kOutOfMemory, "out of memory"},
                                                    {kNoDevice, "no CUDA-capable device"},
                                                    {kInvalidDevice, "invalid device ordinal"},
                                                    {kInvalidContext, "invalid device context"}};
  const auto found = kTexts.find(error);
  *text = found == kTexts.end() ? "unknown error" : found->second;
  return kOk;
}

EXPORT int cuDriverGetVersion(int* version) {
  *version = 12040;
  return kOk;
}

EXPORT int cuDeviceGetCount(int* count) {
  if (!TheDriver().ready) return kNotInitialized;
  *count = Devices();
  return kOk;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= Devices()) return kInvalidDevice;
  *device = ordinal;
  return kOk;
}

EXPORT int cuDeviceGetName(char* name, int size, int device) {
  snprintf(name, static_cast<size_t>(size), "Fake GPU %d", device);
  return kOk;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, 0x11 + device, 16);
  return kOk;
}

EXPORT int cuDeviceGetPCIBusId(char* text, int size, int device) {
  snprintf(text, static_cast<size_t>(size), "0000:%02X:00.0", 0x10 + device);
  return kOk;
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (device < 0 || device >= Devices() || device >= 64) return kInvalidDevice;
  *context = &TheDriver().contexts[device];
  return kOk;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return kOk; }

EXPORT int cuCtxGetCurrent(void** context) {
  *context = stack.empty() ? nullptr : stack.back();
  return kOk;
}

EXPORT int cuCtxGetDevice(int* device) {
  if (!HasContext()) return kInvalidContext;
  *device = static_cast<int>(static_cast<char*>(stack.back()) - TheDriver().contexts);
  return kOk;
}

EXPORT int cuCtxPushCurrent_v2(void* context) {
  stack.push_back(context);
  return kOk;
}

EXPORT int cuCtxPopCurrent_v2(void** context) {
  if (stack.empty()) return kInvalidContext;
  *context = stack.back();
  stack.pop_back();
  return kOk;
}

EXPORT int cuCtxGetStreamPriorityRange(int* a, int* b) {
  *a = 0;
  *b = -5;
  return kOk;
}

EXPORT int cuStreamCreateWithPriority(void** stream, unsigned, int) {
  if (!HasContext()) return kInvalidContext;
  auto* made = new Stream;
  const std::lock_guard lock(TheDriver().mutex);
  TheDriver().streams.insert(made);
  *stream = made;
  return kOk;
}

EXPORT int cuStreamDestroy_v2(void* stream) {
  {
    const std::lock_guard lock(TheDriver().mutex);
    TheDriver().streams.erase(static_cast<Stream*>(stream));
  }
  delete static_cast<Stream*>(stream);
  return kOk;
}

EXPORT int cuStreamIsCapturing(void*, int* status) {
  *status = 0;
  return kOk;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  *mode = 0;
  return kOk;
}

EXPORT int cuEventCreate(void** event, unsigned) {
  if (!HasContext()) return kInvalidContext;
  *event = new Event;
  return kOk;
}

EXPORT int cuEventDestroy_v2(void* event) {
  delete static_cast<Event*>(event);
  return kOk;
}

EXPORT int cuEventRecord(void* event, void* stream) {
  if (!HasContext()) return kInvalidContext;
  auto* recorded = static_cast<Event*>(event);
  const auto mark = std::make_shared<Mark>();
  {
    const std::lock_guard lock(recorded->mutex);
    recorded->mark = mark;
  }
  StreamOf(stream).Push([mark] { mark->Reach(); });
  return kOk;
}

EXPORT int cuEventQuery(void* event) {
  if (!HasContext()) return kInvalidContext;
  auto* asked = static_cast<Event*>(event);
  const std::lock_guard lock(asked->mutex);
  if (asked->mark == nullptr) return kOk;
  const std::lock_guard mark_lock(asked->mark->mutex);
  return asked->mark->reached ? kOk : kNotReady;
}

EXPORT int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  auto* awaited = static_cast<Event*>(event);
  const std::lock_guard lock(awaited->mutex);
  const auto mark = awaited->mark;
  if (mark == nullptr) return kOk;
  StreamOf(stream).Push([mark] { mark->Await(); });
  return kOk;
}

EXPORT int cuMemAlloc_v2(unsigned long long* out, size_t bytes) {
  void* memory = nullptr;
  const int code = Allocate(TheDriver().device_memory, &memory, bytes);
  *out = reinterpret_cast<uintptr_t>(memory);
  return code;
}

EXPORT int cuMemFree_v2(unsigned long long memory) {
  return Free(TheDriver().device_memory, At<void>(memory));
}

EXPORT int cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  return Allocate(TheDriver().pinned_memory, out, bytes);
}

EXPORT int cuMemFreeHost(void* memory) { return Free(TheDriver().pinned_memory, memory); }

EXPORT int cuMemsetD8Async(unsigned long long memory, unsigned char value, size_t bytes,
                           void* stream) {
  if (!IsDevice(At<void>(memory), bytes)) return kInvalidValue;
  StreamOf(stream).Push([=] { std::memset(At<void>(memory), value, bytes); });
  return kOk;
}

EXPORT int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes,
                                void* stream) {
  return Copy(At<void>(to), from, bytes, At<void>(to), stream);
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream) {
  return Copy(to, At<void>(from), bytes, At<void>(from), stream);
}

EXPORT int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes,
                                void* stream) {
  if (!IsDevice(At<void>(from), bytes)) return kInvalidValue;
  return Copy(At<void>(to), At<void>(from), bytes, At<void>(to), stream);
}

EXPORT int cuPointerGetAttribute(void* value, int attribute, unsigned long long pointer) {
  const std::lock_guard lock(TheDriver().mutex);
  const bool device = Within(TheDriver().device_memory, At<void>(pointer), 1);
  const bool pinned = Within(TheDriver().pinned_memory, At<void>(pointer), 1);
  if (!device && !pinned) return kInvalidValue;
  if (attribute != 2 && attribute != 8) return kInvalidValue;
  *static_cast<unsigned*>(value) = attribute == 8 ? 0 : device ? 2 : 1;
  return kOk;
}
