// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/launcher_line.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "common/base/check.h"
#include "common/base/exit_code.h"
#include "common/base/own_pause.h"
#include "common/link/party.h"
#include "common/log/log.h"

namespace dtrain::shepherd {
namespace {

// The part of a silence that may pass before we are called, on a busy machine.
constexpr int kTolerance = 20;
// One of them ends the job.
constexpr size_t kMostFailures = 16;

link::LinkCore::Options CoreOptions() {
  link::LinkCore::Options options;
  options.channel = link::Channel::kJob;
  options.epoch = link::RandomEpoch();
  options.out = link::kToLauncher;
  options.in = link::kToShepherd;
  return options;
}

v1::JobEvent TooLong(const absl::Status& why) {
  v1::JobEvent event;
  *event.mutable_failure() = MakeFailure(
      v1::NodeFailure::KIND_RESOURCES, kExitState,
      absl::StrCat("what the workers of this node have put into one message cannot be passed on: ",
                   why.message()));
  return event;
}

}  // namespace

LauncherLine::LauncherLine(loop::Loop& loop, Handlers handlers)
    : loop_(loop),
      handlers_(std::move(handlers)),
      core_(std::in_place, CoreOptions()),
      due_(loop),
      silence_(loop) {}

LauncherLine::~LauncherLine() { *alive_ = false; }

LauncherLine::Attached LauncherLine::Attach(os::UniqueFd socket, const v1::Party& peer,
                                            Duration most_silence, uint64_t generation) {
  Detach();
  // Its agent refuses those; the socket ends here.
  if (generation_ && generation < *generation_) return {link::OwedBy(*core_)};
  const bool is_another = generation_ && generation > *generation_ && !broken_;
  generation_ = generation;
  if (is_another) Forget();
  Attached attached{link::OwedBy(*core_), is_another};
  if (absl::Status open = core_->Open(loop_.Now(), link::FromProto(peer)); !open.ok()) {
    Broken(open);
    return {attached.ours};
  }
  carrier_ = std::make_unique<link::SocketCarrier>(
      loop_, std::move(socket),
      link::CarrierHandlers{[this] { return Next(); },
                            [this](const link::Frame& frame) { OnFrame(frame); },
                            // The agent let go of it; if the agent is gone, AgentLine says so.
                            [this](const absl::Status&) {
                              Closed();
                              handlers_.on_said();
                            }});
  most_silence_ = most_silence;
  WatchSilence();
  return attached;
}

// What the one before has not acknowledged, another has no use for.
void LauncherLine::Forget() {
  excused_ = loop_.Now();
  core_.emplace(CoreOptions());
  long_ = {};
}

void LauncherLine::Detach() {
  carrier_.reset();
  Closed();
}

void LauncherLine::Closed() {
  if (attached()) excused_ = loop_.Now();
  core_->Close();
  due_.Cancel();
}

void LauncherLine::WatchSilence() {
  if (most_silence_ == Duration::zero()) return silence_.Cancel();
  const TimePoint due = std::max(core_->last_heard(), excused_) + most_silence_;
  silence_.At(due, [this, due] {
    const TimePoint now = loop_.Now();
    // We did not run: what it has said meanwhile is still to be read.
    if (OwnPause(due, due, now, most_silence_ / kTolerance) > Duration::zero()) {
      excused_ = now - most_silence_ + most_silence_ / kTolerance;
    }
    if (now < std::max(core_->last_heard(), excused_) + most_silence_) return WatchSilence();
    handlers_.on_silent(most_silence_);
  });
}

std::optional<link::Frame> LauncherLine::Next() {
  if (!handlers_.may_send()) return std::nullopt;
  std::optional<link::Frame> frame = core_->Next(loop_.Now());
  if (!frame && said()) handlers_.on_said();
  return frame;
}

void LauncherLine::Pump() {
  if (carrier_ != nullptr) carrier_->Pump();
}

void LauncherLine::OnFrame(const link::Frame& frame) {
  auto message = core_->OnFrame(loop_.Now(), frame);
  // Once: a socket that takes nothing then asks by itself when it does.
  due_.At(core_->NextDeadline(), [this] { Pump(); });
  if (!message.ok()) return Broken(message.status());
  if (!message->has_value()) return;
  v1::JobRequest request;
  const absl::string_view bytes = (*message)->view();
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Broken(absl::DataLossError("the launcher sent a message that cannot be read"));
  }
  if (request.has_start()) handlers_.before_start();
  handlers_.on_request(std::move(request));
}

void LauncherLine::Send(const v1::JobEvent& event) {
  absl::Status sent = core_->Send(link::SharedBytes(event.SerializeAsString()));
  if (absl::IsInvalidArgument(sent)) {
    sent = core_->Send(link::SharedBytes(TooLong(sent).SerializeAsString()));
  }
  if (!sent.ok()) return Broken(sent);
  Pump();
}

void LauncherLine::SendFailure(v1::NodeFailure failure) {
  v1::JobEvent event;
  if (failures_.size() < kMostFailures) failures_.push_back(failure);
  *event.mutable_failure() = std::move(failure);
  Send(event);
}

void LauncherLine::SendFailuresAgain() {
  for (const v1::NodeFailure& failure : failures_) {
    v1::JobEvent event;
    *event.mutable_failure() = failure;
    Send(event);
  }
}

void LauncherLine::AnswerBeat() {
  v1::JobEvent event;
  event.mutable_heartbeat();
  SendState(kBeat, event);
}

void LauncherLine::Warn(std::string message, bool detail) {
  v1::JobEvent event;
  event.mutable_warning()->set_detail(detail);
  event.mutable_warning()->set_message(std::move(message));
  Send(event);
}

void LauncherLine::SendState(State state, const v1::JobEvent& event) {
  std::string bytes = event.SerializeAsString();
  if (bytes.size() > link::kMostUnkept) {
    Send(event);
    long_[state] = core_->last();
    return;
  }
  if (auto sent = core_->SendUnkept(state, link::SharedBytes(std::move(bytes))); !sent.ok()) {
    return Broken(sent.status());
  }
  Pump();
}

bool LauncherLine::said() const {
  if (carrier_ == nullptr || !attached()) return true;
  return core_->given() == core_->last() && carrier_->queued_bytes() == 0;
}

// Posted: the caller may be in the middle of something, or the carrier.
void LauncherLine::Broken(const absl::Status& why) {
  if (std::exchange(broken_, true)) return;
  const std::string text =
      absl::StrCat("its conversation with the launcher has ended: ", why.message());
  log::Error(text);
  loop_.Post([this, alive = alive_, text] {
    if (!*alive) return;
    Detach();
    handlers_.on_broken(text);
  });
}

}  // namespace dtrain::shepherd
