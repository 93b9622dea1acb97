// SPDX-License-Identifier: Apache-2.0
// What an NCCL communicator is asked for, as calls of NCCL.
#include "runtime/nccl/nccl_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kAlignment = 4096;

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

bool NcclCommunicator::OnGpu(const void* buffer) const {
  const auto on_device =
      OnDevice(session_->libraries().cuda, buffer, session_->device()->ordinal());
  return on_device.ok() && *on_device;
}

// NCCL does not exchange blocks in place.
Result<bool> NcclCommunicator::IsDirect(const Collective& what) const {
  if (what.kind == Kind::kAlltoall && what.input == what.output && what.count > 0) return false;
  bool direct = true;
  const void* const input = what.kind == Kind::kBroadcast ? what.output : what.input;
  const void* const buffers[] = {Reads(what) ? input : nullptr,
                                 Writes(what) ? what.output : nullptr};
  for (const void* buffer : buffers) {
    if (buffer == nullptr) continue;
    const auto on_device =
        OnDevice(session_->libraries().cuda, buffer, session_->device()->ordinal());
    if (!on_device.ok()) return on_device.error();
    direct &= *on_device;
  }
  return direct;
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

NcclHandle::Enqueue NcclCommunicator::EnqueueAlltoall(const Collective& what) const {
  const NcclApi& nccl = session_->libraries().nccl;
  const int type = NcclType(what.type);
  const size_t block = what.count * ElementSize(what.type);
  return [what, type, block, ranks = size_, &nccl](abi::NcclComm* comm, abi::CuStream stream) {
    if (nccl.all_to_all != nullptr) {
      return nccl.all_to_all(what.input, what.output, what.count, type, comm, stream);
    }
    int code = nccl.group_start();
    if (code != abi::kNcclSuccess) return code;
    const char* from = static_cast<const char*>(what.input);
    char* to = static_cast<char*>(what.output);
    for (int r = 0; r < ranks && code == abi::kNcclSuccess; ++r, from += block, to += block) {
      code = nccl.send(from, what.count, type, r, comm, stream);
      if (code == abi::kNcclSuccess) code = nccl.receive(to, what.count, type, r, comm, stream);
    }
    const int ended = nccl.group_end();
    return code == abi::kNcclSuccess ? ended : code;
  };
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

// ---- Through memory of the GPU ----

// Each all-reduce, or whatever it is, for itself: this is not the fast way.
Result<NcclCommunicator::Ticket> NcclCommunicator::LaunchStaged(Work work, milliseconds timeout,
                                                                Landed landed) {
  const Device::Scope scope(*session_->device());
  const CudaApi& cuda = session_->libraries().cuda;
  const Deadline deadline = steady_clock::now() + timeout;
  for (const Point& point : work.after) {
    const int code = point == nullptr ? abi::kCudaSuccess
                                      : cuda.stream_wait(handle_->stream(), EventOf(point), 0);
    if (code != abi::kCudaSuccess) {
      return session_->Fail(
          {DTRAIN_ERROR_DEVICE, "waiting in a stream failed: " + cuda.Text(code)});
    }
  }
  Ticket last = 0;
  for (const Collective& what : work.all) {
    if (what.count == 0 || what.kind == Kind::kBarrier) continue;
    const bool blocks = what.kind == Kind::kAllgather || what.kind == Kind::kReduceScatter ||
                        what.kind == Kind::kAlltoall;
    const size_t ways =
        (blocks ? static_cast<size_t>(size_) : 1) * (what.kind == Kind::kAlltoall ? 2 : 1);
    const size_t most = std::max<size_t>(Staging::kBytes / ElementSize(what.type) / ways, 1);
    auto direct = IsDirect(what);
    if (!direct.ok()) return session_->Fail(direct.error());
    // NCCL wants the blocks of one call side by side.
    *direct = *direct && (!blocks || what.count <= most);
    for (size_t at = 0; at < what.count; at += most) {
      const Piece piece{at, std::min(most, what.count - at), deadline};
      if (MaybeError error = RunPiece(what, piece, *direct, timeout, last)) return *error;
    }
  }
  if (MaybeError error = handle_->Await(last)) return *error;
  // Copies to buffers on the GPU come behind that.
  auto fetched = handle_->Record(handle_->stream());
  if (!fetched.ok()) return session_->Fail(fetched.error());
  if (MaybeError error = handle_->Await(*fetched, "a copy on the GPU", deadline)) return *error;
  if (landed) {
    landed(
        std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch())
            .count());
  }
  return Ticket{0};
}

// NCCL works in place in all but alltoall.
MaybeError NcclCommunicator::RunPiece(const Collective& what, const Piece& piece, bool direct,
                                      milliseconds timeout, Ticket& ticket) {
  const size_t element = ElementSize(what.type);
  const size_t bytes = piece.n * element;
  Collective part = what;
  part.count = piece.n;
  if (direct) {
    const size_t at = piece.at * element;
    if (what.input != nullptr) part.input = static_cast<const char*>(what.input) + at;
    if (what.output != nullptr) part.output = static_cast<char*>(what.output) + at;
  } else {
    auto room = staging_->Room();
    if (!room.ok()) return room.error();
    const size_t mine = bytes * static_cast<size_t>(rank_);
    const size_t all = bytes * static_cast<size_t>(size_);
    char* const input = *room + (what.kind == Kind::kAllgather ? mine : 0);
    char* const output = *room + (what.kind == Kind::kReduceScatter ? mine
                                  : what.kind == Kind::kAlltoall    ? all
                                                                    : 0);
    part.input = input;
    part.output = output;
    if (MaybeError error = BringPiece(what, piece, input)) return error;
  }
  auto launched = handle_->Launch(MakeIssue(part, timeout));
  if (!launched.ok()) return launched.error();
  ticket = *launched;
  if (direct) return std::nullopt;
  return FetchPiece(what, piece, static_cast<const char*>(part.output));
}

MaybeError NcclCommunicator::BringPiece(const Collective& what, const Piece& piece, char* input) {
  if (!Reads(what)) return std::nullopt;
  const size_t element = ElementSize(what.type);
  const bool blocks = what.kind == Kind::kReduceScatter || what.kind == Kind::kAlltoall;
  const char* const from =
      static_cast<const char*>(what.kind == Kind::kBroadcast ? what.output : what.input);
  for (size_t b = 0; b < (blocks ? static_cast<size_t>(size_) : 1); ++b) {
    if (MaybeError error = staging_->Bring(input + b * piece.n * element,
                                           from + (b * what.count + piece.at) * element,
                                           piece.n * element, piece.deadline)) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError NcclCommunicator::FetchPiece(const Collective& what, const Piece& piece,
                                        const char* output) {
  if (!Writes(what) || (what.kind == Kind::kBroadcast && rank_ == what.root)) return std::nullopt;
  const size_t element = ElementSize(what.type);
  const bool blocks = what.kind == Kind::kAllgather || what.kind == Kind::kAlltoall;
  // The output of an all-gather is the whole room, which its input lies in.
  for (size_t b = 0; b < (blocks ? static_cast<size_t>(size_) : 1); ++b) {
    if (MaybeError error =
            staging_->Fetch(static_cast<char*>(what.output) + (b * what.count + piece.at) * element,
                            output + b * piece.n * element, piece.n * element, piece.deadline)) {
      return error;
    }
  }
  return std::nullopt;
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
  auto direct = IsDirect(what);
  if (!direct.ok()) return direct.error();
  if (!*direct) {
    return Error{DTRAIN_ERROR_UNSUPPORTED,
                 "a CUDA graph cannot hold a collective with buffers of the host, nor an alltoall "
                 "in place"};
  }
  return handle_->Capture(MakeIssue(what, options_.init_timeout),
                          static_cast<abi::CuStream>(what.stream));
}

// ---- Memory ----

// The plain kind: NCCL's own, and registration, pay only where every rank's buffers have them, and
// make it hang where one has not.
Result<void*> NcclCommunicator::Allocate(size_t bytes) {
  const Device::Scope scope(*session_->device());
  const CudaApi& cuda = session_->libraries().cuda;
  if (MaybeError error = session_->broken()) return *error;
  if (bytes > SIZE_MAX / 2) return Error{DTRAIN_ERROR_RESOURCES, "no GPU has so much memory"};
  const size_t whole = bytes + kAlignment;
  abi::CuDevicePointer memory = 0;
  int code = cuda.mem_alloc(&memory, whole);
  if (code != abi::kCudaSuccess) {
    return Error{DTRAIN_ERROR_RESOURCES,
                 std::to_string(bytes) + " bytes of GPU memory: " + cuda.Text(code)};
  }
  code = cuda.memset8(memory, 0, whole, handle_->stream());
  if (code != abi::kCudaSuccess) {
    cuda.mem_free(memory);
    return Error{DTRAIN_ERROR_DEVICE, "clearing GPU memory failed: " + cuda.Text(code)};
  }
  auto cleared = handle_->Record(handle_->stream());
  if (!cleared.ok()) return session_->Fail(cleared.error());
  if (MaybeError error = handle_->Await(*cleared, "clearing GPU memory",
                                        steady_clock::now() + options_.init_timeout)) {
    return *error;
  }
  void* const pointer =
      reinterpret_cast<void*>((memory + kAlignment - 1) / kAlignment * kAlignment);
  blocks_[pointer] = memory;
  return pointer;
}

// The driver waits for the whole GPU before it frees, on the thread that may be left behind.
MaybeError NcclCommunicator::Free(void* memory) {
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "this is not memory of dtrain_alloc_device"};
  }
  const abi::CuDevicePointer base = found->second;
  blocks_.erase(found);
  const auto code = std::make_shared<int>(abi::kCudaSuccess);
  const CudaApi& cuda = session_->libraries().cuda;
  const auto free = [code, base, &cuda] {
    *code = cuda.mem_free(base);
    return abi::kNcclSuccess;
  };
  if (MaybeError error =
          session_->Try("cuMemFree", free, steady_clock::now() + options_.init_timeout,
                        "freeing memory of the GPU did not end in time")) {
    return error;
  }
  if (*code == abi::kCudaSuccess) return std::nullopt;
  return Error{DTRAIN_ERROR_DEVICE, "freeing GPU memory failed: " + cuda.Text(*code)};
}

}  // namespace dtrain::runtime
