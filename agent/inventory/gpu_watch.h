// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "common/os/spawn.h"
#include "dtrain/v1/node.pb.h"

namespace dtrain::inventory {

// Watches the GPUs of jobs, each job's by a child, `program gpuwatch MS UUID...`, which keeps
// NVML open: it is how an error is heard at once, and a driver that hangs keeps nobody but that
// child. One that cannot even be killed is left behind. Loop thread.
class GpuWatches {
 public:
  // Errors in them are those since the watch began; ECC errors are counted since the driver was
  // loaded.
  using OnStates = absl::AnyInvocable<void(v1::GpuStates)>;

 private:
  struct Child;

 public:
  // Ends with this. Must not outlive the GpuWatches.
  class Watch {
   public:
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    // The driver does not answer: nothing has come for several periods from a child that lives.
    bool hangs() const;

   private:
    friend class GpuWatches;
    Watch(GpuWatches& all, Child& child) : all_(all), child_(child) {}
    GpuWatches& all_;
    Child& child_;
  };

  // `period`: how often a child says how the GPUs are.
  GpuWatches(loop::Loop& loop, std::string program,
             std::chrono::milliseconds period = std::chrono::seconds(10));
  ~GpuWatches();
  GpuWatches(const GpuWatches&) = delete;
  GpuWatches& operator=(const GpuWatches&) = delete;

  // Null: the child cannot be started, which was logged. `on_states` may destroy the watch.
  std::unique_ptr<Watch> Begin(const std::vector<std::string>& uuids, OnStates on_states);

 private:
  void OnFrame(Child& child, absl::string_view frame);
  void AwaitFrame(Child& child);
  void Reap(Child& child);
  void LetGo(Child& child);
  void ForgetIfOver(const Child* child);

  loop::Loop& loop_;
  const std::string program_;
  const std::chrono::milliseconds period_;
  std::list<Child> children_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::inventory
