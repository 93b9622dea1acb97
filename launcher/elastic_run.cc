// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic_run.h"

#include <algorithm>
#include <csignal>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "launcher/job/outcome.h"
#include "launcher/report/failure_report.h"

namespace dtrain {
namespace {

constexpr size_t kMostWarnings = 1000;

elastic::ElasticOptions Complete(elastic::ElasticOptions elastic, const job::JobOptions& options,
                                 const ElasticRun::Past& past) {
  elastic.time_limit = options.time_limit;
  elastic.first_run = past.next_run;
  return elastic;
}

// "rank 5 exited with code 1 after 12.3 s"
std::string CauseOf(Rank number, const v1::WorkerExit& exit) {
  return absl::StrCat("rank ", number.value(), " ", report::DescribeEnd(exit), " after ",
                      report::Seconds(std::chrono::nanoseconds(exit.monotonic_nanos())));
}

bool HasFailed(const job::RankEnd& rank) { return rank.ended && dtrain::HasFailed(rank.exit); }

bool IsStop(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

}  // namespace

ElasticRun::ElasticRun(const Around& around, Past& past, hosts::HostList hosts,
                       const job::JobOptions& options, elastic::ElasticOptions elastic,
                       std::unique_ptr<discovery::Script> discovery, Handlers handlers)
    : around_(around),
      past_(past),
      options_(options),
      handlers_(std::move(handlers)),
      hosts_(AroundRuns(), std::move(hosts), options, std::move(discovery), elastic.start.hosts,
             past.surveys, HostCallbacks()),
      core_(Complete(std::move(elastic), options, past), past.book, around.loop.Now()),
      deadline_(around.loop) {
  phases_.push_back({job::State::kConnecting, around.loop.Now(), kNever});
}

ElasticRun::~ElasticRun() { *alive_ = false; }

report::JobFacts ElasticRun::facts() const {
  const bool first_is_worker = verdict_.kind == job::Verdict::Kind::kWorker && failed_ > 0;
  return {phases_.back().state,
          nodes_.empty() ? hosts_.nodes() : nodes_,
          ranks_,
          phases_,
          verdict_,
          failed_ - (first_is_worker ? 1 : 0),
          warnings_,
          nullptr,
          nullptr,
          &gpu_faults_};
}

void ElasticRun::Begin(const std::vector<hosts::HostEntry>& /*hosts*/) {
  deadline_.At(core_.NextDeadline(), [this] { Decide(elastic::Tick{}); });
  hosts_.Begin();
}

// The timeline is of one clock and one set of ranks.
Attempt::Around ElasticRun::AroundRuns() const {
  Around around = around_;
  around.timeline = nullptr;
  return around;
}

ElasticHosts::Callbacks ElasticRun::HostCallbacks() {
  ElasticHosts::Callbacks callbacks;
  callbacks.on_found = [this](elastic::HostsFound found) { Decide(std::move(found)); };
  callbacks.on_failed = [this](job::Verdict verdict) { Finish(std::move(verdict)); };
  callbacks.on_warning = [this](job::Warn warn) { Warn(std::move(warn)); };
  callbacks.on_event = [this](std::optional<NodeId> of) {
    slowest_.Observe(facts(), of, around_.loop.Now());
    handlers_.on_event(std::nullopt);
  };
  callbacks.on_changed = [this] { handlers_.on_changed(); };
  callbacks.with_workers = [this] {
    std::vector<std::string> names;
    for (const auto& [id, run] : core_.runs().all()) {
      if (!run.lives()) continue;
      const bool has_rank_0 = !run.seats.empty() && run.seats.front().rank() == 0;
      names.insert(has_rank_0 ? names.begin() : names.end(), run.host);
    }
    return names;
  };
  callbacks.on_over = [this] { handlers_.on_over(); };
  return callbacks;
}

// ---- decisions ----------------------------------------------------------------------------

void ElasticRun::Feed(job::Event event) {
  if (phases_.back().state == job::State::kFinished) return;
  int signal = SIGPIPE;
  std::string from;
  if (const auto* user = std::get_if<job::UserSignal>(&event)) {
    signal = user->signal;
    from = user->from;
  }
  if (IsStop(signal)) {
    for (auto& [id, run] : runs_) run.ending = true;
    Decide(elastic::StopAsked{signal, from});
    hosts_.Feed(event);
  } else if (runs_.empty()) {
    Warn({absl::StrCat("dtrain: warning: ", job::SignalName(signal),
                       " is ignored: no worker is running now"),
          /*detail=*/false});
  }
  // They know what a second one means.
  for (auto& [id, run] : runs_) run.attempt->Feed(event);
}

// Actions may lead to further events at once; these wait until the actions are done.
void ElasticRun::Decide(elastic::ElasticEvent event) {
  if (phases_.back().state == job::State::kFinished) return;
  events_.push_back(std::move(event));
  if (std::exchange(deciding_, true)) return;
  while (!events_.empty()) {
    const elastic::ElasticEvent next = std::move(events_.front());
    events_.pop_front();
    const size_t ranks = ranks_.size();
    for (const elastic::ElasticAction& action : core_.OnEvent(around_.loop.Now(), next)) {
      std::visit([this](const auto& each) { Do(each); }, action);
    }
    if (ranks_.size() != ranks) ShowLayout();
  }
  deciding_ = false;
  if (core_.state() == elastic::ElasticCore::State::kEnd) {
    Enter(job::State::kStopping);
    hosts_.Stop();
  }
  if (core_.state() != elastic::ElasticCore::State::kOver) {
    deadline_.At(core_.NextDeadline(), [this] { Decide(elastic::Tick{}); });
  }
}

void ElasticRun::Do(const elastic::Announce& announce) { Warn({announce.text, /*detail=*/false}); }

void ElasticRun::Do(const elastic::BeginRun& begin) {
  const ElasticHosts::Host& host = hosts_.at(begin.host);
  job::JobOptions options = SessionOptions(options_, begin.run.value());
  options.elastic->set_first_number(begin.first_number);
  options.min_nodes = 0;
  options.net = host.address;
  options.plan.nodes = 1;
  options.plan.ranks = static_cast<uint32_t>(begin.seats.size());
  v1::ElasticPart& part = *options.part.mutable_elastic();
  part.set_first_number(begin.first_number);
  part.set_attempt(options_.attempt);
  for (const v1::Seat& seat : begin.seats) *part.add_seats() = seat;
  past_.next_run = core_.runs().next();

  if (nodes_.empty()) Enter(job::State::kStarting);
  Run& run = runs_[begin.run];
  run.node = NodeId(static_cast<uint32_t>(nodes_.size()));
  run.first = begin.first_number;
  nodes_.emplace_back().host = begin.host;
  for (uint32_t i = 0; i < begin.seats.size(); ++i) {
    job::RankEnd& rank = ranks_.emplace_back();
    rank.rank = Rank(begin.first_number + i);
    rank.node = run.node;
  }
  ++starting_;
  hosts::HostList list = hosts_.list();
  list.entries = {host.entry};
  run.attempt = std::make_unique<AttemptRun>(AroundRuns(), list, options, HandlersOf(begin.run));
  run.attempt->Begin(list.entries);
}

void ElasticRun::Do(const elastic::EndRun& end) {
  const auto run = runs_.find(end.run);
  if (run == runs_.end()) return;
  if (std::exchange(run->second.ending, true) && !end.cancels) return;
  run->second.attempt->Feed(job::EndAsked{end.why, end.cancels});
}

void ElasticRun::Do(const elastic::OpenRound& open) { Pass(board_.Open(open)); }

void ElasticRun::Do(const elastic::Notify& notify) {
  const auto run = runs_.find(notify.run);
  if (run == runs_.end()) return;
  v1::ElasticDown down;
  down.set_round(core_.round());
  v1::ElasticNotice& notice = *down.mutable_notice();
  notice.set_local_rank(notify.local_rank);
  notice.set_timestamp(notify.timestamp);
  notice.set_change(notify.change);
  run->second.attempt->SendElastic(std::move(down));
}

void ElasticRun::Do(const elastic::EndElastic& end) {
  dead_at_ = end.dead_at;
  job::Verdict verdict = end.verdict;
  verdict.nodes.clear();
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].host == end.host) verdict.nodes = {NodeId(i)};  // the last of them
  }
  Finish(std::move(verdict));
}

