// SPDX-License-Identifier: Apache-2.0
#include "agent/session/session_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/own_pause.h"
#include "common/base/text.h"

namespace dtrain::session {
namespace {

using State = SessionCore::State;
using Kind = v1::SessionRequest::KindCase;
using std::chrono::milliseconds;

// A launcher that connected says Hello at once; one that does not is no launcher of ours.
constexpr Duration kHelloTimeout = std::chrono::seconds(30);
// Beats per lease: one may be late, and one lost behind it, before the other side gives up.
constexpr int kBeatsPerLease = 5;
constexpr uint32_t kMinLeaseMs = 100;
// Ids and tokens; the shepherd keeps it for agents after us.
constexpr size_t kMostHello = 4096;
// A driver may free the memory of a process that was killed a little after its end. A launcher
// whose user cancelled gives up three seconds after it asked for KILL.
constexpr Duration kReleaseLimit = std::chrono::seconds(10);
constexpr Duration kReleaseLimitHurried = std::chrono::seconds(2);
// For a shepherd to end its workers, beyond their grace, or at least to answer while its launcher
// waits: workers may be there that it cannot kill. One that is stopped, or waits for a file server
// that is down, never does.
constexpr Duration kOrphanLimit = std::chrono::seconds(10);
constexpr Duration kLookPause = milliseconds(250);

// Which request is legal in which state. Any other is the launcher's error and ends the session.
bool Legal(State state, Kind kind) {
  switch (kind) {
    case Kind::kHello:
      return state == State::kNew;
    case Kind::kProbe:
    case Kind::kHoldPorts:
    case Kind::kReserve:
    case Kind::kLookAgain:
      return state == State::kJoined;
    case Kind::kEndJob:
    case Kind::kHeartbeat:
    case Kind::kGoodbye:
      return state == State::kJoined || state == State::kRunning || state == State::kReaping ||
             state == State::kReleasing || state == State::kFinished;
    default:  // the shepherd's
      return false;
  }
}

// What a launcher asks for and we wait, without it, for a shepherd that may never end: it is its
// user's, and so is the number.
constexpr Duration kLongestGrace = std::chrono::hours(1);

Duration Grace(const v1::Hello& hello) {
  return std::min<Duration>(std::chrono::milliseconds(hello.grace_ms()), kLongestGrace);
}
uint32_t GraceMs(const v1::Hello& hello) {
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Grace(hello)).count());
}
Duration Lease(const v1::Hello& hello) { return milliseconds(hello.lease_ms()); }
// When an unanswered question counts as silence; kNever: there is none.
TimePoint SilentAt(TimePoint asked_at, const v1::Hello& hello) {
  return asked_at == kNever ? kNever : asked_at + Lease(hello);
}

Duration BeatPeriod(const v1::Hello& hello) { return Lease(hello) / kBeatsPerLease; }

}  // namespace

SessionCore::SessionCore(Identity self, TimePoint now)
    : self_(std::move(self)), now_(now), last_heard_(now), last_beat_(now) {}

SessionCore::SessionCore(Identity self, TimePoint now, const v1::Account& account,
                         Reported reported)
    : self_(std::move(self)),
      state_(State::kRunning),
      started_(true),
      now_(now),
      last_heard_(now),
      last_beat_(now),
      hello_(account.kept().hello()),
      away_(true),
      away_since_(now) {
  gpus_.Before({account.kept().gpus_before().begin(), account.kept().gpus_before().end()});
  gpus_.Given(std::move(reported.gpus));
  gpus_.Started(reported.workers);
  if (!account.finished()) return;
  // The launcher may have heard so, and nobody else hears it again; it waits for Released.
  state_ = State::kReleasing;
  look_at_ = now;
  release_until_ = now + kReleaseLimit;
}

bool SessionCore::CanResume(const v1::Hello& hello) const {
  if (launcher_gone_) return false;
  const bool same = hello.job_id() == hello_.job_id() && hello.attempt() == hello_.attempt() &&
                    hello.incarnation() == hello_.incarnation();
  return same && hello.protocol() == self_.protocol &&
         (state_ == State::kJoined || state_ == State::kRunning || state_ == State::kReaping ||
          state_ == State::kReleasing || state_ == State::kFinished);
}

