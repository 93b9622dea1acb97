// SPDX-License-Identifier: Apache-2.0
#include "agent/session/launcher_stream.h"

#include <utility>

#include "common/link/party.h"
#include "common/rpc/bounded_message.h"

namespace dtrain::session {
namespace {

// Of what is not kept on channel 0.
constexpr size_t kBeat = 0;
constexpr size_t kAttached = 1;
constexpr size_t kSample = 2;

link::LinkCore::Options LinkOptions() {
  link::LinkCore::Options options;
  options.channel = link::Channel::kAgent;
  options.epoch = link::RandomEpoch();
  options.out = link::kOfAgent;
  options.in = link::kOfAgent;
  // What the launcher knows of an agent before us is nothing that it has of us.
  options.forgets = true;
  return options;
}

}  // namespace

LauncherStream::LauncherStream(loop::Loop& loop, Handlers handlers)
    : loop_(loop),
      handlers_(std::make_shared<Handlers>(std::move(handlers))),
      link_(std::in_place, LinkOptions()),
      link_due_(loop) {}

LauncherStream::~LauncherStream() {
  *alive_ = false;
  Finish(absl::CancelledError("the agent is shutting down"));
}

void LauncherStream::Listen(std::shared_ptr<Stream> stream) {
  Finish(absl::UnavailableError("this session has another stream now"));
  stream_ = std::move(stream);
  // Of a stream that was replaced nothing counts any more.
  const std::weak_ptr<Stream> from = stream_;
  auto current = [this, alive = alive_, from] { return *alive && from.lock() == stream_; };
  link::CarrierHandlers handlers;
  handlers.next = [this, current]() -> std::optional<link::Frame> {
    if (!current()) return std::nullopt;
    return Next();
  };
  handlers.on_frame = [this, current](link::Frame frame) {
    if (current()) OnFrame(std::move(frame));
  };
  handlers.on_closed = [this, current](absl::Status why) {
    if (!current()) return;
    const std::shared_ptr<Handlers> ours = handlers_;
    if (!why.ok()) return ours->on_broke(std::move(why));
    ours->on_closed();
  };
  stream_->Listen(std::move(handlers));
}

void LauncherStream::BeginAnew() {
  link_due_.Cancel();
  link_.emplace(LinkOptions());
}

absl::Status LauncherStream::Open() {
  link_->Close();
  link_->Withdraw(kAttached);
  link_->Withdraw(kSample);
  v1::SessionEvent event;
  *event.mutable_opened()->mutable_agent() = link::OwedBy(*link_);
  absl::Status open = link_->Open(loop_.Now(), link::FromProto(greeting_.agent()));
  if (open.ok() && stream_ != nullptr) stream_->Greet(rpc::Serialize(event));
  return open;
}

void LauncherStream::Close() {
  link_->Close();
  link_due_.Cancel();
}

void LauncherStream::Finish(absl::Status status) {
  if (stream_ != nullptr) std::exchange(stream_, nullptr)->Finish(std::move(status));
}

void LauncherStream::SendAttached(const v1::Party& shepherd) {
  v1::SessionEvent event;
  *event.mutable_attached() = shepherd;
  auto sent = link_->SendUnkept(kAttached, link::SharedBytes(event.SerializeAsString()));
  if (sent.ok()) return Pump();
  const std::shared_ptr<Handlers> handlers = handlers_;
  handlers->on_broke(sent.status());
}

void LauncherStream::Send(const v1::SessionEvent& event) {
  link::SharedBytes bytes(event.SerializeAsString());
  const absl::Status sent = event.has_heartbeat()
                                ? link_->SendUnkept(kBeat, std::move(bytes)).status()
                                : link_->Send(std::move(bytes));
  if (sent.ok()) return Pump();
  // Posted: this is called from the middle of many things.
  loop_.Post([handlers = handlers_, alive = alive_, sent] {
    if (*alive) handlers->on_broke(sent);
  });
}

// One that cannot be sent is not missed; what is wrong with the channel somebody else hears.
void LauncherStream::SendSample(const v1::GpuStates& gpus) {
  v1::SessionEvent event;
  *event.mutable_gpus() = gpus;
  if (link_->SendUnkept(kSample, link::SharedBytes(event.SerializeAsString())).ok()) Pump();
}

void LauncherStream::Pump() {
  if (stream_ != nullptr) stream_->Pump();
}

std::optional<link::Frame> LauncherStream::Next() {
  if (handlers_->job_frames_first() && !link_->waits(kAttached)) {
    if (auto frame = handlers_->next_job_frame()) return frame;
  }
  if (auto frame = link_->Next(loop_.Now())) return frame;
  return handlers_->next_job_frame();
}

void LauncherStream::OnFrame(link::Frame frame) {
  const std::shared_ptr<bool> alive = alive_;
  const std::shared_ptr<Handlers> handlers = handlers_;
  absl::Status taken;
  if (frame.header.channel == link::Channel::kAgent) {
    taken = OnAgentFrame(frame);
  } else if (frame.header.channel == link::Channel::kJob) {
    taken = handlers->on_job_frame(std::move(frame));
  } else {
    taken = absl::InvalidArgumentError("a frame came on a channel that nobody has opened");
  }
  if (!*alive) return;
  if (!taken.ok()) return handlers->on_broke(std::move(taken));
  Pump();
}

absl::Status LauncherStream::OnAgentFrame(const link::Frame& frame) {
  const std::shared_ptr<Handlers> handlers = handlers_;
  auto message = link_->OnFrame(loop_.Now(), frame);
  if (!message.ok()) return message.status();
  // Once: a stream that takes nothing then asks by itself when it does.
  link_due_.At(link_->NextDeadline(), [this] { Pump(); });
  if (!message->has_value()) {
    handlers->on_heard();
    return absl::OkStatus();
  }
  v1::SessionRequest request;
  if (absl::Status parsed = rpc::Parse((*message)->view(), &request); !parsed.ok()) return parsed;
  handlers->on_request(request);
  return absl::OkStatus();
}

}  // namespace dtrain::session
