// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/agent_line.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "common/base/exit_code.h"
#include "common/base/own_pause.h"
#include "common/base/posix_error.h"
#include "common/log/log.h"
#include "common/os/credentials.h"

namespace dtrain::shepherd {
namespace {

using Event = v1::ShepherdEvent;

// How often the time is looked at during a lease, so that a pause of our own is seen as one.
constexpr int kLooksPerLease = 20;

// What a launcher must hear of exactly once. The rest is a state that the next one replaces, or the
// agent's.
bool IsKept(const Event& event) {
  return event.has_job() && !event.job().has_progress() && !event.job().has_spans();
}

// Its number and what it acknowledges come on top.
constexpr size_t kMostEvent = loop::FrameChannel::kMaxFrame - 64;

Event TooLong(size_t bytes) {
  Event event;
  *event.mutable_job()->mutable_failure() = MakeFailure(
      v1::NodeFailure::KIND_RESOURCES, kExitState,
      absl::StrCat("the workers of this node have put ", bytes, " bytes into one message; ",
                   kMostEvent, " can be passed on at most"));
  return event;
}

}  // namespace

AgentLine::AgentLine(loop::Loop& loop, os::UniqueFd socket, Handlers handlers)
    : loop_(loop), handlers_(std::move(handlers)), lease_(loop) {
  Attach(std::move(socket));
}

AgentLine::AgentLine(loop::Loop& loop, Door door, Handlers handlers)
    : loop_(loop),
      handlers_(std::move(handlers)),
      agent_uid_(door.agent_uid),
      has_door_(true),
      first_lease_(door.lease),
      listening_(std::move(door.listening)),
      lease_(loop),
      alone_since_(loop.Now()) {
  accept_ = std::make_unique<loop::FdWatch>(loop_, listening_.get());
  AwaitAgent();
  AwaitLease();
}

void AgentLine::Attach(os::UniqueFd socket) {
  channel_ = std::make_unique<loop::FrameChannel>(
      loop_, std::move(socket),
      [this](absl::string_view frame, os::UniqueFd fd) { OnFrame(frame, std::move(fd)); },
      [this](const absl::Status&) { OnClosed(); });
}

void AgentLine::Send(Event event, int fd) {
  if (const size_t bytes = event.ByteSizeLong(); bytes > kMostEvent) event = TooLong(bytes);
  if (kept_ && IsKept(event)) {
    if (outbox_.full()) Overflow();
    if (!overflowed_) event = outbox_.Add(std::move(event));
  }
  event.set_received(inbox_.last());
  if (channel_ != nullptr) Write(event, fd);
}

void AgentLine::Write(const Event& event, int fd) {
  const absl::Status sent = channel_->Send(event.SerializeAsString(), fd);
  if (!sent.ok()) log::Error(absl::StrCat("to the agent: ", sent.message()));
}

// Nobody could be told all of it again. What comes from now on is said once.
void AgentLine::Overflow() {
  if (std::exchange(overflowed_, true)) return;
  Event event;
  v1::NodeFailure& failure = *event.mutable_job()->mutable_failure();
  failure.set_exit_code(kExitAgentLost);
  failure.set_message(absl::StrCat(
      "the launcher has not acknowledged the last ", outbox_.kept().size(),
      " messages of this node, and no more are kept for it; its workers are being ended. This is "
      "a bug in dtrain: please report it"));
  log::Error(failure.message());
  Send(std::move(event));
  loop_.Post([this] { Lose(); });
}

void AgentLine::OnDrained(loop::Task task) {
  on_drained_ = std::move(task);
  if (channel_ == nullptr || channel_->queued_bytes() == 0) {
    loop_.Post([this] {
      if (on_drained_) std::exchange(on_drained_, nullptr)();
    });
    return;
  }
  channel_->OnDrained([this] {
    if (on_drained_) std::exchange(on_drained_, nullptr)();
  });
}

void AgentLine::OnFrame(absl::string_view frame, os::UniqueFd fd) {
  v1::ShepherdRequest request;
  if (!request.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
    log::Error("the agent sent an invalid message");
    return;
  }
  outbox_.Acknowledge(request.acknowledged());
  if (!inbox_.Take(request.sequence())) return;
  switch (request.kind_case()) {
    case v1::ShepherdRequest::kKeepRunning:
      Keep(std::move(*request.mutable_keep_running()), std::move(fd));
      break;
    case v1::ShepherdRequest::kReplay:
      for (const Event& event : outbox_.kept()) {
        if (event.sequence() > request.replay().after()) {
          Write(event);
        }
      }
      break;
    case v1::ShepherdRequest::kRelease:
      handlers_.on_released();
      break;
    case v1::ShepherdRequest::kHeldPort:
      handlers_.on_held_port(request.held_port().port(), std::move(fd));
      break;
    case v1::ShepherdRequest::kJob:
      handlers_.on_request(std::move(*request.mutable_job()));
      break;
    case v1::ShepherdRequest::KIND_NOT_SET:
      break;  // an acknowledgement
  }
}

void AgentLine::Keep(v1::KeepRunning keep, os::UniqueFd bound) {
  if (has_door_) {
    kept_ = std::move(keep);
    return;
  }
  // The agent has bound it; who calls listen() is whom the next agent will see as its peer.
  if (!bound || listen(bound.get(), 1) != 0) {
    log::Error(absl::StrCat("cannot wait for another agent: ", PosixErrorText(errno)));
    return;
  }
  kept_ = std::move(keep);
  listening_ = std::move(bound);
  accept_ = std::make_unique<loop::FdWatch>(loop_, listening_.get());
  AwaitAgent();
}

void AgentLine::AwaitAgent() {
  accept_->OnReadable([this] { Accept(); });
}

void AgentLine::Accept() {
  os::UniqueFd socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  AwaitAgent();
  if (!socket) return;
  auto peer = os::PeerOf(socket.get());
  if (!peer.ok() || !MayAttach(peer->uid)) {
    log::Warn("a process of another user tried to pose as the agent");
    return;
  }
  // One agent at a time, as its lock sees to: the one before is gone or about to be.
  lease_.Cancel();
  Attach(std::move(socket));
  if (on_drained_) std::exchange(on_drained_, nullptr)();  // what was queued is gone
  if (kept_) handlers_.on_adopted();
}

bool AgentLine::MayAttach(uid_t uid) const {
  return agent_uid_ ? uid == *agent_uid_ : uid == 0 || uid == geteuid();
}

void AgentLine::OnClosed() {
  channel_.reset();
  if (on_drained_) std::exchange(on_drained_, nullptr)();
  if (!kept_) return Lose();
  alone_since_ = loop_.Now();
  AwaitLease();
}

void AgentLine::WaitAtMost(Duration limit) {
  if (limit_) return;
  limit_ = limit;
  limited_since_ = loop_.Now();
  if ((kept_ || has_door_) && channel_ == nullptr && !lost_) AwaitLease();
}

void AgentLine::AwaitLease() {
  const Duration lease =
      kept_ ? Duration(std::chrono::milliseconds(kept_->hello().lease_ms())) : first_lease_;
  TimePoint end = alone_since_ + lease;
  if (limit_) end = std::min(end, std::max(alone_since_, limited_since_) + *limit_);
  const TimePoint begin = loop_.Now();
  if (begin >= end) return Lose();
  const TimePoint look = std::min(end, begin + lease / kLooksPerLease);
  lease_.At(look, [this, begin, look, lease] {
    alone_since_ += OwnPause(begin, look, loop_.Now(), lease / kLooksPerLease);
    AwaitLease();
  });
}

void AgentLine::Lose() {
  if (std::exchange(lost_, true)) return;
  accept_.reset();
  listening_.Reset();
  handlers_.on_lost();
}

}  // namespace dtrain::shepherd
