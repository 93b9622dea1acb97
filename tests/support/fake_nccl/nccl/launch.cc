// SPDX-License-Identifier: Apache-2.0
// From calls to kernels on streams.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <utility>

#include "tests/support/fake_nccl/cuda/fake_cuda.h"
#include "tests/support/fake_nccl/nccl/group.h"
#include "tests/support/fake_nccl/nccl/knobs.h"

namespace fake_nccl {
namespace {

constexpr unsigned kCopyBit = 1U << 15;  // of communicators that have one rank

// All that one group gives to one communicator, as one kernel.
struct Kernel {
  std::shared_ptr<Line> line;
  std::vector<Operation> operations;
  std::vector<Transfer> transfers;
  Registered registered;  // of their buffers
  bool captured = false;
  bool stalls = false;  // never ends by itself

  std::mutex mutex;
  std::deque<int> turns;  // one for each launch

  ~Kernel() {
    if (captured) line->captured.fetch_sub(1);
  }
};

// Whether the kernel has been told to end, or is lost with its context. A peer that died ends
// nothing: where the proxy is made to notice it, that only says so.
bool Told(Line& line) {
  if (line.abort.load() || fake_cuda_lost(line.device) != 0) return true;
  static const bool notices = Number("FAKE_NCCL_PROXY_NOTICES", 0) != 0;
  if (!notices || line.proxy_error.load() != kSuccess) return false;
  for (int r = 0; r < line.world->size(); ++r) {
    if (!line.world->Lives(r)) line.proxy_error.store(kRemoteError);
  }
  return false;
}

bool HasFooting(const Kernel& kernel) {
  const auto gone = [](const auto& registration) { return registration->gone.load(); };
  if (std::none_of(kernel.registered.begin(), kernel.registered.end(), gone)) return true;
  TheWitness().lost_footing.fetch_add(1);
  return false;
}

bool Usable(const Kernel& kernel) {
  const World& world = *kernel.line->world;
  const int device = kernel.line->device;
  const auto usable = [&](const void* pointer, size_t bytes) {
    return bytes == 0 || fake_cuda_usable(pointer, bytes, device) != 0;
  };
  for (const Operation& o : kernel.operations) {
    const Extent extent = ExtentOf(o, world.rank(), world.size());
    if (!usable(o.input, extent.input) || !usable(o.output, extent.output)) return false;
    const auto both = reinterpret_cast<uintptr_t>(o.input) | reinterpret_cast<uintptr_t>(o.output);
    if (both % ElementSize(o.type) != 0) return false;
  }
  for (const Transfer& t : kernel.transfers) {
    if (!usable(t.from != nullptr ? t.from : t.to, t.bytes)) return false;
  }
  return true;
}

void RunKernel(Kernel& kernel) {
  Line& line = *kernel.line;
  int turn = 0;
  {
    const std::lock_guard lock(kernel.mutex);
    turn = kernel.turns.front();
    kernel.turns.pop_front();
  }
  {
    // What comes before it may have been dropped with the context.
    std::unique_lock lock(line.mutex);
    while (line.finished != turn && fake_cuda_lost(line.device) == 0) {
      line.changed.wait_for(lock, std::chrono::milliseconds(5));
    }
  }
  const auto stop = [&line] { return Told(line); };
  if (!stop()) {
    if (!HasFooting(kernel) || !Usable(kernel)) {
      fake_cuda_fault(line.device);
    } else if (kernel.stalls) {
      for (Pause pause; !stop(); pause()) {
      }
    } else {
      for (const Operation& o : kernel.operations) RunCollective(*line.world, o, stop);
      RunTransfers(*line.world, kernel.transfers, stop);
      if (!stop() && !HasFooting(kernel)) fake_cuda_fault(line.device);
    }
  }
  const std::lock_guard lock(line.mutex);
  ++line.finished;
  line.changed.notify_all();
}

int Submit(const std::shared_ptr<Kernel>& kernel, void* stream) {
  auto* const held = new std::shared_ptr<Kernel>(kernel);
  const fake_cuda_kernel entry = {
      [](void* argument) {
        Kernel& launched = **static_cast<std::shared_ptr<Kernel>*>(argument);
        const std::lock_guard lock(launched.line->mutex);
        const std::lock_guard own(launched.mutex);
        launched.turns.push_back(launched.line->issued++);
        Most(TheWitness().in_flight, launched.line->issued - launched.line->finished);
      },
      [](void* argument) { RunKernel(**static_cast<std::shared_ptr<Kernel>*>(argument)); },
      [](void* argument) { delete static_cast<std::shared_ptr<Kernel>*>(argument); }, held};
  return fake_cuda_submit(stream, &entry) == 0 ? kSuccess
                                               : Fail(kCudaError, "the kernel was not launched");
}

unsigned BitsOf(const std::vector<DeviceTask>& tasks) {
  unsigned bits = 0;
  for (const DeviceTask& task : tasks) {
    if (task.operation) bits |= 1U << static_cast<unsigned>(task.operation->kind);
  }
  return bits;
}

// Which connection a transfer needs, seen from this rank.
std::atomic<uint8_t>& PairOf(World& world, const Transfer& t, bool mine) {
  const bool send = t.from != nullptr;
  const int from = send ? world.rank() : t.peer, to = send ? t.peer : world.rank();
  return world.shared().pairs[from][to][send == mine ? 0 : 1];
}

int NewPairs(World& world, const std::vector<DeviceTask>& tasks) {
  int fresh = 0;
  for (const DeviceTask& task : tasks) {
    if (!task.operation && task.transfer.peer != world.rank() &&
        PairOf(world, task.transfer, true).load() == 0) {
      ++fresh;
    }
  }
  return fresh;
}

// The calling thread waits for the other ranks, and looks at the abort flag meanwhile.
int Connect(ncclComm& comm, const std::vector<DeviceTask>& tasks) {
  World& world = *comm.line->world;
  const unsigned fresh = TheProfile().lazy_connect ? BitsOf(tasks) & ~comm.connected : 0;
  const int pairs = NewPairs(world, tasks);
  if (fresh == 0 && pairs == 0) return kSuccess;
  TheWitness().connects.fetch_add(1);
  world.mine().connected.fetch_or(fresh);
  for (int r = 0; r < world.size(); ++r) {
    for (Pause pause; (world.entry(r).connected.load() & fresh) != fresh; pause()) {
      if (Stopped(comm)) return Fail(kInternalError, "aborted while it connected");
    }
  }
  comm.connected |= fresh;
  for (const DeviceTask& task : tasks) {
    if (!task.operation) PairOf(world, task.transfer, true).store(1);
  }
  for (const DeviceTask& task : tasks) {
    if (task.operation || task.transfer.peer == world.rank()) continue;
    for (Pause pause; PairOf(world, task.transfer, false).load() == 0; pause()) {
      if (Stopped(comm)) return Fail(kInternalError, "aborted while it connected");
    }
  }
  return kSuccess;
}

// The hardware queue is full: nothing but its own progress ends this wait.
void AwaitRoom(ncclComm& comm) {
  static const int depth = Number("FAKE_NCCL_DEPTH", 512);
  if (comm.line->unfinished() < depth) return;
  TheWitness().full.fetch_add(1);
  Line& line = *comm.line;
  std::unique_lock lock(line.mutex);
  line.changed.wait(lock, [&] { return line.issued - line.finished < depth; });
}

// "rank:operation:code": from that operation on nothing ends, and the proxy has an error.
bool Injected(ncclComm& comm, int operations) {
  const char* text = getenv("FAKE_NCCL_ASYNC_ERROR");
  int rank = -1, operation = -1, code = 0;
  if (text == nullptr || sscanf(text, "%d:%d:%d", &rank, &operation, &code) != 3) return false;
  if (rank != comm.rank || operation < comm.operations - operations ||
      operation >= comm.operations) {
    return false;
  }
  Fail(code, "injected");
  comm.line->proxy_error.store(code);
  return true;
}

// A copy on the stream; nothing in place.
int CopyAlone(const DeviceTask& task) {
  const Operation& o = *task.operation;
  const size_t bytes = o.count * ElementSize(o.type);
  if (o.input == o.output || bytes == 0) return kSuccess;
  const int code = cuMemcpyDtoDAsync_v2(reinterpret_cast<uintptr_t>(o.output),
                                        reinterpret_cast<uintptr_t>(o.input), bytes, task.stream);
  return code == 0 ? kSuccess : Fail(kCudaError, "the copy was refused");
}

// `all` run after each other's work, and go on after `first`'s.
class JoinedStreams {
 public:
  JoinedStreams(void* first, std::vector<void*> others)
      : first_(first), others_(std::move(others)) {
    for (void* other : others_) Order(other, first_);
  }
  ~JoinedStreams() {
    for (void* other : others_) Order(first_, other);
  }
  JoinedStreams(const JoinedStreams&) = delete;
  JoinedStreams& operator=(const JoinedStreams&) = delete;

