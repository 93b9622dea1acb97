// SPDX-License-Identifier: Apache-2.0
#include "launcher/campaign_run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/attempt_options.h"
#include "launcher/campaign_of.h"
#include "launcher/job/campaign_journal.h"

namespace dtrain {
namespace {

// Looks at hosts that the job does without (--scale-up): so many while one is awaited, at most one
// a second, and no more than that for hosts that may be gone for days.
constexpr int kLooksWhileBack = 10;
constexpr Duration kShortestPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::seconds(30);

}  // namespace

CampaignRun::CampaignRun(PreparedLaunch& launch, Handlers handlers)
    : launch_(launch),
      handlers_(std::move(handlers)),
      attempt_(launch, AttemptHandlers()),
      progress_(
          launch.loop(), [this](TimePoint now) { return StatusLine(now); },
          [this](absl::string_view line) { launch_.router().ShowStatus(line); }),
      pause_(launch.loop()),
      logs_timer_(launch.loop()) {}

PresentAttempt::Handlers CampaignRun::AttemptHandlers() {
  PresentAttempt::Handlers handlers;
  handlers.on_runs = [this] {
    const report::JobFacts facts = attempt_.now().facts();
    Decide(job::AttemptRuns{JoinedOf(facts, hosts_), SeatsOf(facts, hosts_)});
  };
  handlers.on_changed = [this] {
    if (!launch_.options().quiet) progress_.Update();
  };
  handlers.on_checkpoint = [this](bool newer, const std::string& trouble) {
    OnCheckpoint(newer, trouble);
  };
  handlers.on_over = [this] { OnAttemptOver(); };
  handlers.on_superseded = [this](const std::string& text) { handlers_.on_superseded(text); };
  return handlers;
}

absl::Status CampaignRun::Prepare() {
  absl::Status input = attempt_.OpenStdin();
  if (!input.ok()) return input;
  hosts_ = HostsOf(launch_.options());
  job::CampaignOptions options = CampaignOf(launch_.options(), hosts_);
  if (options.scale_up > Duration::zero()) {
    absent_.emplace(launch_.loop(), launch_.ways(),
                    std::clamp(options.scale_up / kLooksWhileBack, kShortestPause, kLongestPause),
                    [this](uint32_t host, bool reachable) {
                      Decide(job::HostLooked{host, reachable});
                    });
  }
  const TimePoint now = launch_.loop().Now();
  if (launch_.records() == nullptr) {
    core_.emplace(std::move(options), now);
  } else {
    core_.emplace(
        std::move(options),
        job::PastOf(launch_.records()->before(), hosts_, now, absl::GetCurrentTimeNanos()), now);
  }
  return absl::OkStatus();
}

void CampaignRun::ShowOn(status::StatusServer* status) {
  status_ = status;
  attempt_.ShowOn(status);
}

void CampaignRun::Begin() { Carry(core_->Begin()); }

void CampaignRun::MakeIdle() { attempt_.Make(hosts_, launch_.options().job); }

void CampaignRun::Decide(const job::CampaignEvent& event) {
  Carry(core_->OnEvent(launch_.loop().Now(), event));
}

void CampaignRun::Carry(std::vector<job::CampaignAction> actions) {
  for (job::CampaignAction& action : actions) {
    if (const auto* begin = std::get_if<job::BeginAttempt>(&action)) {
      Do(*begin);
    } else if (const auto* announce = std::get_if<job::Announce>(&action)) {
      launch_.Warn(announce->text);
    } else if (std::holds_alternative<job::LookAtCheckpoint>(action)) {
      attempt_.LookAtCheckpoint();
    } else if (const auto* ends = std::get_if<job::EndAttempt>(&action)) {
      EndAttempt(*ends);
    } else if (auto* end = std::get_if<job::EndCampaign>(&action)) {
      End(std::move(end->verdict));
    }
  }
  if (absent_) absent_->Watch(hosts_, core_->absent());
  pause_.At(core_->NextDeadline(), [this] { Decide(job::CampaignTick{}); });
}

// On disk first: another launcher must not take the ends of these workers for failures.
void CampaignRun::EndAttempt(const job::EndAttempt& end) {
  if (launch_.records() == nullptr) return attempt_.Feed(job::EndAsked{end.why});
  std::vector<std::string> names;
  for (const uint32_t host : end.hosts) names.push_back(hosts_.entries[host].host);
  launch_.records()->ScaleUpDecided(core_->attempt(), end.why, names,
                                    [this, why = end.why, attempt = core_->attempt()] {
                                      // It may have ended by itself.
                                      if (!core_->scales_up() || core_->attempt() != attempt)
                                        return;
                                      attempt_.Feed(job::EndAsked{why});
                                    });
}

void CampaignRun::OnCheckpoint(bool newer, const std::string& trouble) {
  if (!trouble.empty() && trouble != checkpoint_trouble_) {
    launch_.Warn(absl::StrCat("dtrain: warning: --scale-up waits for a checkpoint: ", trouble));
    checkpoint_trouble_ = trouble;
  }
  Decide(job::CheckpointLooked{newer, !trouble.empty()});
}

void CampaignRun::Do(const job::BeginAttempt& begin) {
  const job::JobOptions options = OptionsOf(begin, launch_.options().job, core_->options());
  if (status_ != nullptr) status_->AttemptBegins(begin.attempt);
  if (launch_.records() == nullptr) return Start(options, begin.hosts);
  std::vector<std::string> names;
  for (const uint32_t host : begin.hosts) names.push_back(hosts_.entries[host].host);
  attempt_.Hold();
  launch_.records()->AttemptBegins(begin.attempt, options.incarnation, names,
                                   [this, options, hosts = begin.hosts] { Start(options, hosts); });
}

void CampaignRun::Start(const job::JobOptions& options, const std::vector<uint32_t>& hosts) {
  attempt_.Make(ListOf(hosts_, hosts), options);
  const absl::Status opened = launch_.records() == nullptr ? absl::OkStatus() : attempt_.OpenLogs();
  if (opened.ok()) {
    logs_failed_ = false;
    return attempt_.Begin();
  }
  // One that has run waits for room; one that has not can be launched again.
  if (options.attempt == 0 || stop_asked_) {
    return End({.kind = job::Verdict::Kind::kRefused,
                .exit_code = kExitState,
                .message = std::string(opened.message()),
                .rank = {},
                .signal = 0});
  }
  attempt_.Hold();
  if (!std::exchange(logs_failed_, true)) {
    launch_.Warn(
        absl::StrCat("dtrain: warning: attempt ", options.attempt, " waits: ", opened.message()));
  }
  logs_timer_.After(detached::kJournalRetry, [this, options, hosts] { Start(options, hosts); });
}

absl::Status CampaignRun::TakeOver(const v1::JournalState& before) {
  const job::JobOptions options =
      OptionsOf(before, launch_.options().job, Age(launch_.loop().Now()));
  std::vector<uint32_t> hosts;
  for (const std::string& name : before.attempt().hosts()) {
    const auto host = IndexOf(hosts_, name);
    if (!host) {
      return absl::FailedPreconditionError(
          absl::StrCat("the job's journal names ", Escape(name), ", which its host list does not"));
    }
    hosts.push_back(*host);
  }
  if (status_ != nullptr) status_->AttemptBegins(options.attempt);
  // This may wait for the disk; a node's lease begins after it.
  if (absl::Status opened = attempt_.OpenLogs(); !opened.ok()) return opened;
  attempt_.Make(ListOf(hosts_, hosts), options, before);
  core_->Begin();
  attempt_.TakeOver(before);
  return absl::OkStatus();
}

void CampaignRun::OnAttemptOver() {
  job::AttemptEnded ended =
      EndOf(attempt_.now().facts(), attempt_.now().dead_at(), attempt_.now().unheard(), hosts_);
  ended.stopped = attempt_.now().stopped();
  const size_t before = core_->ended().size();
  const TimePoint now = launch_.loop().Now();
  std::vector<job::CampaignAction> actions = core_->OnEvent(now, ended);
  if (launch_.records() != nullptr && core_->state() != job::CampaignCore::State::kOver) {
    const bool again = core_->ended().size() == before;
    job::AttemptRecord record = again ? job::AttemptRecord() : core_->ended().back();
    if (again) record.attempt = core_->attempt();
    if (again) record.cause = ended.cause;
    launch_.records()->RestartDecided(*core_, record, again,
                                      std::max<Duration>(core_->next_at() - now, Duration::zero()));
  }
  Carry(std::move(actions));
  if (status_ != nullptr && core_->state() == job::CampaignCore::State::kPause) {
    const bool again = core_->ended().size() == before;
    status_->AttemptEnded(again ? ended.cause : core_->ended().back().cause);
  }
}

void CampaignRun::OnSignal(int signal, const std::string& from) {
  Decide(job::StopAsked{signal, from});
  attempt_.Feed(job::UserSignal{signal, from});
}

void CampaignRun::OnOutputFailed(const absl::Status& why) {
  if (core_) Decide(job::StopAsked{SIGPIPE});
  attempt_.Feed(job::OutputFailed{std::string(why.message())});
}

void CampaignRun::End(job::Verdict verdict) {
  verdict_ = std::move(verdict);
  if (launch_.records() == nullptr) return handlers_.on_end();
  launch_.records()->Verdict(verdict_->exit_code, verdict_->message,
                             [this] { handlers_.on_end(); });
}

void CampaignRun::StopShowing() {
  progress_.Stop();
  attempt_.CloseStdin();
}

void CampaignRun::LetGo() {
  pause_.Cancel();
  absent_.reset();
  StopShowing();
  attempt_.Drop();
  ShowOn(nullptr);
}

report::JobFacts CampaignRun::Facts() const {
  report::JobFacts facts = attempt_.now().facts();
  if (core_ && core_->restarts()) facts.campaign = &*core_;
  facts.code = launch_.code_facts();
  if (launch_.records() != nullptr) facts.disk = launch_.records()->disk_trouble();
  if (!verdict_) return facts;
  return {
      facts.state,    facts.nodes,    facts.ranks, facts.phases, *verdict_, facts.secondary_deaths,
      facts.warnings, facts.campaign, facts.code,  facts.gpus,   facts.disk};
}

std::string CampaignRun::StatusLine(TimePoint now) const {
  // On some file systems a file that is asked how wide it is waits for its server, and we with it.
  if (!launch_.router().is_terminal()) return "";
  return report::ProgressLine(Facts(), now, report::TerminalWidth(STDERR_FILENO));
}

Duration CampaignRun::Age(TimePoint now) const {
  if (launch_.records() == nullptr) return Duration::zero();
  const v1::JournalState& before = launch_.records()->before();
  return job::PastOf(before, hosts_, now, absl::GetCurrentTimeNanos()).age;
}

bool CampaignRun::workers_run() const {
  return !verdict_ && !stop_asked_ && attempt_.is_there() && core_ &&
         core_->state() == job::CampaignCore::State::kAttempt &&
         attempt_.now().facts().state == job::State::kRunning;
}

}  // namespace dtrain