std::vector<Action> SessionCore::OnEvent(TimePoint now, const Event& event) {
  CreditOwnPause(now);
  if (state_ == State::kEnded) return {};
  if (const auto* request = std::get_if<Request>(&event)) {
    OnRequest(request->request);
  } else if (std::holds_alternative<Heard>(event)) {
    if (state_ != State::kOrphaned && !launcher_gone_) last_heard_ = now_;
  } else if (std::holds_alternative<LauncherGone>(event)) {
    OnLauncherGone();
  } else if (const auto* broke = std::get_if<LauncherBroke>(&event)) {
    Finish(broke->why);
  } else if (const auto* frame = std::get_if<JobFrame>(&event)) {
    OnJobFrame(*frame);
  } else if (const auto* reported = std::get_if<Reported>(&event)) {
    OnReported(*reported);
  } else if (std::holds_alternative<ShepherdAnswers>(event)) {
    answered_ = true;
    asked_at_ = kNever;
  } else if (const auto* ended = std::get_if<JobEnded>(&event)) {
    OnJobEnded(ended->finished);
  } else if (std::holds_alternative<Resumed>(event)) {
    OnResumed();
  } else if (const auto* gone = std::get_if<ShepherdGone>(&event)) {
    OnShepherdGone(gone->why);
  } else if (std::holds_alternative<LeftoversGone>(event)) {
    OnLeftoversGone();
  } else if (const auto* seen = std::get_if<GpusSeen>(&event)) {
    OnGpusSeen(*seen);
  } else if (const auto* stop = std::get_if<StopAsked>(&event)) {
    OnStopAsked(stop->message);
  } else if (std::holds_alternative<Tick>(event)) {
    OnTick();
  }
  return std::exchange(actions_, {});
}

void SessionCore::CreditOwnPause(TimePoint now) {
  if (state_ != State::kNew) {
    const Duration pause = OwnPause(now_, NextDeadline(), now, BeatPeriod(hello_) / 4);
    last_heard_ += pause;
    if (answer_by_ != kNever) answer_by_ += pause;
    if (asked_at_ != kNever) asked_at_ += pause;
  }
  now_ = std::max(now_, now);
}

Duration SessionCore::grace() const { return started_ ? Grace(hello_) : Duration::zero(); }

Duration SessionCore::most_silence() const {
  return counts_silence() ? Lease(hello_) + self_.launcher_wait : Duration::zero();
}

// When a launcher that says nothing is given up. One that stands still keeps its stream. When that
// ends it has its lease again to come back, as far as it would have been waited for.
TimePoint SessionCore::LeaseEnd() const {
  if (!counts_silence()) return kNever;
  const TimePoint end = last_heard_ + Lease(hello_);
  if (state_ == State::kJoined) return end;  // what it has reserved is for others
  const TimePoint last = end + self_.launcher_wait;
  return away_ ? std::max(end, std::min(away_since_ + Lease(hello_), last)) : last;
}

TimePoint SessionCore::NextDeadline() const {
  TimePoint next = std::min(LeaseEnd(), last_beat_ + BeatPeriod(hello_));
  switch (state_) {
    case State::kNew:
      return last_heard_ + kHelloTimeout;
    case State::kRunning:
      return std::min({next, answer_by_, SilentAt(asked_at_, hello_)});
    case State::kJoined:
    case State::kFinished:
      break;
    case State::kReleasing:
      if (launcher_gone_) return std::min(look_at_, release_until_);
      return std::min({next, look_at_, release_until_});
    case State::kReaping:
      if (launcher_gone_) return kNever;
      break;
    case State::kOrphaned:
      return orphan_until_;
    case State::kEnded:
      return kNever;
  }
  return next;
}

