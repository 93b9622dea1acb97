// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/communicator.h"

#include <optional>
#include <utility>

#include "runtime/base/signal_guard.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;

constexpr std::chrono::milliseconds kLook{50};

size_t InputBytes(const Collective& what, size_t size) {
  const bool blocks = what.kind == Kind::kReduceScatter || what.kind == Kind::kAlltoall;
  return what.count * WidthOf(what.type) * (blocks ? size : 1);
}

size_t OutputBytes(const Collective& what, size_t size) {
  const bool blocks = what.kind == Kind::kAllgather || what.kind == Kind::kAlltoall;
  return what.count * WidthOf(what.type) * (blocks ? size : 1);
}

}  // namespace

// Once all members are there.
void CpuCommunicator::Begin() {
  if (places_.node_count() == 1) {
    within_ = std::make_unique<Within>(*group_, *memory_, direct_);
    return;
  }
  across_ = std::make_unique<Across>(places_, *group_, *memory_, mesh_.get(), direct_,
                                     Across::LaneBytes(places_));
  if (mesh_ == nullptr) return;
  AllSignalsBlocked blocked;
  carrier_out_ = std::thread([this] { CarryOut(); });
  carrier_in_ = std::thread([this] { CarryIn(); });
}

// Failures on this node to the other nodes.
void CpuCommunicator::CarryOut() {
  while (!leaving_.load()) {
    if (const MaybeError error = group_->failure()) return mesh_->Abort(*error);
    group_->AwaitFailure(kLook);
  }
}

// Theirs to this node: its ranks, this leader among them, shall not wait any longer.
void CpuCommunicator::CarryIn() {
  const MaybeError error = mesh_->Listen();
  if (!error) return;
  // Between collectives others may leave in good order.
  while (!leaving_.load() && !running_.load() && !group_->failure()) group_->AwaitFailure(kLook);
  if (!leaving_.load()) group_->Fail(*error);
}

CpuCommunicator::~CpuCommunicator() {
  if (mesh_ == nullptr) return;
  leaving_.store(true);
  mesh_->StopListening();
  if (carrier_in_.joinable()) carrier_in_.join();
  if (carrier_out_.joinable()) carrier_out_.join();
  mesh_->Close();
}

Descriptor CpuCommunicator::Describe(const Collective& what) const {
  const auto size = static_cast<size_t>(size_);
  Descriptor request{};
  request.number = what.number;
  request.count = what.count;
  request.kind = static_cast<uint8_t>(what.kind);
  request.type = static_cast<uint8_t>(what.type);
  request.op = static_cast<uint8_t>(what.op);
  request.root = what.root;
  request.at.input = reinterpret_cast<uint64_t>(what.input);
  request.at.output = reinterpret_cast<uint64_t>(what.output);
  request.at.input_at = request.at.output_at = Descriptor::kElsewhere;
  if (arena_ == nullptr) return request;
  if (const auto at = arena_->Find(what.input, InputBytes(what, size))) {
    request.at.input_at = static_cast<int64_t>(*at);
  }
  if (const auto at = arena_->Find(what.output, OutputBytes(what, size))) {
    request.at.output_at = static_cast<int64_t>(*at);
  }
  return request;
}

MaybeError CpuCommunicator::Run(const Collective& what, std::chrono::milliseconds timeout,
                                Spent& spent) {
  std::optional<SigpipeGuard> guard;
  if (mesh_ != nullptr) guard.emplace();
  const Deadline begin = spent.begin_ns != 0 ? Deadline(std::chrono::nanoseconds(spent.begin_ns))
                                             : std::chrono::steady_clock::now();
  Work work{what, Describe(what), begin + timeout, spent, what.op == DTRAIN_AVG ? size_ : 1};
  MaybeError error;
  if (within_ != nullptr) {
    error = within_->Run(work);
  } else {
    running_.store(true);
    error = across_->Run(work);
    running_.store(false);
  }
  if (!error) return std::nullopt;
  Break(*error);
  return group_->failure();
}

// The first reason counts, for this rank too: what follows from it is not worth a word.
void CpuCommunicator::Break(const Error& error) {
  group_->Fail(error);
  if (mesh_ != nullptr) mesh_->Abort(*group_->failure());
}

void CpuCommunicator::Abort(const std::string& reason) { Break({DTRAIN_ERROR_NETWORK, reason}); }

Result<void*> CpuCommunicator::Allocate(size_t bytes, bool device) {
  if (device || arena_ == nullptr) return nullptr;
  if (void* memory = arena_->Alloc(bytes)) return memory;
  return Error{DTRAIN_ERROR_RESOURCES,
               "no room for " + std::to_string(bytes) + " bytes of shared memory"};
}

MaybeError CpuCommunicator::Free(void* memory) {
  if (arena_ != nullptr && arena_->Free(memory)) return std::nullopt;
  return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "this memory is not from dtrain_alloc, or free"};
}

}  // namespace dtrain::runtime
