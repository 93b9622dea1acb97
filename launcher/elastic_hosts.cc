// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic_hosts.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/os/fd.h"
#include "launcher/job/outcome.h"

namespace dtrain {
namespace {

// A survey is a session of its own with agents, which know sessions by such a number. Those with
// workers count up from 0.
constexpr uint32_t kFirstSurvey = uint32_t{1} << 31;
// A host that is booting is there soon. The pause doubles each time.
constexpr Duration kFirstRedial = std::chrono::seconds(5);
constexpr Duration kLongestRedial = std::chrono::minutes(5);
// Of those with workers, by a host that is to join them.
constexpr size_t kMostProbed = 8;
// A host that has been found waits for so long for others that may come with it.
constexpr Duration kLongestUntold = std::chrono::seconds(5);
constexpr char kNotReached[] = "it could not be reached";

bool IsLoopback(const rendezvous::Chosen& address) { return absl::StartsWith(address.ip, "127."); }

bool AllAnswered(const job::JobCore& survey) {
  const std::vector<job::NodeView>& nodes = survey.nodes();
  return std::all_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.joined; });
}

}  // namespace

std::string FirstLine(const std::string& host, absl::string_view message) {
  absl::string_view line = message.substr(0, message.find('\n'));
  absl::ConsumePrefix(&line, absl::StrCat(host, ": "));
  return std::string(line);
}

job::JobOptions SessionOptions(const job::JobOptions& of_all, uint32_t number) {
  job::JobOptions options = of_all;
  options.elastic.emplace().set_attempt(of_all.attempt);
  options.attempt = number;
  options.incarnation = os::RandomBytes(16);
  options.probe_token = os::RandomBytes(32);
  options.time_limit = Duration::zero();
  options.exit_timeout = Duration::zero();
  options.check_plan = nullptr;
  options.doubtful.clear();
  options.seats.clear();
  options.retry_for = Duration::zero();  // hosts come and go
  return options;
}

ElasticHosts::ElasticHosts(const Attempt::Around& around, hosts::HostList list,
                           const job::JobOptions& options,
                           std::unique_ptr<discovery::Script> discovery, uint32_t least,
                           uint32_t& surveys, Callbacks callbacks)
    : around_(around),
      list_(std::move(list)),
      options_(options),
      discovery_(std::move(discovery)),
      least_(least),
      surveys_(surveys),
      callbacks_(std::move(callbacks)),
      discover_(around.loop),
      redial_(around.loop),
      redial_after_(kFirstRedial) {}

ElasticHosts::~ElasticHosts() { *alive_ = false; }

// In a restart the list of the launch may be long out of date.
void ElasticHosts::Begin() {
  if (discovery_ == nullptr || surveys_ == 0) return Survey(list_.entries, options_.net);
  discovery_->Run([this](absl::StatusOr<hosts::HostList> list) {
    if (ended_) return;
    if (list.ok() && !list->entries.empty()) list_ = *std::move(list);
    Survey(list_.entries, options_.net);
  });
}

void ElasticHosts::Feed(const job::Event& event) {
  if (survey_ != nullptr) survey_->Feed(event);
}

void ElasticHosts::Stop() {
  stopped_ = true;
  absent_.clear();
  redial_.Cancel();
  discover_.Cancel();
  if (survey_ != nullptr) survey_->Feed(job::EndAsked{"the job ends"});
}

void ElasticHosts::End() {
  Stop();
  ended_ = true;
  if (survey_ == nullptr) callbacks_.on_over();
}

const std::vector<job::NodeView>& ElasticHosts::nodes() const {
  return survey_ != nullptr && nodes_.empty() ? survey_->core().nodes() : nodes_;
}

void ElasticHosts::Survey(std::vector<hosts::HostEntry> hosts, const std::string& net) {
  job::JobOptions options = SessionOptions(options_, kFirstSurvey + surveys_++);
  options.survey = true;
  options.elastic->set_survey(true);
  options.stage = nullptr;
  options.plan.ranks.reset();
  options.plan.nodes.reset();
  // Of a command's hosts others may come in the place of those that do not answer.
  options.min_nodes = !asked_.empty() ? 0 : discovery_ != nullptr ? 1 : least_;
  if (asked_.empty() && discovery_ == nullptr) options.retry_for = options_.retry_for;
  options.net = net;
  // A lone host would be given loopback, by which none that comes later could reach it.
  if (options.net.empty() && discovery_ != nullptr && hosts.size() == 1) options.net = "0.0.0.0/0";
  Attempt::Handlers handlers;
  handlers.on_warning = [this](job::Warn warn) { callbacks_.on_warning(std::move(warn)); };
  handlers.on_event = [this](std::optional<NodeId> of) {
    // When it is over it lets go of all hosts, which are not lost by that.
    const bool is_over = survey_->core().state() == job::State::kFinished;
    if (asked_.empty() && !is_over) callbacks_.on_event(of);
  };
  handlers.on_changed = [this] { callbacks_.on_changed(); };
  handlers.on_over = [this] {
    around_.loop.Post([this, alive = alive_] {
      if (*alive) OnSurveyed();
    });
  };
  Attempt::Around around = around_;
  around.timeline = nullptr;
  around.code = nullptr;
  hosts::HostList list = list_;
  list.entries = std::move(hosts);
  const std::vector<hosts::HostEntry> entries = list.entries;
  survey_ = std::make_unique<AttemptRun>(around, std::move(list), options, std::move(handlers));
  survey_->Begin(entries);
}

