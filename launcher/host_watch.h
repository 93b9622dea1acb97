// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/transport/transport.h"
#include "launcher/transport/ways.h"

namespace dtrain {

// Looks now and then whether hosts can be reached that the job does without: an agent answers
// there, over the way that a launch would take, and is let go again. Loop thread.
class HostWatch {
 public:
  using OnLooked = absl::AnyInvocable<void(uint32_t host, bool reachable)>;
  // `ways`: outlives it. `pause`: between two looks at a host.
  HostWatch(loop::Loop& loop, transport::Ways& ways, Duration pause, OnLooked on_looked);
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

  // At these from now on, and at no others. `hosts`: indices in `all`.
  void Watch(const hosts::HostList& all, const std::vector<uint32_t>& hosts);

 private:
  struct Look {
    explicit Look(loop::Loop& loop) : next(loop) {}
    hosts::HostEntry entry;
    std::unique_ptr<transport::Connection> connection;  // of the look that goes on
    loop::Timer next;
  };
  void Begin(uint32_t host, Look& look);
  void OnEnd(uint32_t host, Look& look, bool reachable);

  loop::Loop& loop_;
  transport::Ways& ways_;
  const Duration pause_;
  OnLooked on_looked_;
  std::map<uint32_t, std::unique_ptr<Look>> looks_;
};

}  // namespace dtrain
