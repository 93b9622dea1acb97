// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstdint>

#include "runtime/base/types.h"
#include "runtime/nccl/wish.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;
using std::chrono::steady_clock;

constexpr size_t kScratch = 256;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

int NcclType(dtrain_type type) {
  switch (type) {
    case DTRAIN_INT32:
      return abi::kNcclInt32;
    case DTRAIN_INT64:
      return abi::kNcclInt64;
    case DTRAIN_FLOAT16:
      return abi::kNcclFloat16;
    case DTRAIN_BFLOAT16:
      return abi::kNcclBfloat16;
    case DTRAIN_FLOAT32:
      return abi::kNcclFloat32;
    case DTRAIN_FLOAT64:
      return abi::kNcclFloat64;
  }
  return abi::kNcclInt8;
}

int NcclOp(dtrain_op op) {
  switch (op) {
    case DTRAIN_SUM:
      return abi::kNcclSum;
    case DTRAIN_AVG:
      return abi::kNcclAvg;
    case DTRAIN_MIN:
      return abi::kNcclMin;
    case DTRAIN_MAX:
      return abi::kNcclMax;
    case DTRAIN_PROD:
      return abi::kNcclProd;
  }
  return abi::kNcclSum;
}

}  // namespace

MaybeError NcclCommunicator::Run(const Collective& what, std::chrono::milliseconds timeout,
                                 Spent& spent) {
  const Device::Scope scope(*device_);
  const auto begin = steady_clock::now();
  const Deadline deadline = begin + timeout;
  enqueued_ = false;
  handle_->Begin(what);
  if (options_.check) {
    if (MaybeError error = Compare(what, deadline)) return error;
    spent.negotiate_ns = (steady_clock::now() - begin).count();
  }
  if (what.kind == Kind::kBarrier) return Barrier(deadline);
  if (what.count == 0) return handle_->broken();

  const bool in_place = what.kind == Kind::kBroadcast;
  const bool uses_output = what.kind != Kind::kReduce || rank_ == what.root;
  const bool host_output = uses_output && !OnGpu(what.output);
  const bool host_input = in_place ? host_output : !OnGpu(what.input);
  if (host_input || host_output) return RunStaged(what, host_input, host_output, deadline, spent);

  const Operands operands{in_place ? what.output : what.input, what.output,
                          static_cast<abi::CuStream>(what.stream)};
  if (MaybeError error = Enqueue(what, operands, deadline)) return error;
  handle_->Follow(operands.stream, what, timeout);
  enqueued_ = true;
  return std::nullopt;
}

MaybeError NcclCommunicator::Finish(void* stream, std::chrono::milliseconds timeout) {
  if (!enqueued_) return handle_->broken();
  const Device::Scope scope(*device_);
  return AwaitStream(static_cast<abi::CuStream>(stream), steady_clock::now() + timeout);
}

MaybeError NcclCommunicator::RunTogether(const std::vector<Collective>& all,
                                         std::chrono::milliseconds timeout, Spent& spent) {
  const Device::Scope scope(*device_);
  const auto begin = steady_clock::now();
  const Deadline deadline = begin + timeout;
  handle_->Begin(all.back());
  for (const Collective& what : all) {
    if (!options_.check) break;
    if (MaybeError error = Compare(what, deadline)) return error;
  }
  std::vector<Operands> operands;
  if (MaybeError error = Place(all, operands, deadline)) return error;
  const NcclApi& nccl = libraries_.nccl;
  const auto grouped = [&](abi::NcclComm* comm) {
    int code = nccl.group_start();
    if (code != abi::kNcclSuccess) return code;
    const auto good = [&] { return code == abi::kNcclSuccess || code == abi::kNcclInProgress; };
    for (size_t i = 0; i < all.size() && good(); ++i) {
      if (all[i].count == 0) continue;
      code = nccl.all_reduce(operands[i].input, operands[i].output, all[i].count,
                             NcclType(all[i].type), NcclOp(all[i].op), comm, operands[i].stream);
    }
    const int ended = nccl.group_end();
    return good() ? ended : code;
  };
  if (MaybeError error = handle_->Call("ncclAllReduce", grouped, deadline)) return error;
  enqueued_ = false;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].count == 0) continue;
    if (operands[i].output != all[i].output) {
      const size_t bytes = all[i].count * ElementSize(all[i].type);
      if (MaybeError error =
              staging_->ToHost(all[i].output, static_cast<const char*>(operands[i].output), bytes,
                               operands[i].stream, deadline)) {
        return error;
      }
    } else {
      handle_->Follow(operands[i].stream, all[i], timeout);
      enqueued_ = true;
    }
  }
  spent.transfer_ns = enqueued_ ? 0 : (steady_clock::now() - begin).count();
  return std::nullopt;
}