void ElasticHosts::OnSurveyed() {
  const std::unique_ptr<AttemptRun> survey = std::exchange(survey_, nullptr);
  const std::string asked = std::exchange(asked_, "");
  const job::JobCore& core = survey->core();
  const job::Verdict& verdict = core.verdict();
  const bool by_network = !network_.empty() && survey->options().net == network_;
  if (asked.empty()) nodes_ = core.nodes();
  if (ended_) return callbacks_.on_over();
  if (stopped_) return;
  if (verdict.kind == job::Verdict::Kind::kSuccess) {
    if (by_network || KeepsAddresses(core)) {
      if (!by_network) network_.clear();
      Take(core);
    } else {
      missing_[asked] = "it reaches the running hosts at addresses that their ranks do not use";
    }
  } else if (by_network && network_ != options_.net && AllAnswered(core)) {
    // Only the addresses were wrong: there may be others.
    for (const hosts::HostEntry& entry : list_.entries) {
      if (entry.host == asked) return Ask(entry, options_.net);
    }
  } else if (!asked.empty()) {
    missing_[asked] = FirstLine(asked, verdict.message);
  } else if (discovery_ != nullptr && verdict.absent) {
    Miss(core);
  } else {
    return callbacks_.on_failed(verdict);
  }
  if (asked.empty() && discovery_ != nullptr) Discover();
  // Several that come together are one change.
  const TimePoint now = around_.loop.Now();
  if (known_.contains(asked)) untold_since_ = std::min(untold_since_, now);
  if (absent_.empty() || now - untold_since_ > kLongestUntold) Tell();
  SurveyNext();
}

// None is there yet. From now on they are asked one by one, each with a cause of its own.
void ElasticHosts::Miss(const job::JobCore& core) {
  const std::string& why = core.verdict().message;
  const bool alone = core.nodes().size() == 1;
  if (!alone) callbacks_.on_warning({why, /*detail=*/false});
  for (const job::NodeView& node : core.nodes()) {
    missing_[node.host] = alone ? FirstLine(node.host, why) : kNotReached;
  }
}

// Whether the survey has proven the addresses that running workers use.
bool ElasticHosts::KeepsAddresses(const job::JobCore& core) {
  const std::vector<std::string> running = callbacks_.with_workers();
  const plan::Plan& plan = core.plan();
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const std::string& host = plan.nodes[i].entry.host;
    const bool runs = std::find(running.begin(), running.end(), host) != running.end();
    if (runs && core.addresses()[i].ip != at(host).address) return false;
  }
  return true;
}

void ElasticHosts::Take(const job::JobCore& core) {
  for (const job::NodeView& node : core.nodes()) {
    if (!node.joined) missing_[node.host] = kNotReached;
  }
  // Of hosts that are in several networks any will do for those that come.
  const std::vector<rendezvous::Chosen>& all = core.addresses();
  const bool one = std::all_of(all.begin(), all.end(), [&all](const auto& each) {
    return each.network == all.front().network;
  });
  const bool loopback = all.size() == 1 && IsLoopback(all.front());
  if (network_.empty() && one && !all.empty() && !loopback) network_ = all.front().network;
  // The only one of several that answers has loopback as well. Asked alone it has not: see Survey.
  const bool again = loopback && discovery_ != nullptr && core.nodes().size() > 1;
  const plan::Plan& plan = core.plan();
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const plan::PlannedNode& node = plan.nodes[i];
    missing_.erase(node.entry.host);
    stale_.erase(node.entry.host);
    known_[node.entry.host] = {node.entry, all[i].ip, static_cast<uint32_t>(node.workers.size())};
    if (!again) continue;
    stale_.insert(node.entry.host);
    Await(node.entry, /*is_new=*/true);
  }
  for (const job::NodeView& node : core.nodes()) {
    if (node.joined && !known_.contains(node.host)) {
      missing_[node.host] = "it has no slot for a rank";
    }
  }
}

