// SPDX-License-Identifier: Apache-2.0
// What the launcher of a detached job does besides: it goes on from what is in the job's folder.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/attempt_options.h"
#include "launcher/campaign_of.h"
#include "launcher/job/campaign_journal.h"
#include "launcher/job/outcome.h"
#include "launcher/present_job.h"
#include "launcher/runner.h"

namespace dtrain {
namespace {

// --log-limit: weeks of ordinary output, and little of a disk that has room for checkpoints.
constexpr uint64_t kUsualLogLimit = uint64_t{4} << 30;
constexpr Duration kDiskPatience = std::chrono::seconds(2);

}  // namespace

absl::Status Runner::OpenLogs() {
  detached::LogStore::Callbacks callbacks;
  callbacks.on_safe = [this](const v1::LogPositions& positions) {
    detachable_->SetSafe(positions);
  };
  callbacks.on_progress = [this] { detachable_->OnRoom(); };
  return records_->OpenLogs(options_.detach.log_limit.value_or(kUsualLogLimit),
                            std::move(callbacks));
}

// It is ours, on disk too.
void Runner::BeginJob() {
  using Phase = v1::JournalState;
  const v1::JournalState& before = records_->before();
  records_->Reached(detached::Standing::Stage::kHasJob);
  switch (before.phase()) {
    case Phase::PHASE_BEGUN:
    case Phase::PHASE_RUNS:
      return TakeOver();
    case Phase::PHASE_CONCLUDED:
    case Phase::PHASE_ENDED:
      return Conclude();
    default:
      return Carry(campaign_->Begin());
  }
}

// The attempt that it is at, as a launcher before us has left it.
void Runner::TakeOver() {
  const v1::JournalState& before = records_->before();
  const job::JobOptions options =
      OptionsOf(before, options_.job,
                job::PastOf(before, hosts_, loop_.Now(), absl::GetCurrentTimeNanos()).age);
  attempt_hosts_.clear();
  for (const std::string& name : before.attempt().hosts()) {
    const auto host = IndexOf(hosts_, name);
    if (!host) {
      return LeaveIt(
          absl::StrCat("the job's journal names ", Escape(name), ", which its host list does not"));
    }
    attempt_hosts_.push_back(*host);
  }
  if (status_ != nullptr) status_->AttemptBegins(options.attempt);
  hosts::HostList list = ListOf(hosts_, attempt_hosts_);
  const std::vector<hosts::HostEntry> entries = list.entries;
  auto run = std::make_unique<AttemptRun>(AroundAttempts(), std::move(list), options, before,
                                          AttemptHandlers());
  detachable_ = run.get();
  attempt_ = std::move(run);
  if (const absl::Status opened = OpenLogs(); !opened.ok()) {
    return LeaveIt(absl::StrCat("the workers' output cannot be kept: ", opened.message()));
  }
  campaign_->Begin();
  detachable_->TakeOver(entries, before);
  // Nobody can type any more.
  if (records_->spec().had_terminal() && before.has_runs()) {
    for (const job::RankEnd& rank : attempt_->facts().ranks) {
      attempt_->SendStdin(rank.rank, "", /*end=*/true);
    }
  }
  if (before.has_stop()) FeedUser(job::UserSignal{SIGTERM});
}

// ---- dtrain detach ------------------------------------------------------------------------

absl::Status Runner::MayDetach() const {
  if (spec_ == nullptr) {
    return absl::FailedPreconditionError("only what `dtrain launch` has started can be detached");
  }
  if (IsElastic(options_)) {
    return absl::FailedPreconditionError("a job with --elastic ends with its launcher");
  }
  const bool runs = !verdict_ && !stop_asked_ && attempt_ != nullptr && campaign_ &&
                    campaign_->state() == job::CampaignCore::State::kAttempt &&
                    attempt_->facts().state == job::State::kRunning;
  if (!runs) {
    return absl::FailedPreconditionError(
        "its workers do not run: it starts, is between two attempts, or is about to end");
  }
  std::vector<std::string> bound;
  for (const job::NodeView& node : attempt_->facts().nodes) {
    if (!node.resumable && !node.gone) bound.push_back(node.host);
  }
  if (!bound.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no resident agent has its workers on ", bound.front(),
        bound.size() > 1 ? absl::StrCat(" and ", Count(bound.size() - 1, "other host")) : "",
        ", so that they end with the launcher: launch it with -d instead"));
  }
  return absl::OkStatus();
}

