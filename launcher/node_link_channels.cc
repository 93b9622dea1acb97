// SPDX-License-Identifier: Apache-2.0
// What a NodeLink says and hears: channel 0 with the agent, channel 1 with the shepherd.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/link/party.h"
#include "common/rpc/bounded_message.h"
#include "launcher/node_link.h"

namespace dtrain {
namespace {

constexpr char kSessionMethod[] = "/dtrain.v1.Agent/Session";
// States that the next one replaces: positions of logs, and beats.
constexpr size_t kPositions = 0;
constexpr size_t kBeat = 1;
// Some twenty bytes each: what fits into a message that is not kept.
constexpr int kMostPositions = 2000;

}  // namespace

SharedBeat::SharedBeat() {
  v1::SessionRequest agent;
  agent.mutable_heartbeat();
  to_agent = link::SharedBytes(agent.SerializeAsString());
  v1::JobRequest shepherd;
  shepherd.mutable_heartbeat();
  to_shepherd = link::SharedBytes(shepherd.SerializeAsString());
}

void NodeLink::SayHello(const v1::Hello& hello) {
  hello_ = hello;
  Greet();
}

void NodeLink::Greet() {
  v1::SessionRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello = hello_;
  hello.set_resume(resuming_);
  *hello.mutable_agent() = link::OwedBy(*agent_);
  *hello.mutable_job() = link::OwedBy(*job_);
  session_.emplace(
      loop_, channel_, kSessionMethod, rpc::Serialize(request),
      [this](grpc::ByteBuffer& opened) { OnOpened(opened); },
      link::CarrierHandlers{[this] { return Next(); },
                            [this](const link::Frame& frame) { OnFrame(frame); },
                            [this](absl::Status status) { Closed(std::move(status)); }});
}

void NodeLink::OnOpened(grpc::ByteBuffer& bytes) {
  DropSpare();
  if (!agent_) return;
  v1::SessionEvent event;
  absl::Status open = rpc::Parse(bytes, rpc::kMostQuestion, &event);
  const link::Party agent = link::FromProto(event.opened().agent());
  if (open.ok()) open = agent_->Open(loop_.Now(), agent);
  // Another agent than before, which has to be told nothing that the one before was.
  if (absl::IsAborted(open)) open = agent_->Open(loop_.Now(), agent);
  if (!open.ok()) {
    return GiveUp(absl::DataLossError(
        absl::StrCat("its agent did not answer as one does: ", open.message())));
  }
  if (std::exchange(resuming_, false)) {
    place_ = {};
    // It may not know what we have said last.
    for (auto& [key, progress] : log_progress_) progress.reported = 0;
    if (logs_request_ && !logs_over_) OpenLogStream();
  }
  Pump();
}

void NodeLink::OnAttached(const v1::Party& shepherd) {
  if (absl::Status open = job_->Open(loop_.Now(), link::FromProto(shepherd)); !open.ok()) {
    return GiveUp(absl::DataLossError(
        absl::StrCat("its shepherd does not go on where it was: ", open.message())));
  }
  ReportTaken();
  Pump();
}

std::optional<link::Frame> NodeLink::Next() {
  if (!agent_) return std::nullopt;
  const TimePoint now = loop_.Now();
  // The last word to the agent comes after those to the shepherd.
  auto frame = leaving_ ? job_->Next(now) : agent_->Next(now);
  if (!frame) frame = leaving_ ? agent_->Next(now) : job_->Next(now);
  return frame;
}

void NodeLink::Pump() {
  if (session_.has_value()) session_->Pump();
}

void NodeLink::OnFrame(const link::Frame& frame) {
  DropSpare();
  if (!agent_) return;
  const link::Channel channel = frame.header.channel;
  if (channel != link::Channel::kAgent && channel != link::Channel::kJob) {
    return GiveUp(absl::DataLossError("its agent sent a frame of an unknown channel"));
  }
  auto message = (channel == link::Channel::kJob ? job_ : agent_)->OnFrame(loop_.Now(), frame);
  if (!message.ok()) {
    return GiveUp(absl::DataLossError(
        absl::StrCat(channel == link::Channel::kJob ? "its shepherd" : "its agent",
                     " broke a rule of the conversation: ", message.status().message())));
  }
  // Once: a call that takes nothing then asks by itself when it does.
  due_.At(std::min(agent_->NextDeadline(), job_->NextDeadline()), [this] { Pump(); });
  if (!message->has_value()) return;
  v1::SessionEvent said;
  v1::JobEvent job_said;
  const bool of_job = channel == link::Channel::kJob;
  const absl::Status parsed =
      of_job ? rpc::Parse((*message)->view(), &job_said) : rpc::Parse((*message)->view(), &said);
  if (!parsed.ok()) {
    return GiveUp(absl::DataLossError(absl::StrCat(
        of_job ? "its shepherd" : "its agent", " sent what cannot be read: ", parsed.message())));
  }
  of_job ? OnJobEvent(std::move(job_said)) : OnAgentEvent(std::move(said));
}

void NodeLink::OnAgentEvent(v1::SessionEvent event) {
  if (event.has_attached()) return OnAttached(event.attached());
  if (event.has_finished() && std::exchange(finished_, true)) return;
  if (event.has_welcome()) {
    resumable_ = event.welcome().resumable();
    boot_id_ = event.welcome().inventory().boot_id();
  }
  if (event.has_kept() && event.kept().refused().empty()) {
    reports_taken_ = true;
    kept_said_ = std::move(event);
    return CheckKept();
  }
  handlers_.on_event(std::move(event));
}

// What its shepherd may have forgotten must have come to us before we leave the job to another.
void NodeLink::CheckKept() {
  if (!kept_said_) return;
  for (const v1::LogPosition& sent : kept_said_->kept().sent().streams()) {
    const auto it = log_progress_.find({sent.rank(), sent.stream()});
    if (sent.offset() > (it == log_progress_.end() ? 0 : it->second.taken)) return;
  }
  v1::SessionEvent event = *std::exchange(kept_said_, std::nullopt);
  ReportTaken();
  handlers_.on_event(std::move(event));
}

void NodeLink::OnJobEvent(v1::JobEvent event) {
  if (event.has_finished() && std::exchange(finished_, true)) return;
  handlers_.on_job_event(std::move(event));
}

absl::Status NodeLink::Send(const SharedRequest& request) {
  if (!agent_) return absl::OkStatus();
  leaving_ = leaving_ || request.is_last_;
  const bool to_job = request.channel_ == link::Channel::kJob;
  const absl::Status sent = (to_job ? job_ : agent_)->Send(request.bytes_);
  if (absl::IsUnavailable(sent)) return sent;
  if (sent.ok()) {
    Pump();
  } else {
    GiveUp(absl::ResourceExhaustedError(
        absl::StrCat("to its ", to_job ? "shepherd" : "agent", ": ", sent.message())));
  }
  return absl::OkStatus();
}

void NodeLink::Beat(const SharedBeat& beat) {
  if (!agent_) return;
  ReportTaken();
  if (!agent_) return;
  absl::Status sent = agent_->SendUnkept(kBeat, beat.to_agent).status();
  if (sent.ok()) sent = job_->SendUnkept(kBeat, beat.to_shepherd).status();
  if (!sent.ok()) return GiveUp(std::move(sent));
  Pump();
}

void NodeLink::GiveUp(absl::Status why) {
  if (std::exchange(given_up_, true)) return;
  agent_.reset();
  job_.reset();
  // Posted: the caller may be in the middle of something.
  give_up_.At(loop_.Now(), [this, why = std::move(why)]() mutable {
    retry_.Cancel();
    reason_wait_.Cancel();
    boot_asked_.reset();
    DropSpare();
    DropStream();
    handlers_.on_closed(std::move(why));
  });
}

// All that has changed. While the last report waits for the connection there is no other.
void NodeLink::ReportTaken() {
  if (!(resumable_ || reports_taken_) || !job_ || job_->waits(kPositions)) return;
  v1::JobRequest request;
  v1::LogPositions& taken = *request.mutable_logs_taken();
  for (auto& [key, progress] : log_progress_) {
    if (progress.safe == progress.reported) continue;
    if (taken.streams_size() == kMostPositions) break;
    progress.reported = progress.safe;
    v1::LogPosition& position = *taken.add_streams();
    position.set_rank(key.first);
    position.set_stream(key.second);
    position.set_offset(progress.safe);
  }
  if (taken.streams_size() == 0) return;
  auto sent = job_->SendUnkept(kPositions, link::SharedBytes(request.SerializeAsString()));
  if (!sent.ok()) return GiveUp(sent.status());
  Pump();
}

}  // namespace dtrain
