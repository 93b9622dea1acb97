// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/environment.h"
#include "runtime/cpu/communicator.h"
#include "runtime/nccl/options.h"

namespace dtrain::runtime {

// What a rank says about itself before anything is connected, so that all decide the same.
struct Hello {
  BackendChoice wanted = BackendChoice::kAuto;
  std::string no_nccl;  // why NCCL cannot be used here; empty: it can
  size_t fusion_threshold = 0;
  int64_t cycle_us = 0;
  std::string node;  // tells machines apart
};
std::string EncodeHello(const Hello& hello);
// False when `text` is not that of this version.
bool DecodeHello(const std::string& text, Hello& hello);

// Whether the job runs on NCCL; the same on every rank. Fails when NCCL was asked for and some rank
// cannot use it, or when the ranks were told different things.
Result<bool> ChooseNccl(const std::vector<Hello>& hellos);

// Makes the communicators of one job, all of the same kind.
class Backend {
 public:
  // Why NCCL cannot be used in this process; empty when it can. Not asked for: not looked at.
  static std::string WhyNotNccl(BackendChoice wanted);

  Backend(bool use_nccl, CpuOptions cpu, NcclOptions nccl)
      : use_nccl_(use_nccl), cpu_(std::move(cpu)), nccl_(std::move(nccl)) {}

  bool nccl() const { return use_nccl_; }
  const char* name() const { return use_nccl_ ? "nccl" : "cpu"; }

  // Collective over the ranks of `bootstrap`: `communicator`, and `control` too where the first
  // works on a device. Stay null where one rank needs none. The job's own come before its groups'.
  // `splits`: for a group, whose communicator is then completed by Split.
  MaybeError Make(Bootstrap& bootstrap, Deadline deadline,
                  std::unique_ptr<Communicator>& communicator,
                  std::unique_ptr<Communicator>& control, bool splits = false);

  // Whether the job's own communicator makes those of its groups. The same on every rank.
  bool Splits(const Communicator& world) const;
  // Collective over all ranks of the job: completes the `part` (null: in none) of those that give
  // the same `color`.
  MaybeError Split(Communicator& world, uint32_t color, Communicator* part, Deadline deadline);

 private:
  Result<std::unique_ptr<Communicator>> MakeCpu(Bootstrap& bootstrap, Deadline deadline);

  const bool use_nccl_;
  CpuOptions cpu_;  // with the arena, once the job's own communicator is made
  const NcclOptions nccl_;
};

}  // namespace dtrain::runtime