void SessionCore::OnRequest(const v1::SessionRequest& request) {
  // A launcher that was given up is not listened to again: its workers are being ended.
  if (state_ == State::kOrphaned || launcher_gone_) return;
  last_heard_ = now_;
  if (!Legal(state_, request.kind_case())) {
    Finish(absl::FailedPreconditionError(absl::StrCat("the agent cannot take request ",
                                                      static_cast<int>(request.kind_case()),
                                                      " in state ", static_cast<int>(state_))));
    return;
  }
  switch (request.kind_case()) {
    case Kind::kHello:
      OnHello(request.hello());
      break;
    case Kind::kProbe:
      actions_.push_back(RunProbe{request.probe()});
      break;
    case Kind::kHoldPorts:
      actions_.push_back(HoldPorts{request.hold_ports().count(), request.hold_ports().listening()});
      break;
    case Kind::kReserve:
      gpus_.Given({request.reserve().gpu_uuids().begin(), request.reserve().gpu_uuids().end()});
      actions_.push_back(ReserveShare{request.reserve()});
      break;
    case Kind::kLookAgain:
      actions_.push_back(SendInventory{});
      break;
    case Kind::kEndJob:
      hurried_ = true;
      release_until_ = std::min(release_until_, now_ + kReleaseLimitHurried);
      if (state_ == State::kRunning) EndWorkers(request.end_job().grace_ms());
      break;
    case Kind::kHeartbeat:
      break;
    case Kind::kGoodbye:
      if (state_ == State::kRunning || state_ == State::kReaping) {
        GiveUpLauncher();
        break;
      }
      // It did not wait for the GPUs: they are as we saw them last.
      if (state_ == State::kReleasing) actions_.push_back(GiveBack{gpus_});
      Finish(absl::OkStatus());
      break;
    default:
      break;
  }
}

// A launcher that was given up is not listened to again: its workers are being ended.
void SessionCore::OnJobFrame(const JobFrame& frame) {
  if (state_ == State::kOrphaned || launcher_gone_) return;
  last_heard_ = now_;
  if (frame.asks) asked_at_ = std::min(asked_at_, now_);
  if (state_ != State::kJoined || !frame.kept) return;
  state_ = State::kRunning;
  started_ = true;
  actions_.push_back(PrepareStart{});
}

void SessionCore::OnReported(const Reported& reported) {
  if (!self_.resumable) gpus_.Given(reported.gpus);
  gpus_.Started(reported.workers);
}

void SessionCore::OnHello(const v1::Hello& hello) {
  if (hello.protocol() != self_.protocol || hello.build() != self_.build) {
    Finish(absl::FailedPreconditionError(
        absl::StrCat("this agent is build ", self_.build, " with protocol ", self_.protocol,
                     ", the launcher wants build ", Escape(hello.build()), " with protocol ",
                     hello.protocol(), ": start both from the same release")));
    return;
  }
  if (hello.job_id().empty() || hello.lease_ms() < kMinLeaseMs ||
      hello.ByteSizeLong() > kMostHello) {
    Finish(absl::InvalidArgumentError(
        "a Hello without a job id, with a lease below 100 ms, or of more than 4096 bytes"));
    return;
  }
  hello_ = hello;
  // Of this connection alone.
  hello_.clear_agent();
  hello_.clear_job();
  state_ = State::kJoined;
  actions_.push_back(OpenChannels{});
  if (!self_.notice.empty()) Warn(self_.notice);
  actions_.push_back(SendWelcome{});
}

void SessionCore::OnResumed() {
  away_ = false;
  last_heard_ = now_;
  actions_.push_back(OpenChannels{});
}

void SessionCore::OnJobEnded(const v1::Finished& finished) {
  answered_ = true;
  if (state_ == State::kOrphaned) {
    launcher_gone_ = true;
    Release();
  } else if (state_ == State::kRunning) {
    finished_ = finished;
    Release();
  } else if (state_ == State::kReleasing || state_ == State::kFinished) {
    finished_ = finished;  // said again to an agent that has adopted it
  }
}

// Also without a launcher: a resident agent has others who want these GPUs.
void SessionCore::Release() {
  state_ = State::kReleasing;
  if (!gpus_.watched() || (launcher_gone_ && !self_.resumable)) return EndRelease();
  release_until_ = now_ + (hurried_ ? kReleaseLimitHurried : kReleaseLimit);
  looking_ = true;
  actions_.push_back(LookAtGpus{});
}

