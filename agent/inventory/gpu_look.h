// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "agent/inventory/nvml.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/spawn.h"
#include "common/os/unique_fd.h"

namespace dtrain::inventory {

// One look at the GPUs by a child, `program gpus`: a driver that hangs keeps a thread in the kernel
// for good, and no process ends while one of its threads is there. Without an answer within
// `patience` the report has no GPUs and says so, and the child is killed and left behind. Loop
// thread.
class GpuLook {
 public:
  using Done = absl::AnyInvocable<void(GpuReport)>;
  // `on_over` (may be null) is called on the loop once this is over.
  GpuLook(loop::Loop& loop, const std::string& program, Duration patience, Done done,
          loop::Task on_over = nullptr);
  ~GpuLook();
  GpuLook(const GpuLook&) = delete;
  GpuLook& operator=(const GpuLook&) = delete;
  // Its child is reaped, and `done` was called.
  bool over() const { return done_ == nullptr && !child_.pidfd; }

 private:
  void Read();
  void Reap();
  void Tell(GpuReport report);
  void Fail(const std::string& why);
  void TellIfOver();

  loop::Loop& loop_;
  Done done_;
  loop::Task on_over_;
  os::Child child_;
  os::UniqueFd output_;
  std::string bytes_;
  loop::Timer patience_;
  std::unique_ptr<loop::FdWatch> readable_, ended_;
};

// What that child does: writes the report to standard output. The exit code.
int TellGpus();

}  // namespace dtrain::inventory
