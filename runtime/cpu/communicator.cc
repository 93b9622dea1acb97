// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/communicator.h"

#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/base/signal_guard.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;

constexpr std::chrono::milliseconds kLook{50};

// With blocks of different lengths: elements [first], [first + step] and so on of its counts.
size_t BytesOfBlocks(const Collective& what, size_t size, size_t first, size_t step) {
  size_t elements = 0;
  for (size_t i = 0; i < size; ++i) elements += what.counts[first + i * step];
  return elements * ElementSize(what.type);
}

size_t InputBytes(const Collective& what, size_t size, size_t rank) {
  if (what.alike) return what.counts[rank * size] * ElementSize(what.type);
  if (what.counts != nullptr) return BytesOfBlocks(what, size, rank * size, 1);
  const bool blocks = what.kind == Kind::kReduceScatter || what.kind == Kind::kAlltoall;
  return what.count * ElementSize(what.type) * (blocks ? size : 1);
}

size_t OutputBytes(const Collective& what, size_t size, size_t rank) {
  if (what.counts != nullptr) return BytesOfBlocks(what, size, rank, size);
  const bool blocks = what.kind == Kind::kAllgather || what.kind == Kind::kAlltoall;
  return what.count * ElementSize(what.type) * (blocks ? size : 1);
}

}  // namespace

// Once all members are there.
MaybeError CpuCommunicator::Begin() {
  if (places_.node_count() == 1) {
    within_ = std::make_unique<Within>(*group_, *memory_, direct_);
    return std::nullopt;
  }
  across_ = std::make_unique<Across>(places_, *group_, *memory_, mesh_.get(), direct_,
                                     Across::LaneBytes(places_));
  if (mesh_ == nullptr) return std::nullopt;
  AllSignalsBlocked blocked;
  try {
    carrier_out_ = std::thread([this] { CarryOut(); });
    carrier_in_ = std::thread([this] { CarryIn(); });
  } catch (const std::system_error& e) {
    return Error{DTRAIN_ERROR_RESOURCES,
                 std::string("cannot start the threads that carry failures between nodes: ") +
                     e.what() + "; see ulimit -u and pids.max of the cgroup"};
  }
  return std::nullopt;
}

// Failures on this node, and that a rank of it leaves, to the other nodes.
void CpuCommunicator::CarryOut() {
  bool told = false;
  while (!leaving_.load()) {
    if (const MaybeError error = group_->failure()) {
      return mesh_->Abort(*error, group_->failed_number());
    }
    if (const auto leaver = told ? std::nullopt : group_->leaver()) {
      mesh_->TellLeaving(*leaver);
      told = true;
    }
    group_->AwaitFailure(kLook);
  }
  // This rank may leave because of one that this thread has not seen yet.
  if (const MaybeError error = group_->failure()) mesh_->Abort(*error, group_->failed_number());
}

// Theirs to this node: its ranks, this leader among them, shall not wait any longer.
void CpuCommunicator::CarryIn() {
  const auto hear = [this](const Leaver& leaver) { Hear(leaver); };
  MaybeError error = mesh_->Listen(hear, Deadline::max());
  if (!error) return;
  // Between collectives others may close their connections in good order.
  while (!mesh_->told() && !leaving_.load() && !running_.load() && !occupied_.load() &&
         !group_->failure()) {
    MaybeError more = mesh_->Listen(hear, std::chrono::steady_clock::now() + kLook);
    if (mesh_->told()) error = more;
  }
  if (leaving_.load()) return;
  const std::lock_guard<std::mutex> lock(current_mutex_);
  const uint32_t number = mesh_->told() ? mesh_->told_number() : number_.load();
  // A member that was faster has done its part of what is running.
  if (running_.load() && !Reached(number_.load(), number)) {
    later_ = error;
  } else {
    group_->Fail(*error, number);
  }
}

