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
#include "common/base/posix_error.h"
#include "common/log/log.h"
#include "common/os/credentials.h"

namespace dtrain::shepherd {
namespace {

using Event = v1::ShepherdEvent;

// What a launcher must hear of exactly once. The rest is a state that the next one replaces.
bool IsKept(Event::KindCase kind) {
  switch (kind) {
    case Event::kStarted:
    case Event::kExit:
    case Event::kStdinTaken:
    case Event::kFenceEnter:
    case Event::kFinished:
    case Event::kFailure:
    case Event::kWarning:
      return true;
    case Event::kLogOpened:
    case Event::kLogGrown:
    case Event::kProgress:
    case Event::kSpans:
    case Event::kAccount:
    case Event::KIND_NOT_SET:
      return false;
  }
  return false;
}

}  // namespace

AgentLine::AgentLine(loop::Loop& loop, os::UniqueFd socket, Handlers handlers)
    : loop_(loop), handlers_(std::move(handlers)), lease_(loop) {
  Attach(std::move(socket));
}

void AgentLine::Attach(os::UniqueFd socket) {
  channel_ = std::make_unique<loop::FrameChannel>(
      loop_, std::move(socket),
      [this](absl::string_view frame, os::UniqueFd fd) { OnFrame(frame, std::move(fd)); },
      [this](const absl::Status&) { OnClosed(); });
}

void AgentLine::Send(Event event, int fd) {
  if (kept_ && IsKept(event.kind_case())) event = outbox_.Add(std::move(event));
  event.set_received(inbox_.last());
  if (channel_ != nullptr) channel_->Send(event.SerializeAsString(), fd);
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
    log::Error("the agent sent a message that is none");
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
          channel_->Send(event.SerializeAsString());
        }
      }
      break;
    case v1::ShepherdRequest::kRelease:
      handlers_.on_released();
      break;
    default:
      handlers_.on_request(std::move(request));
  }
}

void AgentLine::Keep(v1::KeepRunning keep, os::UniqueFd bound) {
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
  if (!peer.ok() || (peer->uid != 0 && peer->uid != geteuid())) {
    log::Warn("a process of another user tried to pose as the agent");
    return;
  }
  // One agent at a time, as its lock sees to: the one before is gone or about to be.
  lease_.Cancel();
  Attach(std::move(socket));
  if (on_drained_) std::exchange(on_drained_, nullptr)();  // what was queued is gone
  handlers_.on_adopted();
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
  if (kept_ && channel_ == nullptr && !lost_) AwaitLease();
}

void AgentLine::AwaitLease() {
  TimePoint end = alone_since_ + std::chrono::milliseconds(kept_->hello().lease_ms());
  if (limit_) end = std::min(end, std::max(alone_since_, limited_since_) + *limit_);
  lease_.At(end, [this] { Lose(); });
}

void AgentLine::Lose() {
  if (std::exchange(lost_, true)) return;
  accept_.reset();
  listening_.Reset();
  handlers_.on_lost();
}

}  // namespace dtrain::shepherd
