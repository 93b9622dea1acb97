// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/environment.h"
#include "runtime/cpu/communicator.h"
#include "runtime/engine/group.h"
#include "runtime/nccl/nccl_communicator.h"
#include "runtime/nccl/options.h"

namespace dtrain::runtime {

// What a rank says about itself once the CPUs are connected, so that all decide the same.
struct Hello {
  BackendChoice wanted = BackendChoice::kAuto;
  std::string no_nccl;  // why NCCL cannot be used here; empty: it can
  size_t fusion_threshold = 0;
  int64_t cycle_us = 0;
};
std::string EncodeHello(const Hello& hello);
// False when `text` is not such.
bool DecodeHello(const std::string& text, Hello& hello);

// Whether the job runs on NCCL; the same on every rank. Fails when some rank can use it and another
// cannot, when NCCL was asked for and any cannot, or when the ranks were told different things.
Result<bool> ChooseNccl(const std::vector<Hello>& hellos);

// Makes the communicators of one job: those of the CPU, and in a job on GPUs those of NCCL, which
// agree on things over the former.
class Backend {
 public:
  // Why NCCL cannot be used in this process; empty when it can. Not asked for: not looked at.
  static std::string WhyNotNccl(BackendChoice wanted);

  // `cpu` has the nodes of all ranks of the job.
  Backend(CpuOptions cpu, NcclOptions nccl, NcclCommunicator::OnFailure on_failure)
      : cpu_(std::move(cpu)), nccl_(std::move(nccl)), on_failure_(std::move(on_failure)) {}

  // Once all know that they can: the job runs on NCCL. Else on the CPU.
  void UseNccl() { use_nccl_ = true; }
  bool nccl() const { return use_nccl_; }
  const char* name() const { return use_nccl_ ? "nccl" : "cpu"; }

  // Collective over the ranks of `bootstrap`, who are the members of `group`; null for one alone.
  // The job's own comes before its groups'.
  Result<std::unique_ptr<Communicator>> MakeCpu(Bootstrap& bootstrap, const Group& group,
                                                Deadline deadline);
  // Likewise, for a group that has what MakeCpu made.
  Result<std::unique_ptr<DeviceCommunicator>> MakeDevice(FullBootstrap& bootstrap,
                                                         const Group& group, Deadline deadline);

  // Whether the job's communicator makes those of its groups. The same on every rank.
  bool Splits(const DeviceCommunicator& world) const;
  // Collective over all ranks of the job, with nothing in flight: the device of those that give the
  // same color, which Open completes when all have heard that it went well everywhere. Also of a
  // failure there is one, to be destroyed by all at the same time.
  std::unique_ptr<DeviceCommunicator> Split(DeviceCommunicator& world, const Group& group,
                                            Deadline deadline, MaybeError& error);
  MaybeError Open(DeviceCommunicator& part);

 private:
  bool use_nccl_ = false;
  CpuOptions cpu_;  // with the arena, once the job's own communicator is made
  const NcclOptions nccl_;
  const NcclCommunicator::OnFailure on_failure_;
};

}  // namespace dtrain::runtime
