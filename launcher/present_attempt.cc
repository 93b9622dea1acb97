// SPDX-License-Identifier: Apache-2.0
#include "launcher/present_attempt.h"

#include <cstdio>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/campaign_of.h"
#include "launcher/discovery/script.h"
#include "launcher/elastic_limits.h"
#include "launcher/layout_of.h"
#include "launcher/plan/plan.h"
#include "launcher/report/containers.h"

namespace dtrain {
namespace {

// --log-limit: weeks of ordinary output, and little of a disk that has room for checkpoints.
constexpr uint64_t kUsualLogLimit = uint64_t{4} << 30;

}  // namespace

PresentAttempt::~PresentAttempt() = default;

absl::Status PresentAttempt::OpenStdin() {
  const job::JobOptions& job = launch_.options().job;
  if (job.dry_run || job.stdin_rank == "none") return absl::OkStatus();
  stdin_ = std::make_unique<output::StdinSource>(
      launch_.loop(),
      [this](Rank rank, absl::string_view data, bool end) { attempt_->SendStdin(rank, data, end); },
      [this] { launch_.router().UserEndedLine(); });
  absl::Status opened = stdin_->Open();
  if (opened.ok()) return opened;
  return absl::Status(
      opened.code(),
      absl::StrCat("cannot ", opened.message(), "; raise that limit, or launch with --stdin none"));
}

void PresentAttempt::Make(hosts::HostList hosts, const job::JobOptions& options) {
  hosts_ = hosts.entries;
  number_ = options.attempt;
  held_ = false;
  if (!IsElastic(launch_.options())) {
    auto run =
        std::make_unique<AttemptRun>(AroundIt(), std::move(hosts), options, AttemptHandlers());
    fixed_ = run.get();
    attempt_ = std::move(run);
    return;
  }
  elastic::ElasticOptions limits = LimitsOf(launch_.options(), hosts);
  const cli::ElasticOptions& flags = launch_.options().elastic;
  if (!elastic_past_) elastic_past_.emplace(CoolDownOf(flags), std::random_device()());
  auto discovery = flags.discover.empty()
                       ? nullptr
                       : std::make_unique<discovery::Script>(launch_.loop(), flags.discover,
                                                             flags.slots_per_host);
  attempt_ =
      std::make_unique<ElasticRun>(AroundIt(), *elastic_past_, std::move(hosts), options,
                                   std::move(limits), std::move(discovery), AttemptHandlers());
}

void PresentAttempt::Make(hosts::HostList hosts, const job::JobOptions& options,
                          const v1::JournalState& before) {
  hosts_ = hosts.entries;
  number_ = options.attempt;
  auto run = std::make_unique<AttemptRun>(AroundIt(), std::move(hosts), options, before,
                                          AttemptHandlers());
  fixed_ = run.get();
  attempt_ = std::move(run);
}

absl::Status PresentAttempt::OpenLogs() {
  detached::LogStore::Callbacks callbacks;
  callbacks.on_safe = [this](const v1::LogPositions& positions) { fixed_->SetSafe(positions); };
  callbacks.on_progress = [this] { fixed_->OnRoom(); };
  const absl::Status opened = launch_.records()->OpenLogs(
      launch_.options().detach.log_limit.value_or(kUsualLogLimit), std::move(callbacks));
  if (opened.ok()) return opened;
  return absl::Status(opened.code(),
                      absl::StrCat("the workers' output cannot be kept: ", opened.message()));
}

void PresentAttempt::Begin() {
  attempt_->Begin(hosts_);
  for (job::Event& event : std::exchange(waiting_, {})) attempt_->Feed(std::move(event));
}

void PresentAttempt::TakeOver(const v1::JournalState& before) { fixed_->TakeOver(hosts_, before); }

void PresentAttempt::Feed(job::Event event) {
  if (held_) {
    waiting_.push_back(std::move(event));
  } else if (attempt_ != nullptr) {
    attempt_->Feed(std::move(event));
  }
}

void PresentAttempt::EndInput() {
  for (const job::RankEnd& rank : attempt_->facts().ranks) {
    attempt_->SendStdin(rank.rank, "", /*end=*/true);
  }
}

void PresentAttempt::Drop() {
  attempt_.reset();
  fixed_ = nullptr;
}

Attempt::Around PresentAttempt::AroundIt() {
  return {launch_.loop(),     launch_.ways(),
          launch_.router(),   status_ != nullptr ? &status_->logs() : nullptr,
          launch_.timeline(), launch_.clock(),
          launch_.records(),  launch_.code()};
}

Attempt::Handlers PresentAttempt::AttemptHandlers() {
  Attempt::Handlers handlers;
  handlers.on_plan = [this](const plan::Plan& plan) { OnPlan(plan); };
  handlers.on_stdin_taken = [this](const v1::StdinTaken& taken) {
    if (stdin_ == nullptr) return;
    if (taken.waits()) return stdin_->Waits();
    stdin_->Taken(Rank(taken.rank()), taken.closed(), taken.unread());
  };
  handlers.on_runs = [this] { OnRuns(); };
  handlers.on_warning = [this](job::Warn warn) { OnWarning(std::move(warn)); };
  handlers.on_staged = [this](const std::string& sent) {
    if (launch_.options().stage.quiet) return;
    launch_.Warn(absl::StrCat("dtrain: ", stage::Describe(launch_.code()->snapshot), "; ", sent));
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
  handlers.on_checkpoint = [this](bool newer, const std::string& trouble) {
    handlers_.on_checkpoint(newer, trouble);
  };
  handlers.on_changed = [this] { handlers_.on_changed(); };
  // Posted: the next attempt takes the place of this one.
  handlers.on_over = [this] { launch_.loop().Post([this] { OnOver(); }); };
  handlers.on_superseded = [this](const std::string& text) { handlers_.on_superseded(text); };
  return handlers;
}

void PresentAttempt::OnPlan(const plan::Plan& plan) {
  const job::JobOptions& job = launch_.options().job;
  launch_.router().SetLayout(LayoutOf(plan, job.job_id, number_));
  if (status_ != nullptr) status_->logs().SetWorldSize(plan.world_size);
  if (launch_.records() != nullptr) launch_.records()->logs().SetWorldSize(plan.world_size);
  if (!job.dry_run && !launch_.options().verbose) return;
  const std::string table =
      absl::StrCat(plan::FormatRankTable(plan), report::ContainerLines(job.part));
  if (job.dry_run) {
    std::fputs(table.c_str(), stdout);
  } else {
    launch_.router().Say(table);
  }
}

void PresentAttempt::OnRuns() {
  if (launch_.records() != nullptr) {
    launch_.records()->Reached(detached::Standing::Stage::kRuns);
  }
  if (stdin_ != nullptr) {
    stdin_->Start(launch_.options().job.stdin_rank,
                  static_cast<uint32_t>(attempt_->facts().ranks.size()));
  }
  handlers_.on_runs();
}

void PresentAttempt::OnWarning(job::Warn warn) {
  if (warn.detail && !launch_.options().verbose) {
    details_.push_back(std::move(warn.text));
  } else {
    launch_.Warn(warn.text);
  }
}

// Of nodes that are lost there may be output that is not on disk.
void PresentAttempt::OnOver() {
  if (launch_.records() == nullptr) return OnKept();
  launch_.records()->Flush([this] { OnKept(); });
}

void PresentAttempt::OnKept() {
  if (stdin_ != nullptr) stdin_->Pause();
  launch_.router().FlushLines();
  handlers_.on_over();
}

}  // namespace dtrain
