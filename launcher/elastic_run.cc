// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic_run.h"

#include <algorithm>
#include <csignal>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/os/fd.h"
#include "launcher/job/outcome.h"
#include "launcher/report/failure_report.h"

namespace dtrain {
namespace {

constexpr size_t kMostWarnings = 1000;
constexpr Duration kFirstRedial = std::chrono::seconds(30);
constexpr Duration kLongestRedial = std::chrono::minutes(5);
// Of a round, by a host that is to join it.
constexpr size_t kMostProbed = 8;

// A survey is a session of its own with agents, which know sessions by such a number. Runs count up
// from 0.
constexpr uint32_t kFirstSurvey = uint32_t{1} << 31;

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

// The first line of what a verdict says, without the host's name.
std::string LineOf(const std::string& host, absl::string_view message) {
  absl::string_view line = message.substr(0, message.find('\n'));
  absl::ConsumePrefix(&line, absl::StrCat(host, ": "));
  return std::string(line);
}

bool IsStop(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

}  // namespace

ElasticRun::ElasticRun(const Around& around, Past& past, hosts::HostList hosts,
                       const job::JobOptions& options, elastic::ElasticOptions elastic,
                       std::unique_ptr<Discovery> discovery, Handlers handlers)
    : around_(around),
      past_(past),
      hosts_(std::move(hosts)),
      options_(options),
      handlers_(std::move(handlers)),
      least_hosts_(elastic.start.hosts),
      core_(Complete(std::move(elastic), options, past), past.book, around.loop.Now()),
      discovery_(std::move(discovery)),
      discover_(around.loop),
      redial_(around.loop),
      redial_after_(kFirstRedial),
      deadline_(around.loop) {
  phases_.push_back({job::State::kConnecting, around.loop.Now(), kNever});
}

ElasticRun::~ElasticRun() { *alive_ = false; }

report::JobFacts ElasticRun::facts() const {
  size_t failed = 0;
  for (const job::RankEnd& rank : ranks_) failed += rank.ended && job::HasFailed(rank.exit) ? 1 : 0;
  const bool first_is_worker = verdict_.kind == job::Verdict::Kind::kWorker && failed > 0;
  return {phases_.back().state,
          survey_ != nullptr && nodes_.empty() ? survey_->core().nodes() : nodes_,
          ranks_,
          phases_,
          verdict_,
          failed - (first_is_worker ? 1 : 0),
          warnings_,
          nullptr,
          nullptr,
          &gpu_faults_};
}

// ---- which hosts are there ----------------------------------------------------------------

// Of a session of one host or, in a survey, of several.
job::JobOptions ElasticRun::OptionsOf(uint32_t session) const {
  job::JobOptions options = options_;
  options.attempt = session;
  options.incarnation = os::RandomBytes(16);
  options.probe_token = os::RandomBytes(32);
  options.time_limit = Duration::zero();
  options.exit_timeout = Duration::zero();
  options.check_plan = nullptr;
  options.doubtful.clear();
  return options;
}

void ElasticRun::Begin(const std::vector<hosts::HostEntry>& hosts) { Survey(hosts); }

void ElasticRun::Survey(std::vector<hosts::HostEntry> hosts) {
  job::JobOptions options = OptionsOf(kFirstSurvey + past_.surveys++);
  options.survey = true;
  options.stage = nullptr;
  options.plan.ranks.reset();
  options.plan.nodes.reset();
  if (!asked_.empty()) {
    options.min_nodes = 0;
    options.net = network_;
  } else {
    options.min_nodes = least_hosts_;
  }
  Handlers handlers;
  handlers.on_plan = [](const plan::Plan&) {};
  handlers.on_worker_started = [](uint32_t, uint32_t) {};
  handlers.on_stdin_taken = [](Rank, bool) {};
  handlers.on_runs = [] {};
  handlers.on_warning = [this](job::Warn warn) { Warn(std::move(warn)); };
  handlers.on_staged = [](const std::string&) {};
  handlers.on_gpus = [](NodeId, const v1::GpuStates&) {};
  handlers.on_event = [this](std::optional<NodeId> of) {
    if (ranks_.empty()) slowest_.Observe(facts(), of, around_.loop.Now());
    handlers_.on_event(std::nullopt);
  };
  handlers.on_rank_ended = [](Rank) {};
  handlers.on_changed = [this] { handlers_.on_changed(); };
  handlers.on_over = [this] {
    around_.loop.Post([this, alive = alive_] {
      if (*alive) OnSurveyed();
    });
  };
  handlers.on_superseded = [](const std::string&) {};
  Around around = around_;
  around.timeline = nullptr;
  around.code = nullptr;
  hosts::HostList list = hosts_;
  list.entries = std::move(hosts);
  const std::vector<hosts::HostEntry> entries = list.entries;
  survey_ = std::make_unique<AttemptRun>(around, std::move(list), options, std::move(handlers));
  survey_->Begin(entries);
}

void ElasticRun::OnSurveyed() {
  const std::unique_ptr<AttemptRun> survey = std::exchange(survey_, nullptr);
  const std::string asked = std::exchange(asked_, "");
  const job::JobCore& core = survey->core();
  if (core_.state() >= elastic::ElasticCore::State::kEnd) return Decide(elastic::Tick{});
  if (core.verdict().kind == job::Verdict::Kind::kSuccess) {
    Take(core);
  } else if (!asked.empty()) {
    missing_[asked] = LineOf(asked, core.verdict().message);
  } else {
    nodes_ = core.nodes();  // of whom the verdict tells
    return Finish(core.verdict());
  }
  if (asked.empty() && discovery_ != nullptr) Discover();
  // Several that come together are one change.
  if (absent_.empty()) TellFound();
  SurveyNext();
}

void ElasticRun::Take(const job::JobCore& core) {
  for (const job::NodeView& node : core.nodes()) {
    if (!node.joined) missing_[node.host] = "it could not be reached";
  }
  const plan::Plan& plan = core.plan();
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const plan::PlannedNode& node = plan.nodes[i];
    const rendezvous::Chosen& address = core.addresses()[i];
    missing_.erase(node.entry.host);
    if (network_.empty()) network_ = address.network;
    known_.try_emplace(node.entry.host,
                       Host{node.entry, address.ip, static_cast<uint32_t>(node.workers.size())});
  }
}

// In the order of the list. One that is not there is asked for again from time to time.
void ElasticRun::TellFound() {
  elastic::HostsFound found;
  for (const hosts::HostEntry& entry : hosts_.entries) {
    if (const auto known = known_.find(entry.host); known != known_.end()) {
      found.hosts.push_back({entry.host, known->second.slots});
    } else if (const auto why = missing_.find(entry.host); why != missing_.end()) {
      found.missing.push_back({entry.host, why->second});
    }
  }
  if (!found.missing.empty()) {
    redial_.After(redial_after_, [this] {
      for (const hosts::HostEntry& entry : hosts_.entries) {
        if (missing_.contains(entry.host)) Await(entry);
      }
      SurveyNext();
    });
    redial_after_ = std::min<Duration>(2 * redial_after_, kLongestRedial);
  }
  Decide(std::move(found));
}

void ElasticRun::Discover() {
  discovery_->Run([this](absl::StatusOr<hosts::HostList> list) {
    const bool failed_before = std::exchange(discovery_fails_, !list.ok());
    discover_.After(kBetweenDiscoveries, [this] { Discover(); });
    if (list.ok()) return OnListed(*std::move(list));
    if (failed_before) return;
    Warn({absl::StrCat("dtrain: warning: ", list.status().message(),
                       "; the hosts stay as they are, and it is run again each second"),
          /*detail=*/false});
  });
}

void ElasticRun::OnListed(hosts::HostList list) {
  const auto same = [](const hosts::HostEntry& left, const hosts::HostEntry& right) {
    return left.host == right.host && left.slots == right.slots;
  };
  if (std::equal(list.entries.begin(), list.entries.end(), hosts_.entries.begin(),
                 hosts_.entries.end(), same)) {
    return;
  }
  hosts_ = std::move(list);
  std::map<std::string, std::string> missing;
  for (const hosts::HostEntry& entry : hosts_.entries) {
    if (const auto known = known_.find(entry.host); known != known_.end()) {
      known->second.entry = entry;
      known->second.slots = entry.slots.value_or(known->second.slots);
    } else if (const auto why = missing_.find(entry.host); why != missing_.end()) {
      missing.insert(*why);
    } else {
      Await(entry);
    }
  }
  missing_ = std::move(missing);
  if (core_.state() >= elastic::ElasticCore::State::kEnd) return;
  TellFound();
  SurveyNext();
}

void ElasticRun::Await(const hosts::HostEntry& entry) {
  const bool waits = entry.host == asked_ ||
                     std::any_of(absent_.begin(), absent_.end(),
                                 [&entry](const auto& each) { return each.host == entry.host; });
  if (!waits) absent_.push_back(entry);
}

void ElasticRun::SurveyNext() {
  if (absent_.empty() || survey_ != nullptr || core_.state() >= elastic::ElasticCore::State::kEnd) {
    return;
  }
  std::vector<hosts::HostEntry> hosts = SomeOfRound();
  asked_ = absent_.front().host;
  hosts.push_back(std::move(absent_.front()));
  absent_.pop_front();
  Survey(std::move(hosts));
}

// Rank 0's among them, as all connect to it.
std::vector<hosts::HostEntry> ElasticRun::SomeOfRound() const {
  std::vector<hosts::HostEntry> some;
  for (const auto& [id, run] : core_.runs().all()) {
    if (!run.lives() || !run.joined) continue;
    const hosts::HostEntry& entry = known_.at(run.host).entry;
    const bool has_rank_0 = !run.seats.empty() && run.seats.front().rank() == 0;
    some.insert(has_rank_0 ? some.begin() : some.end(), entry);
  }
  for (const hosts::HostEntry& entry : hosts_.entries) {
    if (core_.round() == 0 && known_.contains(entry.host)) some.push_back(entry);
  }
  if (some.size() > kMostProbed) some.resize(kMostProbed);
  return some;
}

// ---- decisions ----------------------------------------------------------------------------

void ElasticRun::Feed(job::Event event) {
  int signal = SIGPIPE;
  if (const auto* user = std::get_if<job::UserSignal>(&event)) signal = user->signal;
  if (survey_ != nullptr) survey_->Feed(event);
  // They know what a second one means.
  for (auto& [id, run] : runs_) {
    run.ending = run.ending || IsStop(signal);
    run.attempt->Feed(event);
  }
  if (IsStop(signal)) Decide(elastic::StopAsked{signal});
}

// Actions may lead to further events at once; these wait until the actions are done.
void ElasticRun::Decide(elastic::ElasticEvent event) {
  events_.push_back(std::move(event));
  if (std::exchange(deciding_, true)) return;
  while (!events_.empty()) {
    const elastic::ElasticEvent next = std::move(events_.front());
    events_.pop_front();
    for (const elastic::ElasticAction& action : core_.OnEvent(around_.loop.Now(), next)) Do(action);
  }
  deciding_ = false;
  if (core_.state() == elastic::ElasticCore::State::kEnd) Enter(job::State::kStopping);
  deadline_.At(core_.NextDeadline(), [this] { Decide(elastic::Tick{}); });
}

void ElasticRun::Do(const elastic::ElasticAction& action) {
  if (const auto* announce = std::get_if<elastic::Announce>(&action)) {
    return Warn({announce->text, /*detail=*/false});
  }
  std::visit(
      [this](const auto& each) {
        if constexpr (requires { Do(each); }) Do(each);
      },
      action);
}

void ElasticRun::Do(const elastic::BeginRun& begin) {
  const Host& host = known_.at(begin.host);
  job::JobOptions options = OptionsOf(begin.run.value());
  options.min_nodes = 0;
  options.net = host.address;
  options.plan.nodes = 1;
  options.plan.ranks = static_cast<uint32_t>(begin.seats.size());
  v1::ElasticPart& part = *options.part.mutable_elastic();
  part.set_first_number(begin.first_number);
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
  ShowLayout();
  hosts::HostList list = hosts_;
  list.entries = {host.entry};
  Around around = around_;
  around.timeline = nullptr;
  run.attempt = std::make_unique<AttemptRun>(around, list, options, HandlersOf(begin.run));
  run.attempt->Begin(list.entries);
}

void ElasticRun::Do(const elastic::EndRun& end) {
  const auto run = runs_.find(end.run);
  if (run == runs_.end() || std::exchange(run->second.ending, true)) return;
  run->second.attempt->Feed(job::EndAsked{end.why});
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
  handlers.on_plan = [](const plan::Plan&) {};
  handlers.on_worker_started = [this, id](uint32_t rank, uint32_t pid) {
    handlers_.on_worker_started(runs_.at(id).first + rank, pid);
  };
  handlers.on_stdin_taken = [](Rank, bool) {};
  handlers.on_runs = [this, id] {
    runs_.at(id).runs = true;
    LookWhetherAllRun();
  };
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
  };
  handlers.on_rank_ended = [this, id](Rank rank) { OnRankEnded(id, rank); };
  handlers.on_changed = [this] { handlers_.on_changed(); };
  handlers.on_over = [this, id] {
    around_.loop.Post([this, id, alive = alive_] {
      if (*alive) OnRunOver(id);
    });
  };
  handlers.on_superseded = [](const std::string&) {};
  return handlers;
}