void Runner::AskToDetach(absl::AnyInvocable<void(absl::Status)> may) {
  if (absl::Status now = MayDetach(); !now.ok()) return may(now);
  Handover::CheckBeside(loop_, std::move(may));
}

absl::Status Runner::Detach() {
  if (const absl::Status may = MayDetach(); !may.ok()) return may;
  PresentJob now{*spec_, options_,        clock_,      *campaign_,          *detachable_,
                 {},     status_->logs(), code_.get(), MayRestart(options_)};
  for (const uint32_t host : attempt_hosts_) now.attempt_hosts.push_back(hosts_.entries[host].host);
  auto made = Handover::Make(ToHandOver(now, loop_.Now()));
  if (!made.ok()) return made.status();
  handover_ = *std::move(made);
  // Nothing is shown or decided from now on. Whoever has the job next asks its nodes what came.
  pause_.Cancel();
  progress_.Stop();
  stdin_.reset();
  attempt_.reset();
  detachable_ = nullptr;
  return absl::OkStatus();
}

void Runner::LeaveToAnother() {
  status_.reset();
  leave_timer_.After(kOutputWait, [this] { Leave(); });
  router_.Finish([this] { Leave(); });
}

// Its workers live: another launcher may do better, perhaps once what is wrong is mended.
void Runner::LeaveIt(const std::string& why) {
  router_.Say(
      absl::StrCat("dtrain: ", why, "; the job is left to the next launcher (dtrain attach)"));
  exit_code_ = kExitState;
  loop_.Post([this] { Leave(); });
}

// All that was missing is that somebody says so.
void Runner::Conclude() {
  const v1::JobVerdict& verdict = records_->before().verdict();
  OnEnd({.kind =
             verdict.exit_code() == 0 ? job::Verdict::Kind::kSuccess : job::Verdict::Kind::kRefused,
         .exit_code = verdict.exit_code(),
         .message = verdict.message(),
         .rank = {},
         .signal = 0});
}

// One that has begun is left to a launcher that can go on with it.
bool Runner::Refuse(const std::string& why) {
  if (records_ == nullptr || records_->before().phase() != v1::JournalState::PHASE_ACCEPTED) {
    return false;
  }
  options_.result_json.clear();  // it may be the reason
  Make(hosts_, options_.job);
  records_->Begin([this, why] {
    OnEnd({.kind = job::Verdict::Kind::kRefused,
           .exit_code = exit_code_,
           .message = why,
           .rank = {},
           .signal = 0});
  });
  loop_.Run();
  attempt_.reset();
  return true;
}

void Runner::OnSuperseded(const std::string& text) {
  router_.Say(absl::StrCat("dtrain: ", job::Printable(text), "; this one leaves it"));
  exit_code_ = kExitOk;
  loop_.Post([this] { Leave(); });
}

// It is written down before workers hear of it, and from now on nothing is decided or written that
// a stop rules out. A disk that takes nothing does not keep a job from being stopped.
void Runner::StopDetached(int signal) {
  const auto act = [this, signal] {
    stop_timer_.Cancel();
    if (!verdict_ && !std::exchange(stop_obeyed_, true)) OnUser(job::UserSignal{signal});
  };
  stop_timer_.After(kDiskPatience, act);
  records_->StopAsked(job::SignalName(signal), act);
  Decide(job::StopAsked{signal});
}

}  // namespace dtrain