// Where NCCL finds the buffers of several all-reduces: those of the host are brought to the GPU,
// one place for input and output.
MaybeError NcclCommunicator::Place(const std::vector<Collective>& all,
                                   std::vector<Operands>& operands, Deadline deadline) {
  std::vector<size_t> at;
  size_t total = kScratch;
  for (const Collective& what : all) {
    Operands own{what.input, what.output, static_cast<abi::CuStream>(what.stream)};
    const bool host_input = what.count > 0 && !OnGpu(what.input);
    const bool host_output = what.count > 0 && !OnGpu(what.output);
    if (host_input) own.input = nullptr;
    if (host_output) own.output = nullptr;
    if (host_input && host_output) own.stream = stream_;
    operands.push_back(own);
    at.push_back(total);
    if (host_input || host_output) total += RoundUp(what.count * ElementSize(what.type), kScratch);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    Operands& own = operands[i];
    if (all[i].count == 0 || (own.input != nullptr && own.output != nullptr)) continue;
    auto area = staging_->Reserve(total, own.stream);
    if (!area.ok()) return area.error();
    char* place = *area + at[i];
    const bool host_input = own.input == nullptr;
    if (host_input) own.input = place;
    if (own.output == nullptr) own.output = place;
    if (!host_input) continue;
    const size_t bytes = all[i].count * ElementSize(all[i].type);
    if (MaybeError error = staging_->ToDevice(place, all[i].input, bytes, own.stream, deadline)) {
      return error;
    }
  }
  return std::nullopt;
}

void NcclCommunicator::Abort(const std::string& reason) {
  handle_->Break({DTRAIN_ERROR_DEVICE, reason});
}

bool NcclCommunicator::OnGpu(const void* buffer) const { return OnDevice(libraries_.cuda, buffer); }

MaybeError NcclCommunicator::Enqueue(const Collective& what, const Operands& operands,
                                     Deadline deadline) {
  const NcclApi& nccl = libraries_.nccl;
  const int type = NcclType(what.type);
  const int op = NcclOp(what.op);
  const auto& [input, output, stream] = operands;
  switch (what.kind) {
    case Kind::kAllreduce:
      return handle_->Call(
          "ncclAllReduce",
          [&, in = input, out = output, on = stream](abi::NcclComm* comm) {
            return nccl.all_reduce(in, out, what.count, type, op, comm, on);
          },
          deadline);
    case Kind::kBroadcast:
      return handle_->Call(
          "ncclBroadcast",
          [&, in = input, out = output, on = stream](abi::NcclComm* comm) {
            return nccl.broadcast(in, out, what.count, type, what.root, comm, on);
          },
          deadline);
    case Kind::kAllgather:
      return handle_->Call(
          "ncclAllGather",
          [&, in = input, out = output, on = stream](abi::NcclComm* comm) {
            return nccl.all_gather(in, out, what.count, type, comm, on);
          },
          deadline);
    case Kind::kReduceScatter:
      return handle_->Call(
          "ncclReduceScatter",
          [&, in = input, out = output, on = stream](abi::NcclComm* comm) {
            return nccl.reduce_scatter(in, out, what.count, type, op, comm, on);
          },
          deadline);
    case Kind::kReduce:
      return handle_->Call(
          "ncclReduce",
          [&, in = input, out = output, on = stream](abi::NcclComm* comm) {
            return nccl.reduce(in, out, what.count, type, op, what.root, comm, on);
          },
          deadline);
    case Kind::kAlltoall:
      return EnqueueAlltoall(what, operands, deadline);
    case Kind::kBarrier:
      break;
  }
  return std::nullopt;
}

MaybeError NcclCommunicator::EnqueueAlltoall(const Collective& what, const Operands& operands,
                                             Deadline deadline) {
  const NcclApi& nccl = libraries_.nccl;
  const int type = NcclType(what.type);
  const size_t block = what.count * ElementSize(what.type);
  const size_t bytes = block * static_cast<size_t>(size_);
  const abi::CuStream stream = operands.stream;
  const char* from = static_cast<const char*>(operands.input);
  char* to = static_cast<char*>(operands.output);
  const bool in_place = operands.input == operands.output;
  if (in_place) {
    // A block would be overwritten before it has been sent.
    auto copy = staging_->Reserve(bytes, stream);
    if (!copy.ok()) return copy.error();
    const int code = libraries_.cuda.copy_on_device(
        reinterpret_cast<uintptr_t>(*copy), reinterpret_cast<uintptr_t>(from), bytes, stream);
    if (code != abi::kCudaSuccess) {
      return handle_->Fail(
          {DTRAIN_ERROR_DEVICE, "copying on the GPU failed: " + libraries_.cuda.Text(code)});
    }
    from = *copy;
  }
  const auto pairwise = [&](abi::NcclComm* comm) {
    if (nccl.all_to_all != nullptr) {
      return nccl.all_to_all(from, to, what.count, type, comm, stream);
    }
    int code = nccl.group_start();
    if (code != abi::kNcclSuccess) return code;
    const auto good = [&] { return code == abi::kNcclSuccess || code == abi::kNcclInProgress; };
    for (int r = 0; r < size_ && good(); ++r) {
      const size_t at = static_cast<size_t>(r) * block;
      code = nccl.send(from + at, what.count, type, r, comm, stream);
      if (good()) code = nccl.receive(to + at, what.count, type, r, comm, stream);
    }
    const int ended = nccl.group_end();
    return good() ? ended : code;
  };
  const char* name = nccl.all_to_all != nullptr ? "ncclAlltoAll" : "ncclSend and ncclRecv";
  if (MaybeError error = handle_->Call(name, pairwise, deadline)) return error;
  return in_place ? staging_->Occupy(stream) : std::nullopt;
}

