// SPDX-License-Identifier: Apache-2.0
// Collectives whose buffers NCCL cannot use as they are, on one rank at least: in pieces, through
// memory of the GPU.
#include <algorithm>
#include <utility>

#include "runtime/base/blocks.h"
#include "runtime/base/types.h"
#include "runtime/nccl/nccl_communicator.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

}  // namespace

// `part` is the piece in the room on the GPU, where blocks of any length lie as far apart as equal
// ones.
NcclHandle::Enqueue NcclCommunicator::EnqueuePiece(const Collective& what, const Piece& piece,
                                                   const Collective& part) const {
  if (what.counts == nullptr) return Enqueue(part);
  const size_t step = piece.n * ElementSize(what.type);
  const Blocks blocks(what, size_, rank_);
  std::vector<Exchange> by_rank;
  for (int r = 0; r < size_; ++r) {
    by_rank.push_back({static_cast<const char*>(part.input) + static_cast<size_t>(r) * step,
                       blocks.Part(rank_, r, piece.at, piece.n),
                       static_cast<char*>(part.output) + static_cast<size_t>(r) * step,
                       blocks.Part(r, rank_, piece.at, piece.n)});
  }
  return EnqueueExchanges(std::move(by_rank), what.type);
}

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
    const auto via = ViaOf(what);
    if (!via.ok()) return session_->Fail(via.error());
    // NCCL wants the blocks of one call side by side, and no memory that is registered here only.
    const bool registered = RegisteredIn(what).any;
    if (registered) SayCopied(what);
    const bool direct = *via == Via::kDevice && !registered && (!blocks || what.count <= most);
    for (size_t at = 0; at < what.count; at += most) {
      const Piece piece{at, std::min(most, what.count - at), deadline};
      if (MaybeError error = RunPiece(what, piece, direct, timeout, last)) return *error;
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
  NcclHandle::Issue issue = MakeIssue(part, timeout);
  if (!direct) issue.enqueue = EnqueuePiece(what, piece, part);
  auto launched = handle_->Launch(std::move(issue));
  if (!launched.ok()) return launched.error();
  ticket = *launched;
  if (direct) return std::nullopt;
  return FetchPiece(what, piece, static_cast<const char*>(part.output));
}

MaybeError NcclCommunicator::BringPiece(const Collective& what, const Piece& piece, char* input) {
  if (!Reads(what)) return std::nullopt;
  const size_t element = ElementSize(what.type);
  const bool many = what.kind == Kind::kReduceScatter || what.kind == Kind::kAlltoall;
  const Blocks blocks(what, size_, rank_);
  const char* const from =
      static_cast<const char*>(what.kind == Kind::kBroadcast ? what.output : what.input);
  for (int b = 0; b < (many ? size_ : 1); ++b) {
    const size_t n = many ? blocks.Part(rank_, b, piece.at, piece.n) : piece.n;
    if (n == 0) continue;
    if (MaybeError error = staging_->Bring(input + static_cast<size_t>(b) * piece.n * element,
                                           from + (blocks.InInput(b) + piece.at) * element,
                                           n * element, piece.deadline)) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError NcclCommunicator::FetchPiece(const Collective& what, const Piece& piece,
                                        const char* output) {
  if (!Writes(what) || (what.kind == Kind::kBroadcast && rank_ == what.root)) return std::nullopt;
  const size_t element = ElementSize(what.type);
  const bool many = what.kind == Kind::kAllgather || what.kind == Kind::kAlltoall;
  const Blocks blocks(what, size_, rank_);
  // The output of an all-gather is the whole room, which its input lies in.
  for (int b = 0; b < (many ? size_ : 1); ++b) {
    const size_t n = many ? blocks.Part(b, rank_, piece.at, piece.n) : piece.n;
    if (n == 0) continue;
    if (MaybeError error = staging_->Fetch(
            static_cast<char*>(what.output) + (blocks.InOutput(b) + piece.at) * element,
            output + static_cast<size_t>(b) * piece.n * element, n * element, piece.deadline)) {
      return error;
    }
  }
  return std::nullopt;
}

}  // namespace dtrain::runtime
