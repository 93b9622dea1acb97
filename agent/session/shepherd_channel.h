// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/spawn/processes.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// The agent's end of one shepherd: speaks to it, notices its end. With it goes what runs of its job
// here. Loop thread.
class ShepherdChannel {
 public:
  using OnEvent = absl::AnyInvocable<void(v1::ShepherdEvent event, os::UniqueFd fd)>;
  using OnGone = absl::AnyInvocable<void(std::string why)>;

  ShepherdChannel(loop::Loop& loop, std::unique_ptr<spawn::Processes> processes);
  ShepherdChannel(const ShepherdChannel&) = delete;
  ShepherdChannel& operator=(const ShepherdChannel&) = delete;

  spawn::Processes& processes() { return *processes_; }
  const spawn::Processes& processes() const { return *processes_; }
  // From now on events are handed over; what came before is kept for it. Again: to others.
  void Listen(OnEvent on_event, OnGone on_gone);
  // RESOURCE_EXHAUSTED: it is too long, and was not sent.
  absl::Status Send(const v1::ShepherdRequest& request, int fd = -1);
  // Kills it: it did what no shepherd of ours does. Its listener hears that it is gone.
  void Break(std::string why);

 private:
  void OnFrame(absl::string_view frame, os::UniqueFd fd);
  void Gone(std::string why);

  // Destroyed after the channel, whose end tells the shepherd to end.
  const std::unique_ptr<spawn::Processes> processes_;
  std::unique_ptr<loop::FrameChannel> channel_;
  OnEvent on_event_;
  OnGone on_gone_;
  std::string gone_why_;  // until Listen
  bool gone_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
