// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/inventory/nvml.h"
#include "agent/session/session.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"

namespace dtrain::agent {

// Reads what the node has, for sessions: the GPUs on a thread of their own, as a driver may take
// seconds. The first look at them begins with the object. Loop thread.
class NodeReaders {
 public:
  explicit NodeReaders(loop::Loop& loop);
  session::Readers readers();

 private:
  void ReadGpus(absl::AnyInvocable<void(inventory::GpuReport)> done);
  void Read(absl::AnyInvocable<void(v1::Inventory)> done);
  void Tell(const inventory::GpuReport& report, absl::AnyInvocable<void(v1::Inventory)>& done);

  loop::Loop& loop_;
  loop::BlockingPool pool_{1};
  bool first_pending_ = true;                 // the look that begins with us
  std::optional<inventory::GpuReport> gpus_;  // what it saw, until somebody asks
  std::vector<absl::AnyInvocable<void(v1::Inventory)>> waiting_;  // for the first look
};

}  // namespace dtrain::agent
