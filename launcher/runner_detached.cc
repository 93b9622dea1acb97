// SPDX-License-Identifier: Apache-2.0
// What the launcher of a detached job does besides: it goes on from what is in the job's folder.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/loop/threads.h"
#include "common/os/fd.h"
#include "launcher/detached/ourselves.h"
#include "launcher/job/campaign_journal.h"
#include "launcher/job/outcome.h"
#include "launcher/launch_detached.h"
#include "launcher/report/result_json.h"
#include "launcher/runner.h"

namespace dtrain {
namespace {

// --away, where nothing is started again.
constexpr Duration kUsualAway = std::chrono::hours(1);
// --log-limit: weeks of ordinary output, and little of a disk that has room for checkpoints.
constexpr uint64_t kUsualLogLimit = uint64_t{4} << 30;
constexpr Duration kDiskPatience = std::chrono::seconds(2);
// Of who asks to detach a job.
constexpr Duration kFolderPatience = std::chrono::seconds(8);

}  // namespace

// Its workers' output goes to its folder, and to files that the user wants besides, not to our log.
cli::LaunchOptions Runner::OptionsFor(const Detached& detached, cli::LaunchOptions options) {
  if (detached.records == nullptr) return options;
  options.job.job_id = detached.records->spec().job_id();
  options.job.generation = detached.records->self().generation();
  options.job.launcher = detached.records->name();
  options.job.stdin_rank = "none";
  const bool restarts = options.restarts.max_restarts > 0 || options.spares > 0;
  options.job.away = options.detach.away.value_or(restarts ? options.job.lease : kUsualAway);
  options.output.shown = {};
  options.output.shown.streams = output::Streams::kNone;
  options.output.fold = false;
  options.output.goes_on = detached.records->before().phase() != v1::JournalState::PHASE_ACCEPTED;
  return options;
}

absl::Status Runner::OpenLogs() {
  detached::LogStore::Callbacks callbacks;
  callbacks.on_safe = [this](const v1::LogPositions& positions) { attempt_->SetSafe(positions); };
  callbacks.on_progress = [this] { attempt_->OnRoom(); };
  return detached_.records->OpenLogs(options_.detach.log_limit.value_or(kUsualLogLimit),
                                     std::move(callbacks));
}

// It is ours, on disk too.
void Runner::BeginJob() {
  using Phase = v1::JournalState;
  const v1::JournalState& before = detached_.records->before();
  detached_.records->Reached(detached::Standing::Stage::kHasJob);
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
  const v1::JournalState& before = detached_.records->before();
  job::JobOptions options = options_.job;
  options.attempt = before.attempt().attempt();
  options.incarnation = before.attempt().incarnation();
  options.probe_token = os::RandomBytes(32);
  if (options.time_limit > Duration::zero()) {
    options.time_limit = std::max<Duration>(
        options.time_limit -
            job::PastOf(before, hosts_, loop_.Now(), absl::GetCurrentTimeNanos()).age,
        std::chrono::milliseconds(1));
  }
  attempt_hosts_.clear();
  for (const std::string& name : before.attempt().hosts()) {
    const auto at = std::find_if(hosts_.entries.begin(), hosts_.entries.end(),
                                 [&](const auto& entry) { return entry.host == name; });
    if (at == hosts_.entries.end()) {
      return LeaveIt(
          absl::StrCat("the job's journal names ", Escape(name), ", which its host list does not"));
    }
    attempt_hosts_.push_back(static_cast<uint32_t>(at - hosts_.entries.begin()));
  }
  if (status_ != nullptr) status_->AttemptBegins(options.attempt);
  hosts::HostList list = ListOf(attempt_hosts_);
  const std::vector<hosts::HostEntry> entries = list.entries;
  attempt_ = std::make_unique<AttemptRun>(AroundAttempts(), std::move(list), options, before,
                                          AttemptHandlers());
  if (const absl::Status opened = OpenLogs(); !opened.ok()) {
    return LeaveIt(absl::StrCat("the workers' output cannot be kept: ", opened.message()));
  }
  campaign_->Begin();
  attempt_->TakeOver(entries, before);
  // Nobody can type any more.
  if (detached_.records->spec().had_terminal() && before.has_runs()) {
    for (const job::RankEnd& rank : attempt_->core().ranks()) {
      attempt_->SendStdin(rank.rank, "", /*end=*/true);
    }
  }
  if (before.has_stop()) FeedUser(job::UserSignal{SIGTERM});
}

// ---- dtrain detach ------------------------------------------------------------------------

absl::Status Runner::MayDetach() const {
  if (detached_.spec == nullptr) {
    return absl::FailedPreconditionError("only what `dtrain launch` has started can be detached");
  }
  const bool runs = !verdict_ && !stop_asked_ && attempt_ != nullptr && campaign_ &&
                    campaign_->state() == job::CampaignCore::State::kAttempt &&
                    attempt_->core().state() == job::State::kRunning;
  if (!runs) {
    return absl::FailedPreconditionError(
        "its workers do not run: it starts, is between two attempts, or is about to end");
  }
  std::vector<std::string> bound;
  for (const job::NodeView& node : attempt_->core().nodes()) {
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

// A folder that stalls shall hold the asker, and not for ever, but never the job: whether it takes
// anything is found out by a thread that nobody waits for.
void Runner::AskToDetach(absl::AnyInvocable<void(absl::Status)> may) {
  if (absl::Status now = MayDetach(); !now.ok()) return may(now);
  struct Asked {
    Asked(loop::Loop& loop, absl::AnyInvocable<void(absl::Status)> task)
        : may(std::move(task)), patience(loop) {}
    absl::AnyInvocable<void(absl::Status)> may;
    loop::Timer patience;
    void Answer(const absl::Status& found) {
      patience.Cancel();
      if (may) std::exchange(may, nullptr)(found);
    }
  };
  const auto asked = std::make_shared<Asked>(loop_, std::move(may));
  asked->patience.After(kFolderPatience, [asked] {
    asked->Answer(
        absl::UnavailableError("the folder of detached jobs, below your home or XDG_STATE_HOME, "
                               "does not answer: try again "
                               "when it does"));
  });
  auto thread = loop::StartThread("try the state folder", [&loop = loop_, asked]() mutable {
    absl::Status found = Handover::Check();
    loop.Post([asked = std::move(asked), found = std::move(found)] { asked->Answer(found); });
  });
  if (!thread.ok()) return asked->Answer(thread.status());
  thread->detach();
}

// As it is now: nothing may happen to it before its connections are cut.
Handover::Job Runner::JobToHandOver() {
  Handover::Job job;
  job.spec = *detached_.spec;
  Describe(options_.detach, job.spec);
  job.spec.set_job_id(options_.job.job_id);
  job.spec.set_had_terminal(true);
  *job.spec.mutable_accepted_by() = detached::Ourselves();
  job.spec.mutable_accepted_by()->set_unix_nanos(clock_.begin_unix_nanos);
  job.state = job::StateOf(*campaign_, loop_.Now(), absl::GetCurrentTimeNanos());
  *job.state.mutable_accepted()->mutable_by() = job.spec.accepted_by();
  v1::AttemptBegins& attempt = *job.state.mutable_attempt();
  attempt.set_incarnation(attempt_->options().incarnation);
  for (const uint32_t host : attempt_hosts_) attempt.add_hosts(hosts_.entries[host].host);
  attempt.set_unix_nanos(job.state.runs().unix_nanos());
  const int64_t since = job.state.runs().unix_nanos();
  *job.state.mutable_runs() = attempt_->Runs();
  job.state.mutable_runs()->set_unix_nanos(since);
  for (const v1::LogPosition& at : attempt_->Taken()) {
    *job.state.add_logs_safe() = at;
    // Those of the attempts before are counted together with these.
    const auto kept = status_->logs().range(Rank(at.rank()), at.stream());
    const uint64_t size = std::min(kept.end - kept.begin, at.offset());
    if (size == 0) continue;
    job.output.push_back(
        {{Rank(at.rank()), at.stream() == v1::STREAM_KIND_STDERR},
         at.offset() - size,
         status_->logs().Read(Rank(at.rank()), at.stream(), kept.end - size, size)});
  }
  job.code = code_.get();
  job.may_restart = MayRestart();
  return job;
}

absl::Status Runner::Detach() {
  if (const absl::Status may = MayDetach(); !may.ok()) return may;
  auto made = Handover::Make(JobToHandOver());
  if (!made.ok()) return made.status();
  handover_ = *std::move(made);
  // Nothing is shown or decided from now on. Whoever has the job next asks its nodes what came.
  pause_.Cancel();
  progress_.Stop();
  stdin_.reset();
  attempt_.reset();
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
  const v1::JobVerdict& verdict = detached_.records->before().verdict();
  OnEnd({.kind =
             verdict.exit_code() == 0 ? job::Verdict::Kind::kSuccess : job::Verdict::Kind::kRefused,
         .exit_code = verdict.exit_code(),
         .message = verdict.message(),
         .rank = {},
         .signal = 0});
}

// One that has begun is left to a launcher that can go on with it.
bool Runner::Refuse(const std::string& why) {
  if (detached_.records == nullptr ||
      detached_.records->before().phase() != v1::JournalState::PHASE_ACCEPTED) {
    return false;
  }
  options_.result_json.clear();  // it may be the reason
  attempt_ =
      std::make_unique<AttemptRun>(AroundAttempts(), hosts_, options_.job, AttemptHandlers());
  detached_.records->Begin([this, why] {
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
  detached_.records->StopAsked(job::SignalName(signal), act);
  Decide(job::StopAsked{signal});
}

// With the summary the job is over for all who wait for it; then comes what they do not wait for.
// Who reads what we say tells the end himself, by the summary.
// Until it is on disk the journal, which goes at the end, is all that says how the job ended.
void Runner::FinishDetached() {
  const absl::Status written = WriteSummary();
  // In a folder that was removed nobody looks for it.
  if (!written.ok() && !absl::IsNotFound(written)) {
    if (!std::exchange(summary_failed_, true)) {
      router_.Say(
          absl::StrCat("dtrain: warning: how ", detached_.records->folder().id(),
                       " ended cannot be written: ", written.message(),
                       "; it is tried again each second: ", detached_.records->WhatToDo(written)));
    }
    return summary_timer_.After(detached::kJournalRetry, [this] { FinishDetached(); });
  }
  SayEnd();
  RunHook([this] {
    detached_.records->Ended([this] {
      const absl::Status settled = detached_.records->Settle();
      if (!settled.ok()) router_.Say(absl::StrCat("dtrain: warning: ", settled.message()));
      if (const absl::Status pruned = detached_.records->PruneOthers(); !pruned.ok()) {
        router_.Say(absl::StrCat("dtrain: warning: old jobs were not removed: ", pruned.message()));
      }
      router_.Finish([this] {
        if (status_ == nullptr) return Leave();
        status_->Finish([this] { Leave(); });
      });
    });
  });
}

void Runner::RunHook(loop::Task then) {
  JobRecords& records = *detached_.records;
  if (options_.detach.on_end.empty() || records.hook_is_over()) return then();
  const auto over = [this, then = std::make_shared<loop::Task>(std::move(then))](int code) {
    if (code != 0) router_.Say(absl::StrCat("dtrain: warning: --on-end ended with ", code));
    detached_.records->HookEnds(code, [then] { (*then)(); });
  };
  records.HookBegins([this, over] {
    const EndHook::Ended ended{exit_code_, detached_.records->folder().path() + "/summary.json"};
    auto hook =
        EndHook::Start(loop_, options_.detach.on_end, detached_.records->spec(), ended, over);
    if (hook.ok()) {
      hook_ = *std::move(hook);
    } else {
      router_.Say(absl::StrCat("dtrain: warning: --on-end: ", hook.status().message()));
      over(kExitNotFound);
    }
  });
}

// For the job's folder. With it the job is over for all who wait for it.
absl::Status Runner::WriteSummary() {
  return detached_.records->WriteSummary(
      report::ResultJson(Facts(), options_.job.job_id, loop_.Now()));
}

}  // namespace dtrain