// ---- a host's run -------------------------------------------------------------------------

Attempt::Handlers ElasticRun::HandlersOf(elastic::RunId id) {
  Handlers handlers;
  handlers.on_runs = [this, id] { OnStarted(runs_.at(id)); };
  handlers.on_warning = [this](job::Warn warn) { Warn(std::move(warn)); };
  handlers.on_staged = [this](std::string sent) { handlers_.on_staged(std::move(sent)); };
  handlers.on_gpus = [this, id](NodeId, const v1::GpuStates& states) {
    handlers_.on_gpus(runs_.at(id).node, states);
  };
  handlers.on_elastic = [this, id](const v1::ElasticUp& up) { OnUp(id, up); };
  handlers.on_event = [this, id](std::optional<NodeId> of) {
    Run& run = runs_.at(id);
    Look(run);
    slowest_.Observe(facts(), run.node, around_.loop.Now());
    handlers_.on_event(of ? std::optional(run.node) : std::nullopt);
    LookForStop(run);
  };
  handlers.on_rank_ended = [this, id](Rank rank) { OnRankEnded(id, rank); };
  handlers.on_changed = [this] { handlers_.on_changed(); };
  handlers.on_over = [this, id] {
    around_.loop.Post([this, id, alive = alive_] {
      if (*alive) OnRunOver(id);
    });
  };
  return handlers;
}

void ElasticRun::OnStarted(Run& run) {
  if (std::exchange(run.started, true) || --starting_ > 0 || ran_) return;
  ran_ = true;
  Enter(job::State::kRunning);
  handlers_.on_runs();
}