 private:
  static void Order(void* before, void* after) {
    void* event = nullptr;
    cuEventCreate(&event, 2);
    cuEventRecord(event, before);
    cuStreamWaitEvent(after, event, 0);
    cuEventDestroy_v2(event);
  }
  void* const first_;
  const std::vector<void*> others_;
};

}  // namespace

bool WouldConnect(const ncclComm& comm, const std::vector<DeviceTask>& tasks) {
  const unsigned fresh = TheProfile().lazy_connect ? BitsOf(tasks) & ~comm.connected : 0;
  return comm.size > 1 && (fresh != 0 || NewPairs(*comm.line->world, tasks) != 0);
}

int Launch(ncclComm& comm, std::vector<DeviceTask> tasks) {
  std::erase_if(tasks, [](const DeviceTask& task) { return task.bytes == 0; });
  if (tasks.empty()) return kSuccess;
  const CommContext context(comm.device);
  // Nothing but size decides which member of a group meets which.
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const DeviceTask& a, const DeviceTask& b) { return a.bytes > b.bytes; });
  std::vector<void*> others;
  for (const DeviceTask& task : tasks) {
    if (task.stream != tasks[0].stream &&
        std::find(others.begin(), others.end(), task.stream) == others.end()) {
      others.push_back(task.stream);
    }
  }
  const JoinedStreams joined(tasks[0].stream, others);
  comm.operations += static_cast<int>(tasks.size());
  const bool stalls = Injected(comm, static_cast<int>(tasks.size()));
  if (comm.size == 1 && !stalls && tasks[0].operation) {
    for (const DeviceTask& task : tasks) {
      if (const int code = CopyAlone(task)) return code;
    }
    comm.connected |= kCopyBit;
    return kSuccess;
  }
  if (const int code = Connect(comm, tasks)) return code;
  const auto kernel = std::make_shared<Kernel>();
  kernel->line = comm.line;
  kernel->stalls = stalls;
  for (const DeviceTask& task : tasks) {
    if (!task.operation) {
      kernel->transfers.push_back(task.transfer);
      continue;
    }
    kernel->operations.push_back(*task.operation);
    if (const int code = ExchangeRegistered(comm, *task.operation, kernel->registered)) return code;
  }
  if (const int code = ExchangeRegistered(comm, kernel->transfers, kernel->registered)) return code;
  AwaitRoom(comm);
  if (fake_cuda_capturing(tasks[0].stream) != 0) {
    kernel->captured = true;
    comm.line->captured.fetch_add(1);
  }
  return Submit(kernel, tasks[0].stream);
}

}  // namespace fake_nccl
