// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/nccl/handle.h"
#include "runtime/nccl/member.h"
#include "runtime/nccl/options.h"
#include "runtime/nccl/staging.h"

namespace dtrain::runtime {

// Collectives on GPUs, by NCCL. Buffers on the GPU: Run enqueues on the caller's stream and
// returns; a failure after that shows in a later call. A buffer of the host: Run brings it to the
// GPU and back, and returns when it is done. Either way NCCL sees one call with the whole count,
// so that some ranks may have theirs on the host and others on the GPU.
//
// Ranks that ask for different things are found out before anything hangs only with
// NcclOptions::check, which costs a round trip per collective; without it, the timeout says so.
class NcclCommunicator : public Communicator {
 public:
  // Collective. When a rank cannot take part, or two have the same GPU, all fail and say which.
  static Result<std::unique_ptr<NcclCommunicator>> Make(Bootstrap& bootstrap,
                                                        const NcclOptions& options,
                                                        Deadline deadline);
  // As Make, for some ranks of a communicator that can split, but for what NCCL has to do: Split
  // comes next.
  static Result<std::unique_ptr<NcclCommunicator>> MakePart(Bootstrap& bootstrap,
                                                            const NcclOptions& options,
                                                            Deadline deadline);
  // Takes at most about ten seconds, whatever NCCL does.
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  MaybeError Run(const Collective& what, std::chrono::milliseconds timeout, Spent& spent) override;
  void Abort(const std::string& reason) override;
  void SayLeaving() override { handle_->SayLeaving(); }
  MaybeError failure() const override { return handle_->broken(); }

  // Whether `buffer` is on a GPU: such buffers are enqueued, others waited for.
  bool OnGpu(const void* buffer) const;

  // By one NCCL group, wherever the buffers are.
  bool HasRunTogether() const override { return true; }
  MaybeError RunTogether(const std::vector<Collective>& all, std::chrono::milliseconds timeout,
                         Spent& spent) override;
  MaybeError Finish(void* stream, std::chrono::milliseconds timeout) override;

  // Of the GPU: registered with NCCL where it can do that. Null for the host, whose memory is
  // brought to the GPU anyway. What is not freed goes with the communicator.
  Result<void*> Allocate(size_t bytes, bool device) override;
  MaybeError Free(void* memory) override;

  // Whether NCCL makes groups from a communicator, which is faster than from nothing. The same on
  // all ranks, as their versions are.
  bool CanSplit() const { return libraries_.nccl.split != nullptr; }
  // Collective, when nothing is in flight: completes the parts, of ranks that give the same `color`
  // (from 0). A rank in none gives a null `part`. A failure breaks this communicator, too.
  MaybeError Split(uint32_t color, NcclCommunicator* part, Deadline deadline);

  // "NCCL 2.28.9 on NVIDIA H100 (GPU-5d1c…, 0000:3B:00.0)".
  std::string Description() const;

 private:
  // Memory of the GPU that Allocate made.
  struct Block {
    void* base = nullptr;  // what was allocated
    void* registration = nullptr;
    bool by_nccl = false;
  };
  // What NCCL gets to see.
  struct Operands {
    const void* input = nullptr;
    void* output = nullptr;
    abi::CuStream stream = nullptr;
  };

  NcclCommunicator(const Libraries& libraries, int rank, int size, const NcclOptions& options)
      : libraries_(libraries), rank_(rank), size_(size), options_(options) {}

  static Result<std::unique_ptr<NcclCommunicator>> Gather(Bootstrap& bootstrap,
                                                          const NcclOptions& options, bool is_part,
                                                          std::vector<Member>& members,
                                                          Deadline deadline);
  MaybeError Prepare(Member& mine, bool is_part);
  MaybeError Meet(const std::vector<Member>& members, Deadline deadline);
  MaybeError Connect(const std::vector<Member>& members, Deadline deadline);
  MaybeError MakeStream();

  MaybeError Enqueue(const Collective& what, const Operands& operands, Deadline deadline);
  MaybeError EnqueueAlltoall(const Collective& what, const Operands& operands, Deadline deadline);
  MaybeError RunStaged(const Collective& what, bool host_input, bool host_output, Deadline deadline,
                       Spent& spent);
  MaybeError Place(const std::vector<Collective>& all, std::vector<Operands>& operands,
                   Deadline deadline);
  MaybeError AwaitStream(abi::CuStream stream, Deadline deadline);
  MaybeError Barrier(Deadline deadline);
  MaybeError Compare(const Collective& what, Deadline deadline);
  size_t InputBytes(const Collective& what) const;
  size_t OutputBytes(const Collective& what) const;
  void Deregister(Block& block);
  MaybeError Release(const Block& block);

  const Libraries& libraries_;
  const int rank_;
  const int size_;
  const NcclOptions options_;
  const pid_t pid_ = getpid();
  std::vector<std::string> names_;  // of the ranks: "rank 1 (host b)"
  std::shared_ptr<Device> device_;
  std::unique_ptr<Alarm> alarm_;  // until handle_ has it
  std::shared_ptr<NcclHandle> handle_;
  std::unique_ptr<Staging> staging_;
  abi::CuStream stream_ = nullptr;  // ours, for what the caller waits for
  abi::CuEvent done_ = nullptr;
  bool enqueued_ = false;  // the last Run has returned before its end
  std::map<void*, Block> blocks_;
};

}  // namespace dtrain::runtime
