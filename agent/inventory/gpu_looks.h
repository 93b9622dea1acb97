// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "agent/inventory/gpu_look.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"

namespace dtrain::inventory {

// An agent's looks at the GPUs, a few at a time: a caller for whom there is no room waits until one
// of them ends, and shares the next with all who wait. Only when every look has outlasted its
// patience, and its process cannot even be killed, does the driver count as hung: then callers hear
// so at once. Loop thread.
class GpuLooks {
 public:
  // `program` and `patience` as of GpuLook, for each of them.
  GpuLooks(loop::Loop& loop, std::string program, Duration patience);
  GpuLooks(const GpuLooks&) = delete;
  GpuLooks& operator=(const GpuLooks&) = delete;
  // `done` hears of a look that began after this call.
  void Look(GpuLook::Done done);

 private:
  struct UnderWay {
    TimePoint late_at;
    std::unique_ptr<GpuLook> look;
  };
  void Serve();
  void Begin();

  loop::Loop& loop_;
  const std::string program_;
  const Duration patience_;
  std::vector<GpuLook::Done> waiting_;
  std::list<UnderWay> looks_;
  loop::Timer late_;  // while somebody waits
};

}  // namespace dtrain::inventory
