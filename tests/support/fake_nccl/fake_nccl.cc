// SPDX-License-Identifier: Apache-2.0
// A stand-in for NCCL; README.md beside this says what it does.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_nccl/fake_cuda.h"
#include "tests/support/fake_nccl/group.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
int cuCtxGetDevice(int* device);
int cuMemAlloc_v2(unsigned long long* out, size_t bytes);
int cuMemFree_v2(unsigned long long memory);
}

using fake_nccl::Group;
using fake_nccl::Kind;
using fake_nccl::Operation;

struct UniqueId {
  char bytes[128];
};

struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

struct Comm {
  std::unique_ptr<Group> group;
  std::atomic<int> state{0};  // what ncclCommGetAsyncError says
  std::atomic<bool> starting{false};
  int operations = 0;
  // Operations run in the order of the calls, whatever their streams, as in NCCL.
  std::mutex mutex;
  std::condition_variable changed;
  int issued = 0, finished = 0;
};

namespace {

enum {
  kSuccess = 0,
  kCudaError = 1,
  kSystemError = 2,
  kInternal = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kInProgress = 7
};

thread_local std::string last_error;

int Fail(int code, const std::string& text) {
  last_error = text;
  return code;
}

// What is in progress has a thread, one at a time.
void AwaitStart(const Comm* comm) {
  while (comm->starting.load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

[[maybe_unused]] void Begin(Comm* comm, const std::function<void()>& work) {
  AwaitStart(comm);
  comm->starting.store(true);
  std::thread([comm, work] {
    work();
    comm->starting.store(false);
  }).detach();
}

// Whether the variable's value is this rank.
bool Asked(const char* name, const Comm* comm) {
  const char* text = getenv(name);
  return text != nullptr && atoi(text) == comm->group->rank();
}

[[noreturn]] void Hang() {
  for (;;) pause();
}

// "rank:operation:code".
struct Injected {
  int rank = -1, operation = -1, code = 0;
};

Injected AsyncError() {
  Injected injected;
  const char* text = getenv("FAKE_NCCL_ASYNC_ERROR");
  if (text != nullptr) {
    sscanf(text, "%d:%d:%d", &injected.rank, &injected.operation, &injected.code);
  }
  return injected;
}

uint64_t HostHash() {
  const char* id = getenv("NCCL_HOSTID");
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  return std::hash<std::string>()(id != nullptr ? id : host);
}

struct Launch {
  Comm* comm;
  Operation operation;
  void* stream;
  int turn = 0;
};

void Execute(void* argument) {
  const std::unique_ptr<Launch> launch(static_cast<Launch*>(argument));
  Comm* comm = launch->comm;
  {
    std::unique_lock lock(comm->mutex);
    comm->changed.wait(lock, [&] { return comm->finished == launch->turn; });
  }
  comm->group->Run(launch->operation);
  const std::lock_guard lock(comm->mutex);
  ++comm->finished;
  comm->changed.notify_all();
}

// An operation that never ends.
void Stall(void* argument) {
  const auto* comm = static_cast<Comm*>(argument);
  while (!comm->group->stop().load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool OnDevice(const Operation& o, const Comm* comm) {
  const size_t bytes = o.count * fake_nccl::ElementSize(o.type);
  const auto ranks = static_cast<size_t>(comm->group->size());
  const bool takes = o.kind != Kind::kReduce || comm->group->rank() == o.root;
  const bool gives = o.kind != Kind::kBroadcast || comm->group->rank() == o.root;
  const bool many_in = o.kind == Kind::kReduceScatter || o.kind == Kind::kPairs;
  const bool many_out = o.kind == Kind::kAllGather || o.kind == Kind::kPairs;
  return (!gives || fake_cuda_is_device(o.input, bytes * (many_in ? ranks : 1)) != 0) &&
         (!takes || fake_cuda_is_device(o.output, bytes * (many_out ? ranks : 1)) != 0);
}

// What GroupStart and GroupEnd enclose: all-reduces, or sends and receives in the order of peers.
struct Pending {
  bool open = false;
  const void* send = nullptr;
  void* receive = nullptr;
  int sends = 0, receives = 0;
  size_t count = 0;
  int type = 0;
  Comm* comm = nullptr;
  void* stream = nullptr;
  std::vector<Launch> launches;
};
thread_local Pending pending;

int Start(const std::vector<Launch>& launches, Comm* comm) {
  const int first = comm->operations;
  const Injected injected = AsyncError();
  for (const Launch& launch : launches) {
    if (injected.rank != comm->group->rank() || injected.operation != comm->operations++) continue;
    last_error = "injected";
    fake_cuda_enqueue(launch.stream, Stall, comm);
    comm->state.store(injected.code);
    return kSuccess;
  }
  const auto enqueue = [launches] {
    for (const Launch& launch : launches) {
      auto* copy = new Launch(launch);
      copy->turn = copy->comm->issued++;
      fake_cuda_enqueue(launch.stream, Execute, copy);
    }
  };
  static_cast<void>(first);
  enqueue();
  return kSuccess;
}

int Enqueue(const Operation& operation, Comm* comm, void* stream) {
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) return Fail(kCudaError, "no context");
  const int state = comm->state.load();
  if (state == kInProgress) return Fail(kInvalidUsage, "a call while another one is in progress");
  if (state != kSuccess) return state;
  if (!OnDevice(operation, comm)) return Fail(kInvalidArgument, "a buffer is not on the GPU");
  if (operation.kind == Kind::kPairs && operation.input == operation.output) {
    return Fail(kInvalidArgument, "send and receive buffer are the same");
  }
  const Launch launch{comm, operation, stream, 0};
  if (!pending.open) return Start({launch}, comm);
  pending.launches.push_back(launch);
  return kSuccess;
}

}  // namespace

EXPORT int ncclGetVersion(int* version) {
#ifdef FAKE_NCCL_OLD
  *version = 21403;
#else
  *version = 22809;
#endif
  const char* text = getenv("FAKE_NCCL_VERSION");
  if (text != nullptr) *version = atoi(text);
  return kSuccess;
}

EXPORT const char* ncclGetErrorString(int code) {
  static const char* const kTexts[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
  return code >= 0 && code <= 7 ? kTexts[code] : "unknown result code";
}

EXPORT const char* ncclGetLastError(Comm*) { return last_error.c_str(); }

EXPORT int ncclGetUniqueId(UniqueId* id) {
  const fake_nccl::Path path{getpid(), Group::MakeFile()};
  if (path.fd < 0) return Fail(kSystemError, "no memory file");
  std::memset(id, 0, sizeof(*id));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(4711);
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  std::memcpy(id->bytes + 8, &address, sizeof(address));
  std::memcpy(id->bytes + 64, &path, sizeof(path));
  return kSuccess;
}

EXPORT int ncclCommInitRankConfig(Comm** out, int size, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->size < 24) {
    return Fail(kInvalidArgument, "a configuration that the fake does not know");
  }
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) return Fail(kCudaError, "no context");
  fake_nccl::Path path{};
  std::memcpy(&path, id.bytes + 64, sizeof(path));
  auto* comm = new Comm;
  comm->group = Group::Open(path, rank, size);
  if (comm->group == nullptr) {
    delete comm;
    return Fail(kSystemError, "rank 0 is gone");
  }
  *out = comm;
  const bool hang = Asked("FAKE_NCCL_HANG_INIT", comm);
  if (hang) Stall(comm);
  const bool fine = comm->group->Meet(HostHash(), device);
  return fine ? kSuccess : kInvalidUsage;
}

EXPORT int ncclCommGetAsyncError(Comm* comm, int* state) {
  *state = comm->state.load();
  return kSuccess;
}

EXPORT int ncclCommFinalize(Comm* comm) {
  if (Asked("FAKE_NCCL_HANG_FINALIZE", comm)) Hang();
  AwaitStart(comm);
  comm->state.store(kSuccess);
  return kSuccess;
}

EXPORT int ncclCommDestroy(Comm* comm) {
  if (Asked("FAKE_NCCL_HANG_DESTROY", comm)) Hang();
  AwaitStart(comm);
  delete comm;
  return kSuccess;
}

EXPORT int ncclCommAbort(Comm* comm) {
  if (Asked("FAKE_NCCL_HANG_ABORT", comm)) Hang();
  comm->group->stop().store(true);
  AwaitStart(comm);
  // What runs on a stream may still look at the communicator: it stays.
  return kSuccess;
}

EXPORT int ncclAllReduce(const void* input, void* output, size_t count, int type, int op,
                         Comm* comm, void* stream) {
  return Enqueue({Kind::kAllReduce, static_cast<const char*>(input), static_cast<char*>(output),
                  count, type, op, 0},
                 comm, stream);
}

EXPORT int ncclBroadcast(const void* input, void* output, size_t count, int type, int root,
                         Comm* comm, void* stream) {
  return Enqueue({Kind::kBroadcast, static_cast<const char*>(input), static_cast<char*>(output),
                  count, type, 0, root},
                 comm, stream);
}

EXPORT int ncclReduce(const void* input, void* output, size_t count, int type, int op, int root,
                      Comm* comm, void* stream) {
  return Enqueue({Kind::kReduce, static_cast<const char*>(input), static_cast<char*>(output), count,
                  type, op, root},
                 comm, stream);
}

EXPORT int ncclAllGather(const void* input, void* output, size_t count, int type, Comm* comm,
                         void* stream) {
  return Enqueue({Kind::kAllGather, static_cast<const char*>(input), static_cast<char*>(output),
                  count, type, 0, 0},
                 comm, stream);
}

EXPORT int ncclReduceScatter(const void* input, void* output, size_t count, int type, int op,
                             Comm* comm, void* stream) {
  return Enqueue({Kind::kReduceScatter, static_cast<const char*>(input), static_cast<char*>(output),
                  count, type, op, 0},
                 comm, stream);
}

EXPORT int ncclGroupStart() {
  pending = {};
  pending.open = true;
  return kSuccess;
}

#ifndef FAKE_NCCL_BROKEN
EXPORT int ncclSend(const void* buffer, size_t count, int type, int peer, Comm* comm,
                    void* stream) {
  if (!pending.open || peer != pending.sends) return Fail(kInternal, "the fake wants all pairs");
  if (peer == 0) pending.send = buffer;
  ++pending.sends;
  pending.count = count;
  pending.type = type;
  pending.comm = comm;
  pending.stream = stream;
  return kSuccess;
}
#endif

EXPORT int ncclRecv(void* buffer, size_t, int, int peer, Comm*, void*) {
  if (!pending.open || peer != pending.receives) {
    return Fail(kInternal, "the fake wants all pairs");
  }
  if (peer == 0) pending.receive = buffer;
  ++pending.receives;
  return kSuccess;
}

EXPORT int ncclGroupEnd() {
  if (!pending.open) return Fail(kInvalidUsage, "no group is open");
  pending.open = false;
  if (!pending.launches.empty()) return Start(pending.launches, pending.launches[0].comm);
  if (pending.comm == nullptr) return kSuccess;
  if (pending.sends != pending.comm->group->size() || pending.receives != pending.sends) {
    return Fail(kInternal, "the fake wants all pairs");
  }
  return Enqueue({Kind::kPairs, static_cast<const char*>(pending.send),
                  static_cast<char*>(pending.receive), pending.count, pending.type, 0, 0},
                 pending.comm, pending.stream);
}

#ifndef FAKE_NCCL_OLD
EXPORT int ncclCommSplit(Comm* comm, int color, int key, Comm** out, Config* config) {
  if (config != nullptr) return Fail(kInvalidArgument, "the fake's parts inherit their settings");
  if (comm->state.load() != kSuccess) return Fail(kInvalidUsage, "the communicator is busy");
  if (color < -1) return Fail(kInvalidArgument, "no such color");
  if (comm->issued != comm->finished) return Fail(kInvalidUsage, "operations are in flight");
  int device = 0;
  if (cuCtxGetDevice(&device) != 0) return Fail(kCudaError, "no context");
  *out = nullptr;
  const bool hang = Asked("FAKE_NCCL_HANG_SPLIT", comm), fail = Asked("FAKE_NCCL_FAIL_SPLIT", comm);
  if (hang) Hang();
  if (fail) return kSystemError;
  auto group = comm->group->Split(color, key, HostHash(), device);
  if (group != nullptr) {
    auto* part = new Comm;
    part->group = std::move(group);
    *out = part;
  }
  return kSuccess;
}

EXPORT int ncclAlltoAll(const void* input, void* output, size_t count, int type, Comm* comm,
                        void* stream) {
  return Enqueue({Kind::kPairs, static_cast<const char*>(input), static_cast<char*>(output), count,
                  type, 0, 0},
                 comm, stream);
}

EXPORT int ncclMemAlloc(void** memory, size_t bytes) {
  unsigned long long number = 0;
  if (cuMemAlloc_v2(&number, bytes) != 0) return Fail(kCudaError, "no memory");
  *memory = reinterpret_cast<void*>(number);
  return kSuccess;
}

EXPORT int ncclMemFree(void* memory) {
  return cuMemFree_v2(reinterpret_cast<uintptr_t>(memory)) == 0 ? kSuccess : kCudaError;
}

EXPORT int ncclCommRegister(Comm* comm, void* buffer, size_t bytes, void** handle) {
  if (fake_cuda_is_device(buffer, bytes) == 0) return Fail(kInvalidArgument, "not on the GPU");
  *handle = comm;
  return kSuccess;
}

EXPORT int ncclCommDeregister(Comm* comm, void* handle) {
  return handle == comm ? kSuccess : Fail(kInvalidArgument, "not registered");
}
#endif
