// SPDX-License-Identifier: Apache-2.0
// What an NCCL communicator is asked for, as calls of NCCL.
#include "runtime/nccl/nccl_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "runtime/base/blocks.h"
#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

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
    case DTRAIN_BYTE:
      break;
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

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce:
    case Kind::kBarrier:
      return "ncclAllReduce";
    case Kind::kBroadcast:
      return "ncclBroadcast";
    case Kind::kAllgather:
      return "ncclAllGather";
    case Kind::kReduceScatter:
      return "ncclReduceScatter";
    case Kind::kReduce:
      return "ncclReduce";
    case Kind::kAlltoall:
      return "ncclAlltoAll";
  }
  return "NCCL";
}

std::string Numbered(const Collective& what) {
  return "collective " + std::to_string(what.number) + " (" + Describe(what) + ")";
}

}  // namespace

// ---- Where the buffers are ----

bool NcclCommunicator::Reads(const Collective& what) const {
  if (what.count == 0 || what.kind == Kind::kBarrier) return false;
  return what.kind != Kind::kBroadcast || rank_ == what.root;
}

bool NcclCommunicator::Writes(const Collective& what) const {
  if (what.count == 0 || what.kind == Kind::kBarrier) return false;
  return what.kind != Kind::kReduce || rank_ == what.root;
}

uint64_t NcclCommunicator::RegisteredUse(const Collective& what) const {
  return RegisteredIn(what).key;
}

Result<Via> NcclCommunicator::ViaOf(const Collective& what) const {
  bool on_gpu = false, on_host = false;
  const void* const input = what.kind == Kind::kBroadcast ? what.output : what.input;
  const void* const buffers[] = {Reads(what) ? input : nullptr,
                                 Writes(what) ? what.output : nullptr};
  for (const void* buffer : buffers) {
    if (buffer == nullptr) continue;
    const auto on_device = OnDevice(session_->libraries().cuda, *session_->device(), buffer);
    if (!on_device.ok()) return on_device.error();
    (*on_device ? on_gpu : on_host) = true;
  }
  if (on_host) return on_gpu ? Via::kStaged : Via::kHost;
  // NCCL does not exchange blocks in place.
  const bool in_place = what.kind == Kind::kAlltoall && what.input == what.output && what.count > 0;
  return in_place || !RegisteredIn(what).allowed ? Via::kStaged : Via::kDevice;
}

// ---- Calls ----

NcclHandle::Enqueue NcclCommunicator::Enqueue(const Collective& what) const {
  const NcclApi& nccl = session_->libraries().nccl;
  const int type = NcclType(what.type), op = NcclOp(what.op);
  switch (what.kind) {
    case Kind::kAllreduce:
      return [what, type, op, &nccl](abi::NcclComm* comm, abi::CuStream stream) {
        return nccl.all_reduce(what.input, what.output, what.count, type, op, comm, stream);
      };
    case Kind::kBroadcast:
      return [what, type, &nccl](abi::NcclComm* comm, abi::CuStream stream) {
        return nccl.broadcast(what.output, what.output, what.count, type, what.root, comm, stream);
      };
    case Kind::kAllgather:
      return [what, type, &nccl](abi::NcclComm* comm, abi::CuStream stream) {
        return nccl.all_gather(what.input, what.output, what.count, type, comm, stream);
      };
    case Kind::kReduceScatter:
      return [what, type, op, &nccl](abi::NcclComm* comm, abi::CuStream stream) {
        return nccl.reduce_scatter(what.input, what.output, what.count, type, op, comm, stream);
      };
    case Kind::kReduce:
      return [what, type, op, &nccl](abi::NcclComm* comm, abi::CuStream stream) {
        return nccl.reduce(what.input, what.output, what.count, type, op, what.root, comm, stream);
      };
    case Kind::kAlltoall:
      return EnqueueAlltoall(what);
    case Kind::kBarrier:
      break;
  }
  return [](abi::NcclComm*, abi::CuStream) { return abi::kNcclSuccess; };
}

NcclHandle::Enqueue NcclCommunicator::EnqueueExchanges(std::vector<Exchange> by_rank,
                                                       dtrain_type type) const {
  const NcclApi& nccl = session_->libraries().nccl;
  return [by_rank = std::move(by_rank), number = NcclType(type), &nccl](abi::NcclComm* comm,
                                                                        abi::CuStream stream) {
    int code = nccl.group_start();
    if (code != abi::kNcclSuccess) return code;
    for (int r = 0; r < static_cast<int>(by_rank.size()) && code == abi::kNcclSuccess; ++r) {
      const Exchange& one = by_rank[static_cast<size_t>(r)];
      if (one.sent > 0) code = nccl.send(one.from, one.sent, number, r, comm, stream);
      if (code == abi::kNcclSuccess && one.received > 0) {
        code = nccl.receive(one.to, one.received, number, r, comm, stream);
      }
    }
    const int ended = nccl.group_end();
    return code == abi::kNcclSuccess ? ended : code;
  };
}

