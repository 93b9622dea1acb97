// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/cpu/communicator.h"
#include "runtime/nccl/nccl_communicator.h"
#include "tests/component/runtime/ranks.h"
#include "tests/support/paths.h"

namespace dtrain::runtime {

// How forked ranks tell each other something: memory that the fork shares.
class SharedBootstrap : public FullBootstrap {
 public:
  // Before the fork.
  static void* Reserve() {
    return mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  }
  SharedBootstrap(void* memory, int rank, int size)
      : board_(static_cast<Board*>(memory)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Result<std::vector<std::string>> Exchange(const std::string& mine, Deadline deadline) override {
    if (round_ >= kRounds || mine.size() > sizeof(Slot::bytes)) {
      return Error{DTRAIN_ERROR_INTERNAL, "the test's board is too small"};
    }
    auto& round = board_->rounds[round_++];
    Slot& slot = round.slots[rank_];
    slot.size = static_cast<uint32_t>(mine.size());
    std::memcpy(slot.bytes, mine.data(), mine.size());
    round.arrived.fetch_add(1);
    while (round.arrived.load() < size_) {
      if (std::chrono::steady_clock::now() > deadline) {
        return Error{DTRAIN_ERROR_TIMEOUT, "a rank did not come"};
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    std::vector<std::string> all;
    for (int r = 0; r < size_; ++r) all.emplace_back(round.slots[r].bytes, round.slots[r].size);
    return all;
  }

 private:
  static constexpr int kRounds = 64;
  static constexpr int kRanks = 8;
  struct Slot {
    uint32_t size;
    char bytes[4096];
  };
  struct Round {
    std::atomic<int> arrived;
    Slot slots[kRanks];
  };
  struct Board {
    Round rounds[kRounds];
  };

  Board* const board_;
  const int rank_;
  const int size_;
  int round_ = 0;
};

// Which of the fakes the ranks load.
inline std::map<std::string, std::string> FakeEnvironment(const std::string& nccl = "fake_nccl") {
  return {{"DTRAIN_CUDA_LIBRARY", LibraryPath("fake_cuda/libcuda.so.1")},
          {"DTRAIN_NCCL_LIBRARY", LibraryPath(nccl) + "/libnccl.so.2"}};
}

// An NCCL communicator with the one of the CPUs over which its ranks agree, as the engine has them.
class GpuGroup {
 public:
  static Result<std::unique_ptr<GpuGroup>> Make(FullBootstrap& bootstrap,
                                                const NcclOptions& options, Deadline deadline) {
    std::unique_ptr<GpuGroup> group(new GpuGroup);
    if (bootstrap.size() > 1) {
      CpuOptions one_node;
      one_node.node_of_rank.assign(static_cast<size_t>(bootstrap.size()), 0);
      auto control = CpuCommunicator::Make(bootstrap, one_node, deadline);
      if (!control.ok()) return control.error();
      group->control_ = std::move(*control);
    }
    group->told_->control = group->control_.get();
    const auto failed = [told = group->told_, rank = bootstrap.rank()](const Error& e) {
      const std::lock_guard lock(told->mutex);
      if (told->control == nullptr) return;
      told->control->Abort({e.code, "rank " + std::to_string(rank) + ": " + e.message});
    };
    auto device =
        NcclCommunicator::Make(bootstrap, group->control_.get(), options, failed, deadline);
    if (!device.ok()) return device.error();
    group->device_ = std::move(*device);
    return group;
  }

  ~GpuGroup() {
    device_.reset();
    const std::lock_guard lock(told_->mutex);
    told_->control = nullptr;
  }

  int rank() const { return device_->rank(); }
  int size() const { return device_->size(); }
  NcclCommunicator& device() { return *device_; }

  // Host buffers: done on return. Others: on the stream.
  MaybeError Run(const Collective& what, std::chrono::milliseconds timeout, Spent&) {
    if (what.kind == Collective::Kind::kBarrier) return Control(what, timeout);
    return RunAll({what}, timeout);
  }
  MaybeError RunTogether(const std::vector<Collective>& all, std::chrono::milliseconds timeout,
                         Spent&) {
    return RunAll(all, timeout);
  }
  MaybeError Finish() { return device_->AwaitAll(); }

  bool OnGpu(const void* buffer) const {
    Collective what;
    what.kind = Collective::Kind::kBroadcast;
    what.count = 1;
    what.root = -1;
    what.output = const_cast<void*>(buffer);
    const auto via = device_->ViaOf(what);
    return via.ok() && *via == Via::kDevice;
  }
  Result<void*> Allocate(size_t bytes) { return device_->Allocate(bytes, false); }
  MaybeError Free(void* memory) { return device_->Free(memory); }
  void Abort(const std::string& reason) { device_->Abort({DTRAIN_ERROR_DEVICE, reason}); }
  MaybeError failure() const { return device_->failure(); }
  std::string Description() const { return device_->Description(); }

 private:
  GpuGroup() = default;
  MaybeError Control(Collective what, std::chrono::milliseconds timeout) {
    if (control_ == nullptr) return std::nullopt;
    what.number = runs_++;
    Spent spent;
    MaybeError error = control_->Run(what, timeout, spent);
    // What has broken the group, and not how it was noticed here.
    if (error && device_->failure()) return device_->failure();
    return error;
  }
  MaybeError RunAll(const std::vector<Collective>& all, std::chrono::milliseconds timeout) {
    DeviceCommunicator::Work work;
    int32_t direct = 1;
    for (const Collective& what : all) {
      const auto mine = device_->ViaOf(what);
      if (!mine.ok()) return mine.error();
      direct &= *mine == Via::kDevice ? 1 : 0;
      auto after = device_->Record(what.stream);
      if (!after.ok()) return after.error();
      work.after.push_back(std::move(*after));
    }
    Collective agree;
    agree.kind = Collective::Kind::kAllreduce;
    agree.op = DTRAIN_MIN;
    agree.count = 1;
    agree.input = agree.output = &direct;
    if (MaybeError error = Control(agree, timeout)) return error;
    work.all = all;
    work.direct = direct == 1;
    auto ticket = device_->Launch(std::move(work), timeout, nullptr);
    if (!ticket.ok()) return ticket.error();
    for (const Collective& what : all) {
      if (MaybeError error = device_->Join(*ticket, what.stream)) return error;
    }
    return std::nullopt;
  }

  // Who hears of a failure, on any thread.
  struct Told {
    std::mutex mutex;
    Communicator* control = nullptr;
  };
  const std::shared_ptr<Told> told_ = std::make_shared<Told>();
  std::unique_ptr<CpuCommunicator> control_;
  std::unique_ptr<NcclCommunicator> device_;
  uint64_t runs_ = 0;
};

// One forked rank's view of an NCCL test.
struct NcclRank {
  int rank;
  int size;
  SharedBootstrap bootstrap;
  Variables start = VariablesOf("");  // what the launcher gave, for tests of that

  NcclOptions options() const {
    auto options = ReadNcclOptions(getenv, start);
    EXPECT_TRUE(options.ok()) << options.error().message;
    options->local_rank = rank;
    options->node = "one";
    return *options;
  }
  static Deadline In(int seconds) {
    return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  }
  // The tests of what hangs do not wait for the usual ten seconds.
  Result<std::unique_ptr<GpuGroup>> Make(
      std::chrono::milliseconds longest_end = NcclOptions().longest_end) {
    NcclOptions chosen = options();
    chosen.longest_end = longest_end;
    return GpuGroup::Make(bootstrap, chosen, In(30));
  }
};

// Forks `n` ranks of one machine. How each ended.
inline std::vector<int> RunNccl(int n, const std::map<std::string, std::string>& environment,
                                const std::function<void(NcclRank&)>& body,
                                std::map<int, int> ends = {}) {
  void* board = SharedBootstrap::Reserve();
  RanksOptions options = Ending(std::move(ends));
  options.environment = environment;
  return Ranks::Run(
      n,
      [&](int rank) {
        NcclRank self{rank, n, SharedBootstrap(board, rank, n)};
        body(self);
      },
      options);
}

// Memory of the GPU that holds what a test put there. The context is made by the communicator.
class GpuBuffer {
 public:
  GpuBuffer(GpuGroup& communicator, size_t bytes) : communicator_(communicator) {
    auto memory = communicator.Allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.error().message;
    if (memory.ok()) memory_ = *memory;
  }
  ~GpuBuffer() {
    const MaybeError error = communicator_.Free(memory_);
    EXPECT_FALSE(error) << error->message;
  }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;

  char* get() const { return static_cast<char*>(memory_); }

 private:
  GpuGroup& communicator_;
  void* memory_ = nullptr;
};

// Copies that are over on return, behind what `stream` has.
class Driver {
 public:
  explicit Driver(int rank) : cuda_((*LoadLibraries())->cuda) {
    auto device = Device::Open(cuda_, rank, std::nullopt);
    EXPECT_TRUE(device.ok()) << device.error().message;
    device_ = std::move(*device);
    const Device::Scope scope(*device_);
    EXPECT_EQ(cuda_.event_create(&event_, 0), 0);
  }
  void Put(void* gpu, const void* host, size_t bytes, abi::CuStream stream = nullptr) const {
    const Device::Scope scope(*device_);
    EXPECT_EQ(cuda_.copy_to_device(reinterpret_cast<uintptr_t>(gpu), host, bytes, stream), 0);
    Await(stream);
  }
  void Get(void* host, const void* gpu, size_t bytes, abi::CuStream stream = nullptr) const {
    const Device::Scope scope(*device_);
    EXPECT_EQ(cuda_.copy_to_host(host, reinterpret_cast<uintptr_t>(gpu), bytes, stream), 0);
    Await(stream);
  }
  const Device& device() const { return *device_; }
  // Not freed.
  void* Allocate(size_t bytes) const {
    const Device::Scope scope(*device_);
    abi::CuDevicePointer memory = 0;
    EXPECT_EQ(cuda_.mem_alloc(&memory, bytes), 0);
    return reinterpret_cast<void*>(memory);
  }
  void* AllocateOn(int gpu, size_t bytes) const {
    abi::CuDevice device = 0;
    abi::CuContext context = nullptr;
    EXPECT_EQ(cuda_.device_get(&device, gpu), 0);
    EXPECT_EQ(cuda_.primary_retain(&context, device), 0);
    EXPECT_EQ(cuda_.context_push(context), 0);
    abi::CuDevicePointer memory = 0;
    EXPECT_EQ(cuda_.mem_alloc(&memory, bytes), 0);
    EXPECT_EQ(cuda_.context_pop(&context), 0);
    return reinterpret_cast<void*>(memory);
  }
  abi::CuStream NewStream() const {
    const Device::Scope scope(*device_);
    abi::CuStream stream = nullptr;
    EXPECT_EQ(cuda_.stream_create(&stream, 1, 0), 0);
    return stream;
  }

  // Whether the stream has nothing left to do: only a marker that is through at once tells.
  bool Idle(abi::CuStream stream) const {
    const Device::Scope scope(*device_);
    EXPECT_EQ(cuda_.event_record(event_, stream), 0);
    const auto end = NcclRank::In(1);
    while (std::chrono::steady_clock::now() < end) {
      if (cuda_.event_query(event_) == abi::kCudaSuccess) return true;
    }
    return false;
  }

 private:
  void Await(abi::CuStream stream) const {
    EXPECT_EQ(cuda_.event_record(event_, stream), 0);
    while (cuda_.event_query(event_) == abi::kCudaNotReady) std::this_thread::yield();
  }

  const CudaApi& cuda_;
  std::unique_ptr<Device> device_;
  abi::CuEvent event_ = nullptr;
};

}  // namespace dtrain::runtime