// What its core tells now, in the words of the launch.
void ElasticRun::Look(Run& run) {
  const job::JobCore& core = run.attempt->core();
  nodes_[run.node.value()] = core.nodes().front();
  for (const job::RankEnd& rank : core.ranks()) {
    const uint32_t number = run.first + rank.rank.value();
    if (number >= ranks_.size()) return;
    job::RankEnd& ours = ranks_[number];
    failed_ -= HasFailed(ours) ? 1 : 0;
    ours = rank;
    ours.rank = Rank(number);
    ours.node = run.node;
    failed_ += HasFailed(ours) ? 1 : 0;
  }
  for (; run.gpu_faults < core.gpu_faults().size(); ++run.gpu_faults) {
    gpu_faults_.push_back(core.gpu_faults()[run.gpu_faults]);
    gpu_faults_.back().node = run.node;
  }
}

// By the agent of a host whose run ends already, which has no word in that run's verdict.
void ElasticRun::LookForStop(const Run& run) {
  const std::string& stopped = run.attempt->stopped();
  if (stopped.empty() || !stopped_.empty()) return;
  stopped_ = stopped;
  Decide(elastic::StoppedThere{stopped});
}

void ElasticRun::OnRankEnded(elastic::RunId id, Rank rank) {
  Run& run = runs_.at(id);
  Look(run);
  const Rank number(run.first + rank.value());
  handlers_.on_rank_ended(number);
  const v1::WorkerExit& exit = ranks_[number.value()].exit;
  // What its run ended by itself is told as the run's end.
  if (run.ending || exit.told_to_stop()) return;
  const int code = HasFailed(exit) ? job::WorkerExitCode(exit) : 0;
  Decide(elastic::WorkerEnded{id, rank.value(), code, CauseOf(number, exit)});
}

void ElasticRun::OnRunOver(elastic::RunId id) {
  Run run = std::move(runs_.at(id));
  Look(run);
  runs_.erase(id);
  if (!run.started) --starting_;
  const job::JobCore& core = run.attempt->core();
  const job::Verdict& verdict = core.verdict();
  elastic::RunOver over{id, verdict, FirstLine(core.nodes().front().host, verdict.message),
                        core.dead_at()};
  if (verdict.kind == job::Verdict::Kind::kWorker) {
    const Rank number(run.first + verdict.rank.value());
    over.cause = CauseOf(number, ranks_[number.value()].exit);
  }
  const bool never_ran = verdict.kind == job::Verdict::Kind::kNode && !run.started;
  const std::string host = core.nodes().front().host;
  run.attempt.reset();
  Pass(board_.Drop(id));
  if (never_ran) hosts_.Doubt(host);
  Decide(std::move(over));
}

void ElasticRun::OnUp(elastic::RunId id, const v1::ElasticUp& up) {
  auto heard = board_.OnUp(id, up);
  if (!heard.ok()) {
    return runs_.at(id).attempt->Feed(job::NodeClosed{
        NodeId(0), absl::DataLossError(absl::StrCat("its shepherd broke a rule: ",
                                                    job::Printable(heard.status().message())))});
  }
  Pass(std::move(heard->sends));
  if (heard->event) Decide(*std::move(heard->event));
}

void ElasticRun::Pass(std::vector<elastic::Board::Send> sends) {
  for (elastic::Board::Send& send : sends) {
    const auto run = runs_.find(send.to);
    if (run != runs_.end()) run->second.attempt->SendElastic(std::move(send.down));
  }
}

// ---- what is told -------------------------------------------------------------------------

void ElasticRun::ShowLayout() {
  output::Layout layout;
  layout.job_id = options_.job_id;
  layout.attempt = options_.attempt;
  for (const job::NodeView& node : nodes_) layout.hosts.push_back(node.host);
  std::vector<uint32_t> on(nodes_.size());
  for (const job::RankEnd& rank : ranks_) {
    const uint32_t node = rank.node.value();
    layout.ranks.push_back({node, on[node]++});
  }
  const auto count = static_cast<uint32_t>(layout.ranks.size());
  around_.router.SetLayout(std::move(layout));
  if (around_.tails != nullptr) around_.tails->SetWorldSize(count);
}

void ElasticRun::Enter(job::State state) {
  if (phases_.back().state >= state) return;
  phases_.back().end = around_.loop.Now();
  phases_.push_back({state, around_.loop.Now(), kNever});
}

void ElasticRun::Warn(job::Warn warn) {
  if (warnings_.size() < kMostWarnings) warnings_.push_back(warn.text);
  handlers_.on_warning(std::move(warn));
}

void ElasticRun::Finish(job::Verdict verdict) {
  verdict_ = std::move(verdict);
  deadline_.Cancel();
  if (nodes_.empty()) nodes_ = hosts_.nodes();  // of whom the verdict may tell
  Enter(job::State::kFinished);
  phases_.back().end = around_.loop.Now();
  handlers_.on_event(std::nullopt);
  hosts_.End();
}

}  // namespace dtrain