NcclHandle::Enqueue NcclCommunicator::EnqueueAlltoall(const Collective& what) const {
  const NcclApi& nccl = session_->libraries().nccl;
  if (nccl.all_to_all != nullptr && what.counts == nullptr) {
    return [what, type = NcclType(what.type), &nccl](abi::NcclComm* comm, abi::CuStream stream) {
      return nccl.all_to_all(what.input, what.output, what.count, type, comm, stream);
    };
  }
  const size_t element = ElementSize(what.type);
  const Blocks blocks(what, size_, rank_);
  std::vector<Exchange> by_rank;
  for (int r = 0; r < size_; ++r) {
    by_rank.push_back({static_cast<const char*>(what.input) + blocks.InInput(r) * element,
                       blocks.Length(rank_, r),
                       static_cast<char*>(what.output) + blocks.InOutput(r) * element,
                       blocks.Length(r, rank_)});
  }
  return EnqueueExchanges(std::move(by_rank), what.type);
}

NcclHandle::Issue NcclCommunicator::MakeIssue(const Collective& what, milliseconds timeout) const {
  NcclHandle::Issue issue;
  issue.name = NameOf(what.kind);
  issue.enqueue = Enqueue(what);
  issue.what = Numbered(what);
  issue.timeout = timeout;
  return issue;
}

Result<NcclCommunicator::Ticket> NcclCommunicator::Launch(Work work, milliseconds timeout,
                                                          Landed landed) {
  const bool nothing = std::all_of(work.all.begin(), work.all.end(), [](const Collective& what) {
    return what.count == 0 || what.kind == Kind::kBarrier;
  });
  if (!work.direct && !nothing) return LaunchStaged(std::move(work), timeout, std::move(landed));
  if (work.all.size() > 1) return LaunchTogether(std::move(work), timeout, std::move(landed));
  NcclHandle::Issue issue = MakeIssue(work.all[0], timeout);
  if (nothing) issue.enqueue = [](abi::NcclComm*, abi::CuStream) { return abi::kNcclSuccess; };
  issue.after = std::move(work.after);
  issue.landed = std::move(landed);
  return handle_->Launch(std::move(issue));
}

// All of them are done when the last one is.
Result<NcclCommunicator::Ticket> NcclCommunicator::LaunchTogether(Work work, milliseconds timeout,
                                                                  Landed landed) {
  const NcclApi& nccl = session_->libraries().nccl;
  NcclHandle::Issue issue = MakeIssue(work.all.back(), timeout);
  issue.what = std::to_string(work.all.size()) + " all-reduces up to " + issue.what;
  issue.after = std::move(work.after);
  issue.landed = std::move(landed);
  issue.enqueue = [all = std::move(work.all), &nccl](abi::NcclComm* comm, abi::CuStream stream) {
    int code = nccl.group_start();
    if (code != abi::kNcclSuccess) return code;
    for (const Collective& what : all) {
      if (what.count == 0) continue;
      code = nccl.all_reduce(what.input, what.output, what.count, NcclType(what.type),
                             NcclOp(what.op), comm, stream);
      if (code != abi::kNcclSuccess) break;
    }
    const int ended = nccl.group_end();
    return code == abi::kNcclSuccess ? ended : code;
  };
  return handle_->Launch(std::move(issue));
}

// ---- Streams and graphs ----

Result<NcclCommunicator::Point> NcclCommunicator::Record(void* stream) {
  return handle_->Record(static_cast<abi::CuStream>(stream));
}

MaybeError NcclCommunicator::Join(Ticket ticket, void* stream) {
  return handle_->Join(ticket, static_cast<abi::CuStream>(stream));
}

bool NcclCommunicator::Capturing(void* stream) const {
  const CudaApi& cuda = session_->libraries().cuda;
  if (stream == nullptr || cuda.stream_is_capturing == nullptr) return false;
  const Device::Scope scope(*session_->device());
  int capturing = abi::kCuCaptureNone;
  return cuda.stream_is_capturing(static_cast<abi::CuStream>(stream), &capturing) ==
             abi::kCudaSuccess &&
         capturing != abi::kCuCaptureNone;
}

Result<NcclCommunicator::Ticket> NcclCommunicator::Capture(const Collective& what) {
  const Device::Scope scope(*session_->device());
  const auto via = ViaOf(what);
  if (!via.ok()) return via.error();
  // Nobody asks the other ranks whether theirs are registered, too, and NCCL hangs if not.
  if (RegisteredIn(what).any) {
    return Error{DTRAIN_ERROR_UNSUPPORTED,
                 "a CUDA graph cannot hold a collective with registered buffers: call "
                 "dtrain_deregister before the capture. NCCL registers what a graph uses by itself "
                 "(NCCL_GRAPH_REGISTER)"};
  }
  if (*via != Via::kDevice) {
    return Error{DTRAIN_ERROR_UNSUPPORTED,
                 "a CUDA graph cannot hold a collective with buffers of the host, nor an alltoall "
                 "in place"};
  }
  return handle_->Capture(MakeIssue(what, options_.init_timeout),
                          static_cast<abi::CuStream>(what.stream));
}

}  // namespace dtrain::runtime
