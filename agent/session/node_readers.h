// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/inventory/gpu_looks.h"
#include "agent/inventory/gpu_watch.h"
#include "agent/inventory/nvml.h"
#include "agent/inventory/xid_watch.h"
#include "agent/session/surroundings.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"

namespace dtrain::session {

// Reads what the node has, for sessions: the GPUs in processes of their own, as a driver may take
// seconds, or hang. The first look at them begins with the object. Those who only want to know
// share a look: however many they are, there is one a second, and only while somebody asks. Loop
// thread.
class NodeReaders {
 public:
  using Done = absl::AnyInvocable<void(v1::Inventory)>;
  // `program` is this agent's own file, which looks at the GPUs as `<program> gpus`, and watches
  // them as `<program> gpuwatch`.
  explicit NodeReaders(loop::Loop& loop, std::string program = "/proc/self/exe");
  Readers readers();

 private:
  void ReadGpus(inventory::GpuLook::Done done);
  void Read(Done done);
  void ReadStatus(Done done);
  void ReadRestOfStatus(const inventory::GpuReport& gpus);
  void OnStatus(v1::Inventory inventory);
  void GiveUpOnGpus();
  void Tell(const inventory::GpuReport& report, Done& done);
  v1::Inventory ReadRest();

  loop::Loop& loop_;
  inventory::XidWatch xids_;  // the pool's
  inventory::GpuLooks looks_;
  inventory::GpuWatches watches_;
  loop::BlockingPool pool_{1};
  bool first_pending_ = true;                 // the look that begins with us
  TimePoint first_at_;                        // when it was over
  std::optional<inventory::GpuReport> gpus_;  // what it saw, until somebody asks
  std::vector<Done> waiting_;                 // for the first look
  std::optional<v1::Inventory> rest_;         // all but the GPUs
  TimePoint rest_at_;
  std::optional<v1::Inventory> status_;  // for status questions
  TimePoint status_at_;
  bool status_pending_ = false;  // a look of theirs is under way
  std::vector<Done> status_waiting_;
  loop::Timer patience_;
};

}  // namespace dtrain::session