void SessionCore::OnGpusSeen(const GpusSeen& seen) {
  if (state_ == State::kJoined) return gpus_.Before(seen.gpus);
  if (state_ != State::kReleasing) return;
  looking_ = false;
  gpus_.After(seen.gpus, seen.ours);
  if (!seen.error.empty()) {
    Warn(absl::StrCat("whether the job's GPUs are free again is not known: ", seen.error));
    EndRelease();
  } else if (!gpus_.held()) {
    EndRelease();
  } else {
    look_at_ = now_ + kLookPause;
  }
}

// The job's end is the same, unless it is one of its own processes that is left.
void SessionCore::ReportHeld() {
  if (!gpus_.seen_after()) {
    Warn(
        "whether the job's GPUs are free again is not known: NVIDIA's driver (NVML) did not "
        "answer in time; see the kernel log of the node for NVRM lines");
  }
  for (const HeldGpu& gpu : gpus_.FindHeld()) {
    if (!gpu.ours) {
      Warn(gpu.text);
      continue;
    }
    v1::SessionEvent up;
    v1::NodeFailure& failure = *up.mutable_failure();
    failure.set_kind(v1::NodeFailure::KIND_CLEANUP);
    failure.set_exit_code(kExitCleanup);
    failure.set_message(gpu.text);
    ToLauncher(std::move(up));
  }
}

void SessionCore::EndRelease() {
  state_ = State::kFinished;
  // First, as the launcher may start another job at once.
  actions_.push_back(GiveBack{gpus_});
  if (launcher_gone_) {
    return Finish(
        absl::AbortedError("the launcher was not heard from; its workers have been ended"));
  }
  v1::SessionEvent up;
  up.mutable_released();
  ToLauncher(std::move(up));
}

void SessionCore::Warn(std::string message) {
  v1::SessionEvent up;
  up.mutable_warning()->set_message(std::move(message));
  ToLauncher(std::move(up));
}

// The stream ended. A launcher that may come back is waited for as long as its lease runs.
void SessionCore::OnLauncherGone() {
  // Before the start, too: that may be what was lost.
  const bool runs = state_ == State::kJoined || state_ == State::kRunning ||
                    state_ == State::kReaping || state_ == State::kReleasing ||
                    state_ == State::kFinished;
  if (self_.resumable && runs) {
    away_ = true;
    away_since_ = now_;
    asked_at_ = kNever;
  } else {
    GiveUpLauncher();
  }
}

void SessionCore::GiveUpLauncher() {
  switch (state_) {
    case State::kOrphaned:
    case State::kEnded:
      return;
    case State::kReaping:
      launcher_gone_ = true;
      return;
    case State::kRunning:
      break;
    case State::kReleasing:
      if (self_.resumable) {
        launcher_gone_ = true;
        return;
      }
      [[fallthrough]];
    default:
      Finish(absl::AbortedError("the launcher is gone"));
      return;
  }
  state_ = State::kOrphaned;
  orphan_until_ = now_ + Grace(hello_) + kOrphanLimit;
  EndWorkers(GraceMs(hello_));
}

// The shepherd has been asked to end its workers.
void SessionCore::AwaitAnswer(uint32_t grace_ms) {
  grace_ms = std::min(
      grace_ms,
      static_cast<uint32_t>(std::chrono::duration_cast<milliseconds>(kLongestGrace).count()));
  const TimePoint by = now_ + milliseconds(grace_ms) + kOrphanLimit;
  answer_by_ = answered_ ? by : std::min(answer_by_, by);
  answered_ = false;
  stop_grace_ms_ = grace_ms;
}

void SessionCore::EndWorkers(uint32_t grace_ms) {
  AwaitAnswer(grace_ms);
  v1::ShepherdRequest request;
  request.mutable_end_job()->set_grace_ms(stop_grace_ms_);
  actions_.push_back(SendShepherd{std::move(request)});
}

void SessionCore::OnShepherdGone(const std::string& why) {
  if (std::exchange(shepherd_gone_, true)) return;
  if (state_ == State::kFinished || state_ == State::kReleasing) {
    // The launcher may be away, or still to read it.
    if (self_.resumable && !launcher_gone_) TellFinished();
    return;
  }
  launcher_gone_ = state_ == State::kOrphaned;
  shepherd_end_ = why;
  state_ = State::kReaping;
  actions_.push_back(KillLeftovers{});
}

