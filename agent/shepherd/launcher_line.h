// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/link/link_core.h"
#include "common/link/socket_carrier.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::shepherd {

// The shepherd's end of its conversation with the launcher, over the sockets that agents bring,
// one after the other: what is said arrives once and in order, as long as both live. Loop thread.
class LauncherLine {
 public:
  struct Handlers {
    absl::AnyInvocable<void(v1::JobRequest)> on_request;
    // Nothing can be said any more, as what was said was not acknowledged, or the launcher broke a
    // rule. Once, on the loop.
    absl::AnyInvocable<void(std::string why)> on_broken;
    // What was said to the agent is on its way: only then may what follows from it go.
    absl::AnyInvocable<bool()> may_send;
    // Before a start: what the agent has said first is to be heard first.
    absl::AnyInvocable<void()> before_start;
    // All has been said, or there is nobody to hear it.
    absl::AnyInvocable<void()> on_said;
    // It has said nothing for as long as it may, through whatever agent. Once.
    absl::AnyInvocable<void(Duration silence)> on_silent;
  };
  // What is a state, of which the newest counts.
  enum State : size_t { kProgress = 0, kSpans = 1, kBeat = 2 };

  LauncherLine(loop::Loop& loop, Handlers handlers);
  ~LauncherLine();
  LauncherLine(const LauncherLine&) = delete;
  LauncherLine& operator=(const LauncherLine&) = delete;

  struct Attached {
    v1::Party ours;           // what the launcher is to be told of us, before the next call of Pump
    bool is_another = false;  // it knows nothing of what was said: what still counts is to be sent
  };
  // The launcher is `peer`, at the other end of `socket`, and may be silent for `most_silence`
  // (zero: for ever); that long again where its connection has ended, to come back. Time in which
  // this process does not run does not count. `generation`: one that is higher than the last one's
  // is another launcher; a lower one is not heard.
  Attached Attach(os::UniqueFd socket, const v1::Party& peer, Duration most_silence,
                  uint64_t generation);
  // Its agent is gone.
  void Detach();
  bool attached() const { return core_->state() == link::LinkCore::State::kUp; }

  bool is_detached() const { return generation_.value_or(0) > 0; }  // its job is
  // By whatever agent; or until when its silence did not count.
  TimePoint last_heard() const { return std::max(core_->last_heard(), excused_); }

  // Kept until the launcher has it.
  void Send(const v1::JobEvent& event);
  void SendFailure(v1::NodeFailure failure);
  // Those that were said so far, to a launcher that has not heard them.
  void SendFailuresAgain();
  void AnswerBeat();
  // `detail`: of interest only when the job fails, or with --verbose.
  void Warn(std::string message, bool detail = false);
  // Not kept, unless it is too long for that; for when nothing of the kind waits.
  void SendState(State state, const v1::JobEvent& event);
  bool waits(State state) const { return core_->waits(state) || core_->acked() < long_[state]; }
  size_t room() const { return core_->room(); }
  // It has asked for what no launcher of ours does.
  void Break(const std::string& why) { Broken(absl::InvalidArgumentError(why)); }
  // All of it is with the socket.
  bool said() const;
  void Pump();

 private:
  std::optional<link::Frame> Next();
  void OnFrame(const link::Frame& frame);
  void Broken(const absl::Status& why);
  void Closed();
  void WatchSilence();
  void Forget();

  loop::Loop& loop_;
  Handlers handlers_;
  std::optional<link::LinkCore> core_;  // always; another for another launcher
  std::optional<uint64_t> generation_;  // of the launcher; absent: none has come
  std::unique_ptr<link::SocketCarrier> carrier_;
  loop::Timer due_;
  std::array<uint64_t, 3> long_{};  // of each state the last that was kept
  Duration most_silence_ = Duration::zero();
  TimePoint excused_{};  // as if it had been heard then
  loop::Timer silence_;
  std::vector<v1::NodeFailure> failures_;
  bool broken_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::shepherd
