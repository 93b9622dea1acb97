// SPDX-License-Identifier: Apache-2.0
#include "agent/session/shepherd_channel.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/link/party.h"
#include "common/log/log.h"
#include "common/os/fd.h"
#include "common/rpc/bounded_message.h"

namespace dtrain::session {
namespace {

using From = link::FrameRelay::From;

// Of our own requests that it has not read: all of them are short, and few.
constexpr size_t kMostQueued = 4 << 20;
// Of them those with a socket, which is ours until it is sent.
constexpr size_t kMostQueuedSockets = 64;

// Of a message of its own, as it comes and as it is kept: a report on 16,384 ranks fits. It is its
// user's, and could fill the memory of all.
constexpr size_t kMostMessage = 4 << 20;
constexpr size_t kMostParsed = 32 << 20;

// Of messages in a second: one has a report, and some have answers. They are work for the loop of
// all.
constexpr Duration kCountTime = std::chrono::seconds(1);
constexpr size_t kMostMessages = 10'000;
constexpr size_t kMostBytes = 64 << 20;

// From the end of its frames to that of its process.
constexpr Duration kEndPatience = std::chrono::milliseconds(500);

}  // namespace

ShepherdChannel::ShepherdChannel(loop::Loop& loop, std::unique_ptr<spawn::Processes> processes)
    : loop_(loop),
      processes_(std::move(processes)),
      relay_(link::Channel::kJob, link::kToShepherd, link::kToLauncher),
      broken_(loop) {
  channel_ = std::make_unique<loop::FrameChannel>(
      loop, processes_->TakeSocket(),
      [this](absl::string_view message, const os::UniqueFd&) { OnMessage(message); },
      [this](const absl::Status& why) { OnClosed(why); }, loop::FrameChannel::Descriptors::kRefused,
      kMostMessage);
  processes_->WhenShepherdEnded([this](std::string how) { OnProcessEnded(std::move(how)); });
}

ShepherdChannel::~ShepherdChannel() {
  *alive_ = false;
  if (room_ != nullptr) room_->Replace(held_, {});
}

void ShepherdChannel::ShareRoom(std::shared_ptr<RelayRoom> room) {
  room_ = std::move(room);
  CheckRoom();
}

// What it said last is still in the sockets and must be heard before its end is acted upon.
void ShepherdChannel::OnProcessEnded(std::string how) {
  const std::shared_ptr<bool> alive = alive_;
  channel_->ReadToEnd();
  if (*alive && carrier_ != nullptr) carrier_->ReadToEnd();
  if (*alive) Gone(std::move(how));
}

void ShepherdChannel::OnMessage(absl::string_view message) {
  if (gone_) return;
  if (loop_.Now() >= counted_since_ + kCountTime) {
    counted_since_ = loop_.Now();
    messages_ = bytes_ = 0;
  }
  bytes_ += message.size();
  if (++messages_ > kMostMessages || bytes_ > kMostBytes) {
    return Break(absl::StrCat("it sent ", messages_, " messages of ", bytes_,
                              " bytes in all within a second"));
  }
  v1::ShepherdEvent event;
  if (absl::Status parsed = rpc::Parse(message, &event, kMostParsed); !parsed.ok()) {
    return Break(absl::StrCat("it sent a message that cannot be read: ", parsed.message()));
  }
  if (event.has_attached()) return OnAttached(event.attached());
  const std::shared_ptr<Handlers> handlers = handlers_;
  if (handlers->on_event) handlers->on_event(std::move(event));
}

void ShepherdChannel::OnAttached(const v1::Party& shepherd) {
  const absl::StatusOr<bool> last = relay_.OnAttached();
  if (!last.ok()) return Break(std::string(last.status().message()));
  const std::shared_ptr<Handlers> handlers = handlers_;
  if (*last && handlers->on_attached) handlers->on_attached(shepherd);
}

void ShepherdChannel::Listen(Handlers handlers) {
  handlers_ = std::make_shared<Handlers>(std::move(handlers));
  if (gone_) std::exchange(handlers_->on_gone, nullptr)(gone_why_);
}

absl::Status ShepherdChannel::Send(const v1::ShepherdRequest& request, int fd) {
  if (gone_) return absl::OkStatus();
  if (channel_->queued_bytes() > kMostQueued ||
      channel_->queued_descriptors() > kMostQueuedSockets) {
    log::Warn(absl::StrCat("killing shepherd ", processes_->shepherd_pid(),
                           ": it reads nothing of ", channel_->queued_bytes(), " bytes"));
    processes_->KillShepherd();
    return absl::OkStatus();  // on_gone reports its end, as usual
  }
  const absl::Status sent = channel_->Send(request.SerializeAsString(), fd);
  // Frames wait for it.
  if (channel_->queued_bytes() > 0) {
    channel_->OnDrained([this] {
      if (carrier_ != nullptr) carrier_->Pump();
    });
  }
  return sent;
}

absl::StatusOr<os::UniqueFd> ShepherdChannel::ReadLogs(const v1::ReadLogs& request) {
  if (gone_) return absl::UnavailableError(absl::StrCat("the shepherd is gone: ", gone_why_));
  auto pair = os::SocketPair();
  if (!pair.ok()) return pair.status();
  os::RefuseDescriptors(pair->first.get());
  v1::ShepherdRequest ask;
  *ask.mutable_read_logs() = request;
  if (absl::Status sent = Send(ask, pair->second.get()); !sent.ok()) return sent;
  return std::move(pair->first);
}

absl::Status ShepherdChannel::Attach(const v1::Party& launcher, Duration most_silence,
                                     uint64_t generation) {
  if (gone_) return absl::OkStatus();
  relay_.Attach();
  CheckRoom();
  auto pair = os::SocketPair();
  if (!pair.ok()) return pair.status();
  os::RefuseDescriptors(pair->first.get());
  // A new one each time: what was under way for another connection of the launcher goes with the
  // old one, and is sent again as far as it is needed.
  carrier_ = std::make_unique<link::SocketCarrier>(
      loop_, std::move(pair->first),
      link::CarrierHandlers{[this]() -> std::optional<link::Frame> {
                              // What came on the other socket comes first.
                              if (channel_->queued_bytes() > 0) return std::nullopt;
                              return Take(From::kBack);
                            },
                            [this](link::Frame frame) { OnFrame(std::move(frame)); },
                            [this](const absl::Status& why) { OnClosed(why); }});
  v1::ShepherdRequest request;
  *request.mutable_attach()->mutable_launcher() = launcher;
  request.mutable_attach()->set_silence_ms(static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(most_silence).count()));
  request.mutable_attach()->set_generation(generation);
  return Send(request, pair->second.get());
}