size_t NcclCommunicator::InputBytes(const Collective& what) const {
  const size_t block = what.count * ElementSize(what.type);
  switch (what.kind) {
    case Kind::kBroadcast:
      return rank_ == what.root ? block : 0;
    case Kind::kReduceScatter:
    case Kind::kAlltoall:
      return block * static_cast<size_t>(size_);
    default:
      return block;
  }
}

size_t NcclCommunicator::OutputBytes(const Collective& what) const {
  const size_t block = what.count * ElementSize(what.type);
  switch (what.kind) {
    case Kind::kBroadcast:
      return rank_ == what.root ? 0 : block;
    case Kind::kReduce:
      return rank_ == what.root ? block : 0;
    case Kind::kAllgather:
    case Kind::kAlltoall:
      return block * static_cast<size_t>(size_);
    default:
      return block;
  }
}

// The whole buffers go to the GPU and NCCL gets one call, as it would for buffers that are there:
// a rank cannot know where the others have theirs, and pieces would not match their calls.
MaybeError NcclCommunicator::RunStaged(const Collective& what, bool host_input, bool host_output,
                                       Deadline deadline, Spent& spent) {
  const auto begin = steady_clock::now();
  const size_t block = what.count * ElementSize(what.type);
  const size_t in = host_input ? InputBytes(what) : 0;
  const size_t out = host_output ? OutputBytes(what) : 0;
  // Where both are the host's, NCCL works in place, which it does for all but alltoall.
  const size_t mine = block * static_cast<size_t>(rank_);
  const bool both = host_input && (host_output || what.kind == Kind::kReduce);
  size_t in_at = 0, out_at = RoundUp(in, kScratch);
  if (both && what.kind != Kind::kAlltoall) {
    in_at = what.kind == Kind::kAllgather ? mine : 0;
    out_at = what.kind == Kind::kReduceScatter ? mine : 0;
  }
  const abi::CuStream stream =
      host_input && host_output ? stream_ : static_cast<abi::CuStream>(what.stream);
  auto area = staging_->Reserve(std::max({in_at + in, out_at + out, kScratch}), stream);
  if (!area.ok()) return area.error();

  Operands operands{what.input, what.output, stream};
  if (host_input) operands.input = *area + in_at;
  if (host_output) operands.output = *area + out_at;
  if (what.kind == Kind::kBroadcast) operands.input = operands.output = *area;
  const bool ignored = what.kind == Kind::kReduce && rank_ != what.root;
  if (ignored) operands.output = nullptr;
  if (in > 0) {
    if (MaybeError error = staging_->ToDevice(
            *area + in_at, what.input != nullptr ? what.input : what.output, in, stream, deadline))
      return error;
  }
  if (MaybeError error = Enqueue(what, operands, deadline)) return error;
  if (out > 0) {
    if (MaybeError error = staging_->ToHost(what.output, *area + out_at, out, stream, deadline))
      return error;
  } else if (MaybeError error = AwaitStream(stream, deadline)) {
    return error;
  }
  spent.transfer_ns = (steady_clock::now() - begin).count();
  return std::nullopt;
}

MaybeError NcclCommunicator::AwaitStream(abi::CuStream stream, Deadline deadline) {
  const int code = libraries_.cuda.event_record(done_, stream);
  if (code != abi::kCudaSuccess) {
    return handle_->Fail(
        {DTRAIN_ERROR_DEVICE, "recording an event failed: " + libraries_.cuda.Text(code)});
  }
  return handle_->Wait(done_, deadline);
}

MaybeError NcclCommunicator::Barrier(Deadline deadline) {
  auto area = staging_->Reserve(kScratch, stream_);
  if (!area.ok()) return area.error();
  Collective token;
  token.kind = Kind::kAllreduce;
  token.count = 1;
  if (MaybeError error = Enqueue(token, {*area, *area, stream_}, deadline)) return error;
  return AwaitStream(stream_, deadline);
}

// Every rank tells every other what it is about to do.
MaybeError NcclCommunicator::Compare(const Collective& what, Deadline deadline) {
  const Wish mine = MakeWish(what);
  std::vector<Wish> all(static_cast<size_t>(size_));
  Collective gather;
  gather.kind = Kind::kAllgather;
  gather.count = sizeof(Wish) / ElementSize(DTRAIN_INT64);
  gather.type = DTRAIN_INT64;
  gather.input = &mine;
  gather.output = all.data();
  Spent ignored;
  if (MaybeError error = RunStaged(gather, true, true, deadline, ignored)) return error;
  MaybeError error = CompareWishes(all, names_);
  if (error) return handle_->Fail(*error);
  return std::nullopt;
}

}  // namespace dtrain::runtime
