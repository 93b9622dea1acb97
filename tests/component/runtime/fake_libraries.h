// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/component/runtime/ranks.h"
#include "tests/support/fake_nccl/cuda/fake_cuda.h"
#include "tests/support/paths.h"

// The fake libraries, called without libdtrain.
namespace dtrain::runtime::fakes {

using Comm = void*;
using Stream = void*;
using Event = void*;
using Address = unsigned long long;

inline Stream const kLegacy = nullptr;
constexpr unsigned kOrdered = 0, kFree = 1;  // with the legacy stream

constexpr int kMostSteps = 32;

// What forked ranks share beside the libraries.
struct Board {
  std::atomic<int> arrived[kMostSteps];
  std::atomic<int> numbers[kMostSteps];  // for the test
  char ids[8][128];

  static Board* Reserve() {
    void* page =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(page, MAP_FAILED);
    return new (page) Board();
  }
};

// Whether it comes true in time.
inline bool Becomes(const std::function<bool()>& condition,
                    std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// A call on a thread of its own, which may never come back.
class Beside {
 public:
  explicit Beside(std::function<int()> call) {
    std::thread([state = state_, call = std::move(call)] {
      state->code.store(call());
      state->done.store(true);
    }).detach();
  }
  // Long enough that a call which returns at all has returned.
  bool Hangs() const {
    return !Becomes([this] { return state_->done.load(); }, std::chrono::milliseconds(300));
  }
  bool Ends() const {
    return Becomes([this] { return state_->done.load(); });
  }
  bool done() const { return state_->done.load(); }
  int code() const { return state_->code.load(); }

 private:
  struct State {
    std::atomic<bool> done{false};
    std::atomic<int> code{-1};
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

class Cuda {
 public:
  // The thread works on that GPU from now on.
  explicit Cuda(int device) {
    library_ = dlopen(LibraryPath("fake_cuda/libcuda.so.1").c_str(), RTLD_NOW);
    EXPECT_NE(library_, nullptr) << dlerror();
    EXPECT_EQ(Get<int(unsigned)>("cuInit")(0), 0);
    Use(device);
  }
  template <typename Function>
  Function* Get(const char* name) const {
    void* found = dlsym(library_, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }
  void Use(int device) const {
    void* context = nullptr;
    EXPECT_EQ((Get<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device)), 0);
    EXPECT_EQ(Get<int(void*)>("cuCtxSetCurrent")(context), 0);
  }
  Stream MakeStream(unsigned flags) const {
    Stream stream = nullptr;
    EXPECT_EQ((Get<int(void**, unsigned)>("cuStreamCreate")(&stream, flags)), 0);
    return stream;
  }
  Event MakeEvent() const {
    Event event = nullptr;
    EXPECT_EQ((Get<int(void**, unsigned)>("cuEventCreate")(&event, 2)), 0);
    return event;
  }
  int Record(Event event, Stream stream) const {
    return Get<int(void*, void*)>("cuEventRecord")(event, stream);
  }
  int Query(Event event) const { return Get<int(void*)>("cuEventQuery")(event); }
  int Wait(Stream stream, Event event) const {
    return Get<int(void*, void*, unsigned)>("cuStreamWaitEvent")(stream, event, 0);
  }
  int QueryStream(Stream stream) const { return Get<int(void*)>("cuStreamQuery")(stream); }
  int Synchronize(Stream stream) const { return Get<int(void*)>("cuStreamSynchronize")(stream); }
  char* Allocate(size_t bytes) const {
    Address memory = 0;
    EXPECT_EQ((Get<int(Address*, size_t)>("cuMemAlloc_v2")(&memory, bytes)), 0);
    return reinterpret_cast<char*>(memory);
  }
  int Free(void* memory) const { return Get<int(Address)>("cuMemFree_v2")(Number(memory)); }
  int Memset(void* memory, unsigned char value, size_t bytes) const {
    return Get<int(Address, unsigned char, size_t)>("cuMemsetD8_v2")(Number(memory), value, bytes);
  }
  int ToDevice(void* to, const void* from, size_t bytes, Stream stream) const {
    return Get<int(Address, const void*, size_t, void*)>("cuMemcpyHtoDAsync_v2")(Number(to), from,
                                                                                 bytes, stream);
  }
  int ToHost(void* to, const void* from, size_t bytes, Stream stream) const {
    return Get<int(void*, Address, size_t, void*)>("cuMemcpyDtoHAsync_v2")(to, Number(from), bytes,
                                                                           stream);
  }
  template <typename T>
  void Put(void* to, const std::vector<T>& values, Stream stream) const {
    EXPECT_EQ(ToDevice(to, values.data(), values.size() * sizeof(T), stream), 0);
  }
  template <typename T>
  std::vector<T> Take(const void* from, size_t count, Stream stream) const {
    std::vector<T> values(count);
    EXPECT_EQ(ToHost(values.data(), from, count * sizeof(T), stream), 0);
    return values;
  }
  int faults() const { return __atomic_load_n(Get<int>("fake_cuda_faults"), __ATOMIC_SEQ_CST); }

  static Address Number(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

 private:
  void* library_ = nullptr;
};

// A kernel that ends when it is told to.
class Block {
 public:
  Block(const Cuda& cuda, Stream stream) {
    const fake_cuda_kernel kernel = {[](void*) {},
                                     [](void* argument) {
                                       while (!static_cast<std::atomic<bool>*>(argument)->load())
                                         std::this_thread::yield();
                                     },
                                     [](void*) {}, open_};
    EXPECT_EQ((cuda.Get<int(void*, const fake_cuda_kernel*)>("fake_cuda_submit")(stream, &kernel)),
              0);
  }
  ~Block() { Open(); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void Open() { open_->store(true); }

 private:
  std::atomic<bool>* const open_ =
      new std::atomic<bool>(false);  // not freed: it may look once more
};

struct UniqueId {
  char bytes[128];
};

struct Config {
  size_t size = 24;
  unsigned magic = 0xcafebeef;
  unsigned version = 21403;
  int blocking = 1;
  int unset = INT_MIN;
};

// One forked rank with both libraries.
class Rank : public Cuda {
 public:
  Rank(int rank, int size, const std::string& folder, Board* board)
      : Rank(rank, size, folder, board, rank) {}
  Rank(int rank, int size, const std::string& folder, Board* board, int device)
      : Cuda(device), rank(rank), size(size), board_(board) {
    const std::string file = LibraryPath(folder) + "/libnccl.so.2";
    nccl_ = dlopen(file.c_str(), RTLD_NOW);
    EXPECT_NE(nccl_, nullptr) << dlerror();
  }

  template <typename Function>
  Function* Nccl(const char* name) const {
    void* found = dlsym(nccl_, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }
  int Seen(const char* name) const { return Nccl<int(const char*)>("fake_nccl_count")(name); }

  // Returns when all ranks have come here. The steps are the same on all.
  void Meet() {
    auto& arrived = board_->arrived[step_++];
    arrived.fetch_add(1);
    EXPECT_TRUE(Becomes([&] { return arrived.load() >= size; })) << "step " << step_;
  }
  std::atomic<int>& number(int which) const { return board_->numbers[which]; }

  // All ranks, at once.
  UniqueId ShareId() {
    UniqueId& shared = reinterpret_cast<UniqueId&>(board_->ids[ids_++]);
    if (rank == 0) {
      UniqueId id;
      EXPECT_EQ(Nccl<int(UniqueId*)>("ncclGetUniqueId")(&id), 0);
      shared = id;
    }
    Meet();
    return shared;
  }
  int Init(Comm* comm, const UniqueId& id, int blocking = 1) const {
    Config config;
    config.blocking = blocking;
    return Nccl<int(Comm*, int, UniqueId, int, Config*)>("ncclCommInitRankConfig")(comm, size, id,
                                                                                   rank, &config);
  }
  Comm Make(int blocking = 1) {
    Comm comm = nullptr;
    const int code = Init(&comm, ShareId(), blocking);
    EXPECT_TRUE(code == 0 || code == 7) << code << ": " << LastError();
    if (blocking == 0) {
      EXPECT_EQ(Settle(comm), 0);
    }
    return comm;
  }
  int State(Comm comm) const {
    int state = -1;
    EXPECT_EQ((Nccl<int(Comm, int*)>("ncclCommGetAsyncError")(comm, &state)), 0);
    return state;
  }
  int Settle(Comm comm) const {
    int state = 7;
    EXPECT_TRUE(Becomes([&] { return (state = State(comm)) != 7; }));
    return state;
  }
  int AllReduce(Comm comm, const void* in, void* out, size_t count, Stream stream) const {
    constexpr int kInt32 = 2, kSum = 0;
    return Nccl<int(const void*, void*, size_t, int, int, Comm, Stream)>("ncclAllReduce")(
        in, out, count, kInt32, kSum, comm, stream);
  }
  int Broadcast(Comm comm, const void* in, void* out, size_t count, Stream stream) const {
    constexpr int kInt32 = 2;
    return Nccl<int(const void*, void*, size_t, int, int, Comm, Stream)>("ncclBroadcast")(
        in, out, count, kInt32, 0, comm, stream);
  }
  int Split(Comm comm, int color, Comm* part) const {
    return Nccl<int(Comm, int, int, Comm*, Config*)>("ncclCommSplit")(comm, color, 0, part,
                                                                      nullptr);
  }
  int Start() const { return Nccl<int()>("ncclGroupStart")(); }
  int End() const { return Nccl<int()>("ncclGroupEnd")(); }
  int Finalize(Comm comm) const { return Nccl<int(Comm)>("ncclCommFinalize")(comm); }
  int Destroy(Comm comm) const { return Nccl<int(Comm)>("ncclCommDestroy")(comm); }
  int Abort(Comm comm) const { return Nccl<int(Comm)>("ncclCommAbort")(comm); }
  const char* LastError() const { return Nccl<const char*(Comm)>("ncclGetLastError")(nullptr); }

  const int rank, size;

 private:
  void* nccl_ = nullptr;
  Board* const board_;
  int step_ = 0, ids_ = 0;
};

inline std::vector<int> RunRanks(int n, const std::string& folder,
                                 const std::function<void(Rank&)>& body,
                                 std::map<std::string, std::string> environment = {},
                                 std::map<int, int> ends = {}) {
  Board* const board = Board::Reserve();
  RanksOptions options = Ending(std::move(ends));
  options.environment = std::move(environment);
  options.deadline = std::chrono::seconds(40);
  const int gpus = options.environment.count("FAKE_CUDA_DEVICES") != 0
                       ? std::stoi(options.environment["FAKE_CUDA_DEVICES"])
                       : 8;
  auto ended = Ranks::Run(
      n,
      [&](int rank) {
        Rank self(rank, n, folder, board, rank % gpus);
        body(self);
      },
      options);
  munmap(board, sizeof(Board));
  return ended;
}

}  // namespace dtrain::runtime::fakes
