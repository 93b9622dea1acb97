// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/session/relay_room.h"
#include "agent/spawn/processes.h"
#include "common/link/frame_relay.h"
#include "common/link/socket_carrier.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "dtrain/v1/agent.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// The agent's end of one shepherd: speaks to it, notices its end, and passes on what it and the
// launcher say to each other. No descriptor is taken from it: it is its user's, and may be
// anything. With it goes what runs of its job here. Loop thread.
class ShepherdChannel {
 public:
  struct Handlers {
    absl::AnyInvocable<void(v1::ShepherdEvent event)> on_event;
    // The answer to Attach: from now on frames pass. What it says of itself is for the launcher,
    // before any of them.
    absl::AnyInvocable<void(const v1::Party& shepherd)> on_attached;
    // A frame of it has come; there may be a next one for the launcher.
    absl::AnyInvocable<void()> on_frame;
    absl::AnyInvocable<void(std::string why)> on_gone;
  };

  ShepherdChannel(loop::Loop& loop, std::unique_ptr<spawn::Processes> processes);
  ~ShepherdChannel();
  ShepherdChannel(const ShepherdChannel&) = delete;
  ShepherdChannel& operator=(const ShepherdChannel&) = delete;

  spawn::Processes& processes() { return *processes_; }
  const spawn::Processes& processes() const { return *processes_; }
  // `room` counts the frames that wait here. If there is no room for more on the way back, the
  // channel reads none of its shepherd's while its launcher has some to take; if there is none on
  // the way forth, Pass fails. Once, before Attach.
  void ShareRoom(std::shared_ptr<RelayRoom> room);
  // From now on events are handed over; what came before is kept for it. Again: to others.
  void Listen(Handlers handlers);
  // The shepherd's socket has taken all that was sent.
  bool has_all() const { return gone_ || channel_->queued_bytes() == 0; }
  // RESOURCE_EXHAUSTED: the request is too long, and was not sent.
  absl::Status Send(const v1::ShepherdRequest& request, int fd = -1);
  // Asks for output; the socket on which it comes. UNAVAILABLE: the shepherd is gone.
  absl::StatusOr<os::UniqueFd> ReadLogs(const v1::ReadLogs& request);
  // Kills it: it did what no shepherd of ours does. Its listener hears that it is gone.
  void Break(std::string why);

  // A launcher has come, perhaps before the one before it was seen to go. Nothing happens where the
  // shepherd is gone. `most_silence`: of the launcher, after which the shepherd ends the workers;
  // zero: its silence does not count. `generation`: one that is higher than the last one's hears
  // all again.
  absl::Status Attach(const v1::Party& launcher, Duration most_silence, uint64_t generation = 0);
  // It is gone.
  void Detach();
  // A frame of a launcher that was attached. Errors are the launcher's. RESOURCE_EXHAUSTED: the
  // shepherds of its user, this one among them, have left too many frames unread.
  absl::Status Pass(link::Frame frame);
  std::optional<link::Frame> NextToLauncher() { return Take(link::FrameRelay::From::kFront); }
  bool gone() const { return gone_; }

 private:
  void OnMessage(absl::string_view message);
  void OnAttached(const v1::Party& shepherd);
  void OnFrame(link::Frame frame);
  std::optional<link::Frame> Take(link::FrameRelay::From to);
  void CheckRoom(bool may_pause = false);
  absl::Status CheckRoomForth() const;
  void OnClosed(const absl::Status& why);
  void OnProcessEnded(std::string how);
  void Gone(std::string why);

  loop::Loop& loop_;
  // Destroyed after the channel, whose end tells the shepherd to end.
  const std::unique_ptr<spawn::Processes> processes_;
  std::unique_ptr<loop::FrameChannel> channel_;
  link::FrameRelay relay_;
  std::unique_ptr<link::SocketCarrier> carrier_;  // of the last Attach
  std::shared_ptr<RelayRoom> room_;               // null: no limit
  RelayRoom::Held held_;                          // in it, by us
  bool waits_for_room_ = false;
  loop::Timer broken_;
  TimePoint counted_since_{};
  size_t messages_ = 0, bytes_ = 0;  // of it, since then
  // Others may be named while one of them runs.
  std::shared_ptr<Handlers> handlers_ = std::make_shared<Handlers>();
  std::string gone_why_;  // until Listen
  bool gone_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
