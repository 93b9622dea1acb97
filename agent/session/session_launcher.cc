// SPDX-License-Identifier: Apache-2.0
// A session's launcher: its stream, of which channel 0 is ours, and channel 1 the shepherd's.
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/session/session.h"
#include "common/link/party.h"
#include "common/rpc/bounded_message.h"

namespace dtrain::session {
namespace {

// Of what is not kept on channel 0.
constexpr size_t kBeat = 0;
constexpr size_t kAttached = 1;

}  // namespace

void Session::Begin(const v1::Hello& hello) {
  greeting_ = hello;
  v1::SessionRequest request;
  *request.mutable_hello() = hello;
  Feed(Request{std::move(request)});
}

void Session::Resume(std::shared_ptr<Stream> stream, const v1::Hello& hello) {
  greeting_ = hello;
  Listen(std::move(stream));
  Feed(Resumed{hello});
}

void Session::Listen(std::shared_ptr<Stream> stream) {
  if (stream_ != nullptr)
    stream_->Finish(absl::UnavailableError("this session has another stream now"));
  stream_ = std::move(stream);
  // Of a stream that was replaced nothing counts any more.
  const std::weak_ptr<Stream> from = stream_;
  auto current = [this, alive = alive_, from] { return *alive && from.lock() == stream_; };
  link::CarrierHandlers handlers;
  handlers.next = [this, current]() -> std::optional<link::Frame> {
    if (!current()) return std::nullopt;
    return NextToLauncher();
  };
  handlers.on_frame = [this, current](link::Frame frame) {
    if (current()) OnFrame(std::move(frame));
  };
  handlers.on_closed = [this, current](absl::Status why) {
    if (!current()) return;
    if (!why.ok()) return BreakLauncher(std::move(why));
    OnStreamClosed();
  };
  stream_->Listen(std::move(handlers));
}

void Session::OnStreamClosed() {
  const std::shared_ptr<bool> alive = alive_;
  link_.Close();
  link_due_.Cancel();
  shepherd_->Detach();
  Feed(LauncherGone{});
  // The call is over, or its connection could not be.
  if (*alive && agent_.self.resumable && stream_ != nullptr) {
    std::exchange(stream_, nullptr)->Finish(absl::CancelledError("the launcher is gone"));
  }
}

// Channel 0 at once: it must not wait for a shepherd that is stopped.
void Session::Open() {
  link_.Close();
  link_.Withdraw(kAttached);
  v1::SessionEvent event;
  *event.mutable_opened()->mutable_agent() = link::OwedBy(link_);
  absl::Status open = link_.Open(loop_.Now(), link::FromProto(greeting_.agent()));
  if (open.ok()) {
    if (stream_ != nullptr) stream_->Greet(rpc::Serialize(event));
    open = shepherd_->Attach(greeting_.job(), core_.most_silence());
  }
  if (!open.ok()) BreakLauncher(std::move(open));
}

void Session::OnAttached(const v1::Party& shepherd) {
  v1::SessionEvent event;
  *event.mutable_attached() = shepherd;
  auto sent = link_.SendUnkept(kAttached, link::SharedBytes(event.SerializeAsString()));
  if (!sent.ok()) return BreakLauncher(sent.status());
  PumpLauncher();
}

std::optional<link::Frame> Session::NextToLauncher() {
  // What a shepherd said comes before the word of its end.
  if (shepherd_->gone() && !link_.waits(kAttached)) {
    if (auto frame = shepherd_->NextToLauncher()) return frame;
  }
  if (auto frame = link_.Next(loop_.Now())) return frame;
  return shepherd_->NextToLauncher();
}

void Session::PumpLauncher() {
  if (stream_ != nullptr) stream_->Pump();
}

void Session::OnFrame(link::Frame frame) {
  const std::shared_ptr<bool> alive = alive_;
  absl::Status taken;
  if (frame.header.channel == link::Channel::kAgent) {
    taken = OnAgentFrame(frame);
  } else if (frame.header.channel == link::Channel::kJob) {
    taken = OnJobFrame(std::move(frame));
  } else {
    taken = absl::InvalidArgumentError("a frame came on a channel that nobody has opened");
  }
  if (!*alive) return;
  if (!taken.ok()) return BreakLauncher(std::move(taken));
  PumpLauncher();
}

absl::Status Session::OnAgentFrame(const link::Frame& frame) {
  auto message = link_.OnFrame(loop_.Now(), frame);
  if (!message.ok()) return message.status();
  // Once: a stream that takes nothing then asks by itself when it does.
  link_due_.At(link_.NextDeadline(), [this] { PumpLauncher(); });
  if (!message->has_value()) {
    Feed(Heard{});
    return absl::OkStatus();
  }
  v1::SessionRequest request;
  if (absl::Status parsed = rpc::Parse((*message)->view(), &request); !parsed.ok()) return parsed;
  Feed(Request{std::move(request)});
  return absl::OkStatus();
}

absl::Status Session::OnJobFrame(link::Frame frame) {
  const std::shared_ptr<bool> alive = alive_;
  Feed(JobFrame{frame.header.keep, frame.header.keep || frame.payload.size() > 0});
  if (!*alive || dropped_ || !core_.passes()) return absl::OkStatus();
  return shepherd_->Pass(std::move(frame));
}

void Session::Send(const v1::SessionEvent& event) {
  link::SharedBytes bytes(event.SerializeAsString());
  const absl::Status sent = event.has_heartbeat()
                                ? link_.SendUnkept(kBeat, std::move(bytes)).status()
                                : link_.Send(std::move(bytes));
  if (sent.ok()) return PumpLauncher();
  // Posted: this is called from the middle of many things.
  loop_.Post([this, alive = alive_, sent] {
    if (*alive) BreakLauncher(sent);
  });
}

void Session::BreakLauncher(absl::Status why) { Feed(LauncherBroke{std::move(why)}); }

}  // namespace dtrain::session