void CpuCommunicator::Hear(const Leaver& leaver) {
  const std::lock_guard<std::mutex> lock(current_mutex_);
  group_->SetFarLeaver(leaver);
  if (!running_.load()) return;
  if (const MaybeError error = group_->CheckFarLeaver(current_)) {
    group_->Fail(*error, number_.load());
  }
}

void CpuCommunicator::SayLeaving() { group_->SayLeaving(runs_); }

CpuCommunicator::~CpuCommunicator() {
  if (mesh_ == nullptr) return;
  leaving_.store(true);
  mesh_->StopListening();
  if (carrier_in_.joinable()) carrier_in_.join();
  if (carrier_out_.joinable()) carrier_out_.join();
  mesh_->Close();
}

Descriptor CpuCommunicator::Describe(const Collective& what) const {
  const auto size = static_cast<size_t>(size_), rank = static_cast<size_t>(rank_);
  Descriptor request{};
  request.what = OutlineOf(what);
  request.at.input = reinterpret_cast<uint64_t>(what.input);
  request.at.output = reinterpret_cast<uint64_t>(what.output);
  request.at.input_at = request.at.output_at = Descriptor::kElsewhere;
  if (arena_ == nullptr) return request;
  if (const auto at = arena_->Find(what.input, InputBytes(what, size, rank))) {
    request.at.input_at = static_cast<int64_t>(*at);
  }
  if (const auto at = arena_->Find(what.output, OutputBytes(what, size, rank))) {
    request.at.output_at = static_cast<int64_t>(*at);
  }
  return request;
}

MaybeError CpuCommunicator::Run(const Collective& what, std::chrono::milliseconds timeout,
                                Spent& spent) {
  const Deadline begin = spent.begin_ns != 0 ? Deadline(std::chrono::nanoseconds(spent.begin_ns))
                                             : std::chrono::steady_clock::now();
  Work work{what, Describe(what), begin + timeout, spent, what.op == DTRAIN_AVG ? size_ : 1.0};
  const auto number = static_cast<uint32_t>(work.request.what.number);
  number_.store(number);
  runs_ = number + 1;
  // Its waits alone would not tell, while all come.
  MaybeError error = failure();
  if (error) return error;
  if (within_ != nullptr) {
    error = within_->Run(work);
  } else {
    {
      const std::lock_guard<std::mutex> lock(current_mutex_);
      current_ = what;
      running_.store(true);
      error = group_->CheckFarLeaver(what);
    }
    if (!error) error = across_->Run(work);
    const std::lock_guard<std::mutex> lock(current_mutex_);
    running_.store(false);
    if (later_) group_->Fail(*later_, number + 1);
  }
  if (!error) {
    number_.store(number + 1);
    return std::nullopt;
  }
  Break(*error);
  return group_->failure();
}

// The first reason counts, for this rank too: what follows from it is not worth a word.
void CpuCommunicator::Break(const Error& error) {
  group_->Fail(error, number_.load());
  if (mesh_ != nullptr) mesh_->Abort(*group_->failure(), group_->failed_number());
}

void CpuCommunicator::Abort(const Error& reason) { Break(reason); }

MaybeError CpuCommunicator::Look() {
  if (MaybeError error = failure()) return error;
  const MaybeError lost = occupied_.load() ? group_->CheckProcesses() : std::nullopt;
  if (!lost) return std::nullopt;
  Break(*lost);
  return failure();
}

Result<void*> CpuCommunicator::Allocate(size_t bytes) {
  if (arena_ == nullptr) return nullptr;
  if (void* memory = arena_->Alloc(bytes)) return memory;
  return Error{DTRAIN_ERROR_RESOURCES,
               "no room for " + std::to_string(bytes) + " bytes of shared memory"};
}

MaybeError CpuCommunicator::Free(void* memory) {
  if (arena_ != nullptr && arena_->Free(memory)) return std::nullopt;
  return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "this memory is not from dtrain_alloc, or free"};
}

}  // namespace dtrain::runtime
