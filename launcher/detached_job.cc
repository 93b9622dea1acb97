// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached_job.h"

#include <signal.h>

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/job/campaign_journal.h"
#include "launcher/job/outcome.h"

namespace dtrain {
namespace {

constexpr Duration kDiskPatience = std::chrono::seconds(2);

}  // namespace

DetachedJob::DetachedJob(PreparedLaunch& launch, CampaignRun& campaign, LeaveIt leave)
    : launch_(launch),
      campaign_(campaign),
      records_(*launch.records()),
      leave_(std::move(leave)),
      stop_timer_(launch.loop()) {}

void DetachedJob::Begin() {
  // The first attempt has to wait for the disk.
  campaign_.MakeIdle();
  records_.OnTrouble([this](std::string text) { launch_.router().Say(text); });
  records_.Begin([this] { BeginJob(); });
}

// It is ours, on disk too.
void DetachedJob::BeginJob() {
  using Phase = v1::JournalState;
  records_.Reached(detached::Standing::Stage::kHasJob);
  switch (records_.before().phase()) {
    case Phase::PHASE_BEGUN:
    case Phase::PHASE_RUNS:
      return TakeOver();
    case Phase::PHASE_CONCLUDED:
    case Phase::PHASE_ENDED:
      return Conclude();
    default:
      return campaign_.Begin();
  }
}

void DetachedJob::TakeOver() {
  const v1::JournalState& before = records_.before();
  if (const absl::Status taken = campaign_.TakeOver(before); !taken.ok()) {
    return Leave(std::string(taken.message()));
  }
  // Nobody can type any more.
  if (records_.spec().had_terminal() && before.has_runs()) campaign_.attempt().EndInput();
  if (before.has_stop()) {
    campaign_.attempt().Feed(job::UserSignal{SIGTERM, job::StopFrom(before.stop())});
  }
}

// It has its verdict, and the launcher before us did not get to report it.
void DetachedJob::Conclude() {
  const v1::JobVerdict& verdict = records_.before().verdict();
  campaign_.End({.kind = verdict.exit_code() == 0 ? job::Verdict::Kind::kSuccess
                                                  : job::Verdict::Kind::kRefused,
                 .exit_code = verdict.exit_code(),
                 .message = verdict.message(),
                 .rank = {},
                 .signal = 0});
}

bool DetachedJob::Refuse(int exit_code, const std::string& why) {
  if (records_.before().phase() != v1::JournalState::PHASE_ACCEPTED) return false;
  launch_.DropResultFile();
  campaign_.MakeIdle();
  records_.Begin([this, exit_code, why] {
    campaign_.End({.kind = job::Verdict::Kind::kRefused,
                   .exit_code = exit_code,
                   .message = why,
                   .rank = {},
                   .signal = 0});
  });
  return true;
}

// It is written down before workers hear of it, and from now on nothing is decided or written that
// a stop rules out. A disk that takes nothing does not keep a job from being stopped.
void DetachedJob::Stop(int signal, const std::string& from) {
  const auto act = [this, signal, from] {
    stop_timer_.Cancel();
    if (!campaign_.verdict() && !std::exchange(stop_obeyed_, true)) {
      campaign_.attempt().Feed(job::UserSignal{signal, from});
    }
  };
  stop_timer_.After(kDiskPatience, act);
  records_.StopAsked(from.empty() ? job::SignalName(signal) : from, act);
  campaign_.Decide(job::StopAsked{signal, from});
}

void DetachedJob::Leave(const std::string& why) {
  leave_(absl::StrCat("dtrain: ", why, "; the job is left to the next launcher (dtrain attach)"),
         kExitState);
}

}  // namespace dtrain