// Only now may the launcher hear of it: it says goodbye at once, and the agent ends with that.
void SessionCore::OnLeftoversGone() {
  if (state_ != State::kReaping) return;
  if (launcher_gone_) return Release();
  v1::SessionEvent up;
  v1::NodeFailure& failure = *up.mutable_failure();
  failure.set_kind(v1::NodeFailure::KIND_SHEPHERD_LOST);
  failure.set_exit_code(kExitAgentLost);
  failure.set_message(absl::StrCat("the shepherd, dtrain's process that owns the workers of this ",
                                   "node, is gone: ", shepherd_end_,
                                   "; its workers have been killed"));
  ToLauncher(std::move(up));
  TellFinished();  // no log sizes are known any more
  Release();
}

// Once the shepherd does not say so, or may not have.
void SessionCore::TellFinished() {
  v1::SessionEvent up;
  *up.mutable_finished() = finished_;
  ToLauncher(std::move(up));
}

// The launcher, to whom a node's failure is the end of its job, stops the other nodes. It must hear
// of this before it hears of the workers' ends, or it takes these for the agent's own doing.
void SessionCore::OnStopAsked(const std::string& message) {
  if (state_ != State::kJoined && state_ != State::kRunning) return;
  v1::SessionEvent up;
  v1::NodeFailure& failure = *up.mutable_failure();
  failure.set_exit_code(kExitTerminated);
  failure.set_message(message);
  ToLauncher(std::move(up));
  if (state_ == State::kRunning) EndWorkers(GraceMs(hello_));
}

void SessionCore::OnTick() {
  if (now_ < NextDeadline()) return;
  if (state_ == State::kNew) {
    Finish(absl::DeadlineExceededError("no Hello within 30 s"));
    return;
  }
  if (state_ == State::kOrphaned) {
    OnShepherdGone("it did not end its workers in time");
    return;
  }
  if (!launcher_gone_ && now_ >= LeaseEnd()) {
    GiveUpLauncher();
    return;
  }
  if (state_ == State::kRunning && now_ >= SilentAt(asked_at_, hello_)) {
    asked_at_ = kNever;
    EndWorkers(0);  // or it ends itself, ten seconds later
  }
  if (state_ == State::kRunning && now_ >= answer_by_) {
    if (!answered_) return OnShepherdGone("it did not answer the request to end its workers");
    EndWorkers(stop_grace_ms_);  // which it does already, and answers again
    answer_by_ = now_ + kOrphanLimit;
  }
  if (state_ == State::kReleasing && now_ >= release_until_) {
    ReportHeld();
    return EndRelease();
  }
  if (state_ == State::kReleasing && now_ >= look_at_) {
    look_at_ = kNever;
    if (!gpus_.watched()) return EndRelease();
    if (!std::exchange(looking_, true)) actions_.push_back(LookAtGpus{});
  }
  if (launcher_gone_ || now_ < last_beat_ + BeatPeriod(hello_)) return;
  last_beat_ = now_;
  if (away_) return;
  v1::SessionEvent up;
  up.mutable_heartbeat();
  actions_.push_back(SendEvent{std::move(up)});
}

void SessionCore::Finish(absl::Status status) {
  // A shepherd that keeps running without us must hear that it is not to.
  const bool lives = state_ == State::kRunning || state_ == State::kOrphaned ||
                     state_ == State::kReleasing || state_ == State::kFinished;
  if (self_.resumable && lives) {
    v1::ShepherdRequest release;
    release.mutable_release();
    actions_.push_back(SendShepherd{std::move(release)});
  }
  state_ = State::kEnded;
  actions_.push_back(End{std::move(status)});
}

void SessionCore::ToLauncher(v1::SessionEvent event) {
  if (!away_) last_beat_ = now_;  // any event tells the launcher that we live
  actions_.push_back(SendEvent{std::move(event)});
}

}  // namespace dtrain::session
