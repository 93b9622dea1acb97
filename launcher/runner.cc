// SPDX-License-Identifier: Apache-2.0
#include "launcher/runner.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <list>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/os/signals.h"
#include "launcher/attempt_options.h"
#include "launcher/campaign_of.h"
#include "launcher/elastic_limits.h"
#include "launcher/job/outcome.h"
#include "launcher/layout_of.h"
#include "launcher/plan/plan.h"
#include "launcher/report/containers.h"

namespace dtrain {

Runner::Runner(loop::Loop& loop, cli::LaunchOptions options, std::unique_ptr<JobRecords> records,
               std::unique_ptr<v1::Spec> spec)
    : loop_(loop),
      options_(std::move(options)),
      records_(std::move(records)),
      spec_(std::move(spec)),
      clock_{loop.Now(), absl::GetCurrentTimeNanos()},
      agent_(loop),
      ways_(loop, options_.transport, agent_),
      router_(loop, options_.output,
              {[this](absl::Status why) { OnUser(job::OutputFailed{std::string(why.message())}); },
               [this](std::string text) { Warn(absl::StrCat("dtrain: warning: ", text)); }}),
      progress_(
          loop, [this](TimePoint now) { return StatusLine(now); },
          [this](absl::string_view line) { router_.ShowStatus(line); }),
      pause_(loop),
      stop_timer_(loop),
      leave_timer_(loop),
      logs_timer_(loop) {}

Runner::~Runner() = default;

int Runner::Run() {
  absl::Status prepared = Prepare();
  if (!prepared.ok()) {
    exit_code_ = absl::IsUnauthenticated(prepared)   ? kExitNotAuthorised
                 : absl::IsInvalidArgument(prepared) ? kExitUsage
                                                     : kExitStartAgents;
    if (!Refuse(std::string(prepared.message()))) {
      std::fprintf(stderr, "dtrain: %s\n", std::string(prepared.message()).c_str());
    }
    return exit_code_;
  }
  os::FailWritesWithoutSignals();
  std::list<loop::SignalWatch> watches;
  std::vector<int> signals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
  if (records_ != nullptr) signals.push_back(detached::JobFolder::StopSignal());
  for (int number : os::NotIgnored(std::move(signals))) {
    watches.emplace_back(loop_, std::initializer_list<int>{number},
                         [this](int signal) { OnSignal(signal); });
  }
  for (const std::string& warning : options_.hosts.warnings) Warn(warning);
  if (records_ == nullptr) {
    Carry(campaign_->Begin());
  } else {
    // Answers and reports are made of one, and the first has to wait for the disk.
    Make(hosts_, options_.job);
    records_->OnTrouble([this](std::string text) { router_.Say(text); });
    records_->Begin([this] { BeginJob(); });
  }
  loop_.Run();
  attempt_.reset();
  status_.reset();
  if (handover_ != nullptr) return std::move(*handover_).Finish();
  if (end_ != nullptr) return end_->exit_code();
  if (!verdict_) router_.FinishSaying(kOutputWait);  // why it leaves the job
  return exit_code_;
}

// ---- attempts -----------------------------------------------------------------------------

void Runner::Decide(const job::CampaignEvent& event) {
  Carry(campaign_->OnEvent(loop_.Now(), event));
}

void Runner::Carry(std::vector<job::CampaignAction> actions) {
  for (job::CampaignAction& action : actions) {
    if (const auto* begin = std::get_if<job::BeginAttempt>(&action)) {
      Do(*begin);
    } else if (const auto* announce = std::get_if<job::Announce>(&action)) {
      Warn(announce->text);
    } else if (auto* end = std::get_if<job::EndCampaign>(&action)) {
      OnEnd(std::move(end->verdict));
    }
  }
  pause_.At(campaign_->NextDeadline(), [this] { Decide(job::CampaignTick{}); });
}

void Runner::Do(const job::BeginAttempt& begin) {
  const job::JobOptions options = OptionsOf(begin, options_.job, campaign_->options().least_hosts);
  if (status_ != nullptr) status_->AttemptBegins(begin.attempt);
  if (records_ == nullptr) return Start(options, begin.hosts);
  std::vector<std::string> names;
  for (const uint32_t host : begin.hosts) names.push_back(hosts_.entries[host].host);
  beginning_ = true;
  records_->AttemptBegins(begin.attempt, options.incarnation, names,
                          [this, options, hosts = begin.hosts] { Start(options, hosts); });
}

Attempt::Around Runner::AroundAttempts() {
  return {loop_,           ways_,  router_,        status_ != nullptr ? &status_->logs() : nullptr,
          timeline_.get(), clock_, records_.get(), code_.get()};
}

void Runner::Start(const job::JobOptions& options, const std::vector<uint32_t>& hosts) {
  attempt_hosts_ = hosts;
  hosts::HostList list = ListOf(hosts_, hosts);
  const std::vector<hosts::HostEntry> entries = list.entries;
  Make(std::move(list), options);
  beginning_ = false;
  if (records_ != nullptr) {
    if (const absl::Status opened = OpenLogs(); !opened.ok()) {
      // One that has run waits for room; one that has not can be launched again.
      if (options.attempt > 0 && !stop_asked_) {
        beginning_ = true;
        if (!std::exchange(logs_failed_, true)) {
          Warn(absl::StrCat("dtrain: warning: attempt ", options.attempt,
                            " waits: the workers' output cannot be kept: ", opened.message()));
        }
        return logs_timer_.After(detached::kJournalRetry,
                                 [this, options, hosts] { Start(options, hosts); });
      }
      return OnEnd(
          {.kind = job::Verdict::Kind::kRefused,
           .exit_code = kExitState,
           .message = absl::StrCat("the workers' output cannot be kept: ", opened.message()),
           .rank = {},
           .signal = 0});
    }
  }
  logs_failed_ = false;
  attempt_->Begin(entries);
  for (job::Event& event : std::exchange(for_attempt_, {})) attempt_->Feed(std::move(event));
}

void Runner::Make(hosts::HostList hosts, const job::JobOptions& options) {
  if (IsElastic(options_)) {
    elastic::ElasticOptions limits = LimitsOf(options_, hosts);
    const cli::ElasticOptions& flags = options_.elastic;
    auto discovery = flags.discover.empty()
                         ? nullptr
                         : std::make_unique<Discovery>(loop_, flags.discover, flags.slots_per_host);
    attempt_ =
        std::make_unique<ElasticRun>(AroundAttempts(), *elastic_past_, std::move(hosts), options,
                                     std::move(limits), std::move(discovery), AttemptHandlers());
    return;
  }
  auto run =
      std::make_unique<AttemptRun>(AroundAttempts(), std::move(hosts), options, AttemptHandlers());
  detachable_ = run.get();
  attempt_ = std::move(run);
}

Attempt::Handlers Runner::AttemptHandlers() {
  Attempt::Handlers handlers;
  handlers.on_plan = [this](const plan::Plan& plan) { OnPlan(plan); };
  handlers.on_worker_started = [this](uint32_t rank, uint32_t pid) {
    if (status_ != nullptr) status_->WorkerStarted(rank, pid);
  };
  handlers.on_stdin_taken = [this](Rank rank, bool closed) {
    if (stdin_ != nullptr) stdin_->Taken(rank, closed);
  };
  handlers.on_runs = [this] { OnRuns(); };
  handlers.on_warning = [this](job::Warn warn) { OnWarning(std::move(warn)); };
  handlers.on_staged = [this](const std::string& sent) {
    Warn(absl::StrCat("dtrain: ", stage::Describe(code_->snapshot), "; ", sent));
  };
  handlers.on_gpus = [this](NodeId node, const v1::GpuStates& states) {
    if (status_ != nullptr) status_->TakeGpus(attempt_->facts().nodes[node.value()].host, states);
  };
  handlers.on_event = [this](std::optional<NodeId> of) {
    if (status_ != nullptr) status_->Observe(of);
  };
  handlers.on_rank_ended = [this](Rank rank) {
    if (status_ != nullptr) status_->RankEnded(rank);
  };
  handlers.on_changed = [this] {
    if (!options_.quiet) progress_.Update();
  };
  // Posted: the next attempt takes the place of this one.
  handlers.on_over = [this] { loop_.Post([this] { OnAttemptOver(); }); };
  handlers.on_superseded = [this](const std::string& text) { OnSuperseded(text); };
  return handlers;
}

void Runner::OnPlan(const plan::Plan& plan) {
  router_.SetLayout(LayoutOf(plan, options_.job.job_id, campaign_->attempt()));
  if (status_ != nullptr) status_->logs().SetWorldSize(plan.world_size);
  if (records_ != nullptr) records_->logs().SetWorldSize(plan.world_size);
  if (options_.job.dry_run || options_.verbose) {
    std::string table = plan::FormatRankTable(plan);
    absl::StrAppend(&table, report::ContainerLines(options_.job.part));
    if (options_.job.dry_run) {
      std::fputs(table.c_str(), stdout);
    } else {
      router_.Say(table);
    }
  }
}

void Runner::OnRuns() {
  if (records_ != nullptr) {
    records_->Reached(detached::Standing::Stage::kRuns);
  }
  if (stdin_ != nullptr) {
    stdin_->Start(options_.job.stdin_rank, static_cast<uint32_t>(attempt_->facts().ranks.size()));
  }
  Decide(job::AttemptRuns{});
}

// Of nodes that are lost there may be output that is not on disk.
void Runner::OnAttemptOver() {
  if (records_ == nullptr) return OnAttemptEnded();
  records_->Flush([this] { OnAttemptEnded(); });
}

void Runner::OnAttemptEnded() {
  const report::JobFacts facts = attempt_->facts();
  if (stdin_ != nullptr) stdin_->Pause();
  router_.FlushLines();
  const job::AttemptEnded ended = EndOf(facts, attempt_->dead_at(), hosts_);
  const size_t before = campaign_->ended().size();
  std::vector<job::CampaignAction> actions = campaign_->OnEvent(loop_.Now(), ended);
  if (records_ != nullptr && campaign_->state() != job::CampaignCore::State::kOver) {
    const bool again = campaign_->ended().size() == before;
    job::AttemptRecord record = again ? job::AttemptRecord() : campaign_->ended().back();
    if (again) record.attempt = campaign_->attempt();
    if (again) record.cause = ended.cause;
    records_->RestartDecided(
        *campaign_, record, again,
        std::max<Duration>(campaign_->next_at() - loop_.Now(), Duration::zero()));
  }
  Carry(std::move(actions));
  if (status_ != nullptr && campaign_->state() == job::CampaignCore::State::kPause) {
    status_->AttemptEnded(ended.cause);
  }
}

// ---- the user -----------------------------------------------------------------------------

void Runner::OnSignal(int signal) {
  if (handover_ != nullptr) return;
  // Nobody seems to want the output that is left; a folder is written to its end.
  if (verdict_) return records_ == nullptr ? Leave() : void();
  const bool stops = signal != SIGUSR1 && signal != SIGUSR2;
  const bool told = signal == detached::JobFolder::StopSignal();
  if (told) signal = SIGTERM;
  // Only `dtrain stop` ends a detached job.
  if (records_ != nullptr && stops && !told) {
    return LeaveIt(absl::StrCat("this launcher was ended by ", job::SignalName(signal)));
  }
  const bool first = stops && !std::exchange(stop_asked_, stop_asked_ || stops);
  if (records_ != nullptr && first) return StopDetached(signal);
  Obey(signal);
}

void Runner::Obey(int signal) {
  Decide(job::StopAsked{signal});
  OnUser(job::UserSignal{signal});
}

void Runner::OnUser(job::Event event) {
  if (handover_ != nullptr) return;
  if (std::holds_alternative<job::OutputFailed>(event) && campaign_) {
    Decide(job::StopAsked{SIGPIPE});
  }
  FeedUser(std::move(event));
}

void Runner::FeedUser(job::Event event) {
  if (beginning_) {
    for_attempt_.push_back(std::move(event));
  } else if (attempt_ != nullptr) {
    attempt_->Feed(std::move(event));
  }
}

void Runner::OnWarning(job::Warn warn) {
  if (warn.detail && !options_.verbose) {
    details_.push_back(std::move(warn.text));
  } else {
    Warn(warn.text);
  }
}

void Runner::Warn(absl::string_view text) {
  if (!options_.quiet) router_.Say(text);
}

report::JobFacts Runner::Facts() const {
  report::JobFacts facts = attempt_->facts();
  if (campaign_ && campaign_->restarts()) facts.campaign = &*campaign_;
  if (code_ != nullptr) facts.code = &code_facts_;
  if (records_ != nullptr) facts.disk = records_->disk_trouble();
  if (!verdict_) return facts;
  return {
      facts.state,    facts.nodes,    facts.ranks, facts.phases, *verdict_, facts.secondary_deaths,
      facts.warnings, facts.campaign, facts.code,  facts.gpus,   facts.disk};
}

std::string Runner::StatusLine(TimePoint now) {
  // On some file systems a file that is asked how wide it is waits for its server, and we with it.
  if (!router_.is_terminal()) return "";
  return report::ProgressLine(Facts(), now, report::TerminalWidth(STDERR_FILENO));
}

// ---- the end ------------------------------------------------------------------------------

void Runner::OnEnd(job::Verdict verdict) {
  verdict_ = std::move(verdict);
  if (records_ == nullptr) return Finish();
  records_->Verdict(verdict_->exit_code, verdict_->message, [this] { Finish(); });
}

void Runner::Finish() {
  exit_code_ = verdict_->exit_code;
  progress_.Stop();
  stdin_.reset();
  router_.FlushLines();  // the report stays the last
  end_ = std::make_unique<JobEnd>(
      JobEnd::Around{loop_, options_, router_, records_.get(), timeline_.get(), status_.get(),
                     attempt_->slowest()},
      [this] { return Facts(); }, [this] { Leave(); });
  end_->Begin(details_, /*stopped=*/stop_asked_);
}

void Runner::Leave() { loop_.Stop(); }

}  // namespace dtrain