// Mostly the process ends, which then tells how. It may do so within a frame, or before it has read
// all that we sent, which is an error here; what it said on the other socket is still to be heard.
void ShepherdChannel::OnClosed(const absl::Status& why) {
  if (why.ok()) return;
  broken_.After(kEndPatience, [this, text = std::string(why.message())] { Break(text); });
}

void ShepherdChannel::Detach() {
  relay_.Detach();
  CheckRoom();
}

absl::Status ShepherdChannel::Pass(link::Frame frame) {
  if (gone_) return absl::OkStatus();
  if (absl::Status passed = relay_.Pass(From::kFront, std::move(frame)); !passed.ok()) {
    return passed;
  }
  carrier_->Pump();
  CheckRoom();
  return CheckRoomForth();
}

std::optional<link::Frame> ShepherdChannel::Take(From to) {
  std::optional<link::Frame> frame = relay_.NextTo(to);
  CheckRoom();
  return frame;
}

// It waits only while its own launcher has something to take, which ends the wait: never for the
// launcher of another job, which may not read for as long as it likes.
void ShepherdChannel::CheckRoom(bool may_pause) {
  if (room_ == nullptr) return;
  const RelayRoom::Held now{relay_.memory(From::kFront), relay_.memory(From::kBack)};
  room_->Replace(std::exchange(held_, now), now);
  waits_for_room_ = !room_->fits_back() && now.back > 0 && (waits_for_room_ || may_pause);
  if (carrier_ != nullptr) carrier_->SetPaused(waits_for_room_);
}

absl::Status ShepherdChannel::CheckRoomForth() const {
  if (room_ == nullptr || room_->fits_forth() || held_.forth == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("this user's jobs here have left more than ", room_->most().forth,
                   " bytes of their launchers unread, this job among them"));
}

// What it told us came before it.
void ShepherdChannel::OnFrame(link::Frame frame) {
  const std::shared_ptr<bool> alive = alive_;
  channel_->ReadToEnd();
  if (!*alive || gone_) return;
  if (absl::Status passed = relay_.Pass(From::kBack, std::move(frame)); !passed.ok()) {
    return Break(std::string(passed.message()));
  }
  CheckRoom(/*may_pause=*/true);
  const std::shared_ptr<Handlers> handlers = handlers_;
  if (handlers->on_frame) handlers->on_frame();
}

void ShepherdChannel::Break(std::string why) {
  log::Warn(absl::StrCat("killing shepherd ", processes_->shepherd_pid(), ": ", why));
  processes_->KillShepherd();
  Gone(std::move(why));
}

void ShepherdChannel::Gone(std::string why) {
  if (std::exchange(gone_, true)) return;
  broken_.Cancel();
  gone_why_ = std::move(why);
  const std::shared_ptr<Handlers> handlers = handlers_;
  if (handlers->on_gone) std::exchange(handlers->on_gone, nullptr)(gone_why_);
}

}  // namespace dtrain::session
