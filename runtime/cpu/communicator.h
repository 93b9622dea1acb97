// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/boot/topology.h"
#include "runtime/cpu/across.h"
#include "runtime/cpu/within.h"
#include "runtime/net/mesh.h"
#include "runtime/shm/arena.h"
#include "runtime/shm/local_group.h"
#include "runtime/shm/peer_memory.h"

namespace dtrain::runtime {

struct CpuOptions {
  // Of each rank of the group; the same on all of them.
  std::vector<int> node_of_rank;
  // Their numbers in texts, where these are not those of the group: in the job. Likewise.
  std::vector<int> names;
  // Numeric, to listen on for other nodes; only leaders of several nodes need it. Empty: the
  // host's first address that is not loopback.
  std::string address;
  // Whose memory Allocate hands out, and where buffers are recognised: the job's one, for a group
  // made from it. Null: made here.
  std::shared_ptr<Arena> arena;
  // Never read the memory of other processes, as if that were not permitted.
  bool direct_reads = true;
};

// The communicator for host memory: shared memory within a node, one connection between every two
// nodes. All ranks must be done with their last collective (a barrier) before the first of them
// destroys it.
class CpuCommunicator : public Communicator {
 public:
  // Meets the other ranks of `bootstrap`, which is not used afterwards. Collective.
  static Result<std::unique_ptr<CpuCommunicator>> Make(Bootstrap& bootstrap,
                                                       const CpuOptions& options,
                                                       Deadline deadline);
  ~CpuCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  MaybeError Run(const Collective& what, std::chrono::milliseconds timeout, Spent& spent) override;
  void Abort(const Error& reason) override;
  void SayLeaving() override;
  MaybeError failure() const override { return group_->failure(); }
  void SetOccupied(bool occupied) override { occupied_.store(occupied); }
  MaybeError Look() override;
  Result<void*> Allocate(size_t bytes) override;
  MaybeError Free(void* memory) override;

  const std::shared_ptr<Arena>& arena() const { return arena_; }
  const Places& places() const { return places_; }
  // Whether large buffers are read from each other's memory, for tests and benchmarks.
  bool direct() const { return direct_; }

 private:
  friend class Join;
  CpuCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  MaybeError Begin();
  Descriptor Describe(const Collective& what) const;
  void Break(const Error& error);
  void CarryOut();
  void CarryIn();
  void Hear(const Leaver& leaver);

  const int rank_;
  const int size_;
  Places places_;
  bool direct_ = false;
  std::shared_ptr<Arena> arena_;  // null when there cannot be one
  std::unique_ptr<LocalGroup> group_;
  std::unique_ptr<PeerMemory> memory_;
  std::unique_ptr<Mesh> mesh_;  // leaders of several nodes only
  std::unique_ptr<Within> within_;
  std::unique_ptr<Across> across_;
  std::atomic<bool> running_{false};  // a collective
  std::atomic<bool> occupied_{false};
  uint32_t runs_ = 0;
  std::atomic<uint32_t> number_{0};  // of the collective that is running, or else of the next
  std::mutex current_mutex_;
  Collective current_;  // while running_; of leaders of several nodes
  MaybeError later_;    // what fails once it has run
  std::atomic<bool> leaving_{false};
  std::thread carrier_out_, carrier_in_;  // of leaders of several nodes
};

}  // namespace dtrain::runtime
