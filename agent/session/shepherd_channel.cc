// SPDX-License-Identifier: Apache-2.0
#include "agent/session/shepherd_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"

namespace dtrain::session {
namespace {

// Of requests that it has not read: a launcher waits for its answers. Twice the longest.
constexpr size_t kMostQueued = 128 << 20;

}  // namespace

ShepherdChannel::ShepherdChannel(loop::Loop& loop, std::unique_ptr<spawn::Processes> processes)
    : processes_(std::move(processes)) {
  channel_ = std::make_unique<loop::FrameChannel>(
      loop, processes_->TakeSocket(),
      [this](absl::string_view frame, os::UniqueFd fd) { OnFrame(frame, std::move(fd)); },
      [this](absl::Status why) {
        // An orderly end of file means that the process ends; that then tells how.
        if (!why.ok()) Gone(std::string(why.message()));
      });
  processes_->WhenShepherdEnded([this](std::string how) {
    // What it said last is still in the socket and must be heard before its end is acted upon.
    const std::weak_ptr<bool> alive = alive_;
    channel_->ReadToEnd();
    if (!alive.expired()) Gone(std::move(how));
  });
}

void ShepherdChannel::OnFrame(absl::string_view frame, os::UniqueFd fd) {
  v1::ShepherdEvent event;
  if (!event.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
    return Gone("it sent a message that cannot be read");
  }
  if (!on_event_) return;
  // It may name others to listen from inside.
  OnEvent on_event = std::exchange(on_event_, nullptr);
  const std::weak_ptr<bool> alive = alive_;
  on_event(std::move(event), std::move(fd));
  if (!alive.expired() && !on_event_) on_event_ = std::move(on_event);
}

void ShepherdChannel::Listen(OnEvent on_event, OnGone on_gone) {
  on_event_ = std::move(on_event);
  on_gone_ = std::move(on_gone);
  if (gone_) std::exchange(on_gone_, nullptr)(gone_why_);
}

absl::Status ShepherdChannel::Send(const v1::ShepherdRequest& request, int fd) {
  if (channel_->queued_bytes() > kMostQueued && !gone_) {
    log::Warn(absl::StrCat("killing shepherd ", processes_->shepherd_pid(),
                           ": it reads nothing of ", channel_->queued_bytes(), " bytes"));
    processes_->KillShepherd();
    return absl::OkStatus();  // OnGone reports its end, as usual
  }
  return channel_->Send(request.SerializeAsString(), fd);
}

void ShepherdChannel::Break(std::string why) {
  log::Warn(absl::StrCat("killing shepherd ", processes_->shepherd_pid(), ": ", why));
  processes_->KillShepherd();
  Gone(std::move(why));
}

void ShepherdChannel::Gone(std::string why) {
  if (std::exchange(gone_, true)) return;
  gone_why_ = std::move(why);
  if (on_gone_) std::exchange(on_gone_, nullptr)(gone_why_);
}

}  // namespace dtrain::session
