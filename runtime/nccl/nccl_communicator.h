// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/device.h"
#include "runtime/nccl/handle.h"
#include "runtime/nccl/member.h"
#include "runtime/nccl/options.h"
#include "runtime/nccl/staging.h"

namespace dtrain::runtime {

// Collectives on GPUs, by NCCL. What goes wrong within one of a process's communicators ends all of
// them: NCCL waits for the whole GPU when it aborts.
class NcclCommunicator : public DeviceCommunicator {
 public:
  // Told once of what ends the process's communicators, on any thread.
  using OnFailure = std::function<void(const Error&)>;

  // Collective over the ranks of `bootstrap`. When a rank cannot take part, or two have the same
  // GPU, all fail and say which. `control`: where these ranks agree on things; null for one alone.
  // It outlives the communicator, which is told to fail when that fails.
  static Result<std::unique_ptr<NcclCommunicator>> Make(FullBootstrap& bootstrap,
                                                        Communicator* control,
                                                        const NcclOptions& options,
                                                        OnFailure on_failure, Deadline deadline);
  // Whether NCCL makes groups from a communicator, which is faster than from nothing. The same on
  // all ranks, as their versions are.
  bool CanSplit() const;
  // Collective over all ranks of this one, with nothing in flight: a part of those that give the
  // same `color`, ordered by `key`. Also of a failure there is a part, which only can be destroyed,
  // on all ranks together; this one is as good as before then, unless it says so in failure().
  struct Part {
    int rank = 0, size = 0;
    Communicator* control = nullptr;
    std::string group;  // as NcclOptions has it
  };
  std::unique_ptr<NcclCommunicator> Split(int color, int key, const Part& made, Deadline deadline,
                                          MaybeError& error);
  // Collective, after all ranks have heard that Split went well on all of them.
  MaybeError Open() { return handle_->Open(); }
  // Takes at most about ten seconds, whatever NCCL does.
  ~NcclCommunicator() override;

  int rank() const { return rank_; }
  int size() const { return size_; }

  Result<Via> ViaOf(const Collective& what) const override;
  uint64_t RegisteredUse(const Collective& what) const override;
  Result<Point> Record(void* stream) override;
  Result<Ticket> Launch(Work work, std::chrono::milliseconds timeout, Landed landed) override;
  MaybeError Await(Ticket ticket) override { return handle_->Await(ticket); }
  MaybeError AwaitAll() override { return handle_->AwaitAll(); }
  bool Done(Ticket ticket) override { return handle_->Done(ticket); }
  MaybeError Join(Ticket ticket, void* stream) override;
  bool Capturing(void* stream) const override;
  Result<Ticket> Capture(const Collective& what) override;
  Result<void*> Allocate(size_t bytes, bool registrable) override;
  MaybeError Free(void* memory) override;
  size_t RegistrableBytes(const void* memory) const override;
  Result<bool> Register(void* memory, size_t bytes, uint64_t id) override;
  MaybeError Deregister(const void* memory) override;
  void Abort(const Error& reason) override { session_->Break(reason); }
  MaybeError failure() const override { return session_->broken(); }

  // "NCCL 2.28.9 on NVIDIA H100 (GPU-5d1c…, 0000:3B:00.0)".
  std::string Description() const;

 private:
  // Part of a collective whose blocks, as many as there are ranks, are `count` elements apart, of
  // which it takes `n` from `at` on.
  struct Piece {
    size_t at = 0;
    size_t n = 0;
    Deadline deadline;
  };

  NcclCommunicator(std::shared_ptr<Session> session, int rank, int size, const NcclOptions& options)
      : session_(std::move(session)), rank_(rank), size_(size), options_(options) {}

  static MaybeError Prepare(const NcclOptions& options, int rank, Member& mine,
                            std::shared_ptr<Session>& session);
  MaybeError Connect(const std::vector<Member>& members, Communicator* control, Deadline deadline);

  NcclHandle::Issue MakeIssue(const Collective& what, std::chrono::milliseconds timeout) const;
  NcclHandle::Enqueue Enqueue(const Collective& what) const;
  // What one rank has for another, and the other way round, in elements.
  struct Exchange {
    const char* from = nullptr;
    size_t sent = 0;
    char* to = nullptr;
    size_t received = 0;
  };
  NcclHandle::Enqueue EnqueueExchanges(std::vector<Exchange> by_rank, dtrain_type type) const;
  NcclHandle::Enqueue EnqueueAlltoall(const Collective& what) const;
  NcclHandle::Enqueue EnqueuePiece(const Collective& what, const Piece& piece,
                                   const Collective& part) const;
  Result<Ticket> LaunchTogether(Work work, std::chrono::milliseconds timeout, Landed landed);
  Result<Ticket> LaunchStaged(Work work, std::chrono::milliseconds timeout, Landed landed);
  MaybeError RunPiece(const Collective& what, const Piece& piece, bool direct,
                      std::chrono::milliseconds timeout, Ticket& ticket);
  MaybeError BringPiece(const Collective& what, const Piece& piece, char* input);
  MaybeError FetchPiece(const Collective& what, const Piece& piece, const char* output);
  Registrations::Use RegisteredIn(const Collective& what) const {
    return handle_->registrations().UseOf(what, rank_, size_);
  }
  void SayCopied(const Collective& what) const;
  // What Allocate returned.
  struct Block {
    abi::CuDevicePointer base = 0;  // where it begins
    size_t bytes = 0;
    bool registrable = false;
    bool of_nccl = false;  // ncclMemAlloc's
  };
  Result<Block> TakeBlock(size_t bytes, bool of_nccl);
  MaybeError GiveBack(const Block& block);
  MaybeError Clear(const Block& block, size_t bytes);
  void GiveBackAll();
  bool Reads(const Collective& what) const;   // this rank's input
  bool Writes(const Collective& what) const;  // this rank's output

  const std::shared_ptr<Session> session_;
  const int rank_;
  const int size_;
  const NcclOptions options_;
  const pid_t pid_ = getpid();
  std::vector<std::string> names_;  // of the ranks: "rank 1 (host b)"
  std::shared_ptr<NcclHandle> handle_;
  std::unique_ptr<Staging> staging_;
  std::map<const void*, Block> blocks_;
};

}  // namespace dtrain::runtime