void ElasticRun::LookWhetherAllRun() {
  const bool all =
      std::all_of(runs_.begin(), runs_.end(), [](const auto& each) { return each.second.runs; });
  if (!all || std::exchange(ran_, true)) return;
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
    ranks_[number] = rank;
    ranks_[number].rank = Rank(number);
    ranks_[number].node = run.node;
  }
  for (; run.gpu_faults < core.gpu_faults().size(); ++run.gpu_faults) {
    gpu_faults_.push_back(core.gpu_faults()[run.gpu_faults]);
    gpu_faults_.back().node = run.node;
  }
}

void ElasticRun::OnRankEnded(elastic::RunId id, Rank rank) {
  Run& run = runs_.at(id);
  Look(run);
  const Rank number(run.first + rank.value());
  handlers_.on_rank_ended(number);
  const v1::WorkerExit& exit = ranks_[number.value()].exit;
  // What its run ended by itself is told as the run's end.
  if (run.ending || exit.told_to_stop()) return;
  const int code = job::HasFailed(exit) ? job::WorkerExitCode(exit) : 0;
  Decide(elastic::WorkerEnded{id, rank.value(), code, CauseOf(number, exit)});
}

void ElasticRun::OnRunOver(elastic::RunId id) {
  Run run = std::move(runs_.at(id));
  Look(run);
  runs_.erase(id);
  const job::JobCore& core = run.attempt->core();
  const job::Verdict& verdict = core.verdict();
  elastic::RunOver over{id, verdict, LineOf(core.nodes().front().host, verdict.message),
                        core.dead_at()};
  if (verdict.kind == job::Verdict::Kind::kWorker) {
    const Rank number(run.first + verdict.rank.value());
    over.cause = CauseOf(number, ranks_[number.value()].exit);
  }
  run.attempt.reset();
  Pass(board_.Drop(id));
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
  redial_.Cancel();
  discover_.Cancel();
  verdict_ = std::move(verdict);
  deadline_.Cancel();
  Enter(job::State::kFinished);
  phases_.back().end = around_.loop.Now();
  handlers_.on_event(std::nullopt);
  handlers_.on_over();
}

}  // namespace dtrain