void ElasticHosts::Doubt(const std::string& host) {
  for (const hosts::HostEntry& entry : list_.entries) {
    if (entry.host != host || !known_.contains(host)) continue;
    stale_.insert(host);
    Await(entry, /*is_new=*/true);
  }
  SurveyNext();
}

bool ElasticHosts::IsKnown(const std::string& host) const {
  return known_.contains(host) && !stale_.contains(host);
}

// In the order of the list. One that is not there is asked for again from time to time.
void ElasticHosts::Tell() {
  untold_since_ = kNever;
  elastic::HostsFound found;
  for (const hosts::HostEntry& entry : list_.entries) {
    if (IsKnown(entry.host)) {
      found.hosts.push_back({entry.host, at(entry.host).slots});
    } else if (const auto why = missing_.find(entry.host); why != missing_.end()) {
      found.missing.push_back({entry.host, why->second});
    }
  }
  if (!found.missing.empty() && !std::exchange(redials_, true)) {
    redial_.After(redial_after_, [this] {
      redials_ = false;
      redial_after_ = std::min<Duration>(2 * redial_after_, kLongestRedial);
      for (const hosts::HostEntry& entry : list_.entries) {
        if (missing_.contains(entry.host)) Await(entry, /*is_new=*/false);
      }
      SurveyNext();
    });
  }
  callbacks_.on_found(std::move(found));
}

void ElasticHosts::Discover() {
  discovery_->Run([this](absl::StatusOr<hosts::HostList> list) {
    if (stopped_) return;
    const bool failed_before = std::exchange(discovery_fails_, !list.ok());
    discover_.After(discovery::kBetweenRuns, [this] { Discover(); });
    if (list.ok()) return OnListed(*std::move(list));
    if (failed_before) return;
    callbacks_.on_warning(
        {absl::StrCat("dtrain: warning: ", list.status().message(),
                      "; the hosts stay as they are, and it is run again each second"),
         /*detail=*/false});
  });
}

void ElasticHosts::OnListed(hosts::HostList list) {
  const auto same = [](const hosts::HostEntry& left, const hosts::HostEntry& right) {
    return left.host == right.host && left.slots == right.slots;
  };
  if (std::equal(list.entries.begin(), list.entries.end(), list_.entries.begin(),
                 list_.entries.end(), same)) {
    return;
  }
  std::set<std::string> left;
  for (const hosts::HostEntry& entry : list_.entries) left.insert(entry.host);
  list_ = std::move(list);
  std::map<std::string, std::string> missing;
  for (const hosts::HostEntry& entry : list_.entries) {
    left.erase(entry.host);
    if (IsKnown(entry.host)) {
      Host& known = known_.at(entry.host);
      known.entry = entry;
      if (!options_.plan.ranks_per_node) known.slots = entry.slots.value_or(known.slots);
    } else if (const auto why = missing_.find(entry.host); why != missing_.end()) {
      missing.insert(*why);
    } else {
      Await(entry, /*is_new=*/true);
    }
  }
  missing_ = std::move(missing);
  // When it comes back it may be another machine.
  for (const std::string& host : left) {
    if (known_.contains(host)) stale_.insert(host);
  }
  Tell();
  SurveyNext();
}

void ElasticHosts::Await(const hosts::HostEntry& entry, bool is_new) {
  const bool waits = entry.host == asked_ ||
                     std::any_of(absent_.begin(), absent_.end(),
                                 [&entry](const auto& each) { return each.host == entry.host; });
  if (!waits) absent_.insert(is_new ? absent_.begin() : absent_.end(), entry);
}

void ElasticHosts::SurveyNext() {
  if (absent_.empty() || survey_ != nullptr || stopped_) return;
  hosts::HostEntry entry = std::move(absent_.front());
  absent_.pop_front();
  Ask(std::move(entry), network_.empty() ? options_.net : network_);
}

void ElasticHosts::Ask(hosts::HostEntry entry, const std::string& net) {
  std::vector<hosts::HostEntry> hosts = SomeOfRound();
  asked_ = entry.host;
  hosts.push_back(std::move(entry));
  Survey(std::move(hosts), net);
}

// Those that the first survey has found, before any has workers.
std::vector<hosts::HostEntry> ElasticHosts::SomeOfRound() {
  std::vector<hosts::HostEntry> some;
  for (const std::string& host : callbacks_.with_workers()) some.push_back(at(host).entry);
  const bool none = some.empty();
  for (const hosts::HostEntry& entry : list_.entries) {
    if (none && IsKnown(entry.host)) some.push_back(entry);
  }
  if (some.size() > kMostProbed) some.resize(kMostProbed);
  return some;
}

}  // namespace dtrain
