// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/job_core.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/own_pause.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {
namespace {

using I = JobImpl;
using Handler = void (I::*)(const Event&);

enum Kind {
  kPhase,
  kConnected,
  kWelcome,
  kProbeReport,
  kPortsHeld,
  kReserved,
  kInventory,
  kStarted,
  kExit,
  kStdinTaken,
  kFenceEnter,
  kPmix,
  kFinishedMsg,
  kFailure,
  kWarning,
  kHeartbeat,
  kProgress,
  kSpans,
  kUnknown,
  kClosed,
  kDrained,
  kSignal,
  kOutputFailed,
  kSlept,
  kTick,
  kKinds,
};

struct Row {
  Kind kind;
  const char* name;
  Handler in[6];  // kConnecting .. kStopping; nothing is taken in kFinished
};

constexpr Handler kIgnore = &I::Ignore;
// What a node must not send in that state. It is told as that node's fault; in kStopping, where
// the end is decided, it is dropped.
constexpr Handler kIllegal = nullptr;

// clang-format off
constexpr Row kTable[] = {
    //                              connecting            probing               holding               starting           running            stopping
    {kPhase,       "",             {&I::OnPhase,          kIgnore,              kIgnore,              kIgnore,           kIgnore,           kIgnore}},
    {kConnected,   "",             {&I::OnConnected,      kIgnore,              kIgnore,              kIgnore,           kIgnore,           kIgnore}},
    {kWelcome,     "Welcome",      {&I::OnWelcome,        &I::OnWelcomeAgain,   &I::OnWelcomeAgain,   &I::OnWelcomeAgain, &I::OnWelcomeAgain, kIgnore}},
    {kProbeReport, "ProbeReport",  {kIllegal,             &I::OnProbeReport,    kIllegal,             kIllegal,          kIllegal,          kIllegal}},
    {kPortsHeld,   "PortsHeld",    {kIllegal,             kIllegal,             &I::OnPortsHeld,      kIllegal,          kIllegal,          kIllegal}},
    {kReserved,    "Reserved",     {&I::OnReserved,       &I::OnReserved,       &I::OnReserved,       kIllegal,          kIllegal,          kIgnore}},
    {kInventory,   "Inventory",    {&I::OnInventory,      kIllegal,             kIllegal,             kIllegal,          kIllegal,          kIgnore}},
    {kStarted,     "Started",      {kIllegal,             kIllegal,             kIllegal,             &I::OnStarted,     kIllegal,          kIgnore}},
    {kExit,        "WorkerExit",   {kIllegal,             kIllegal,             kIllegal,             &I::OnExit,        &I::OnExit,        &I::OnExitStopping}},
    {kStdinTaken,  "StdinTaken",   {kIllegal,             kIllegal,             kIllegal,             kIgnore,           kIgnore,           kIgnore}},
    {kFenceEnter,  "FenceEnter",   {kIllegal,             kIllegal,             kIllegal,             &I::OnFenceEnter,  &I::OnFenceEnter,  kIgnore}},
    {kPmix,        "PMIx message", {kIllegal,             kIllegal,             kIllegal,             &I::OnPmix,        &I::OnPmix,        kIgnore}},
    {kFinishedMsg, "Finished",     {kIllegal,             kIllegal,             kIllegal,             &I::OnFinished,    &I::OnFinished,    &I::OnFinished}},
    {kFailure,     "NodeFailure",  {&I::OnFailureEarly,   &I::OnFailureEarly,   &I::OnFailureEarly,   &I::OnFailure,     &I::OnFailure,     &I::OnFailureStopping}},
    {kWarning,     "Warning",      {&I::OnWarning,        &I::OnWarning,        &I::OnWarning,        &I::OnWarning,     &I::OnWarning,     &I::OnWarning}},
    {kHeartbeat,   "Heartbeat",    {kIgnore,              kIgnore,              kIgnore,              kIgnore,           kIgnore,           kIgnore}},
    {kProgress,    "Progress",     {kIllegal,             kIllegal,             kIllegal,             &I::OnProgress,    &I::OnProgress,    &I::OnLastProgress}},
    // The timeline is written by who feeds us.
    {kSpans,       "Spans",        {kIllegal,             kIllegal,             kIllegal,             kIgnore,           kIgnore,           kIgnore}},
    {kUnknown,     "an empty or unknown message",
                                   {kIllegal,             kIllegal,             kIllegal,             kIllegal,          kIllegal,          kIllegal}},
    {kClosed,      "",             {&I::OnClosedEarly,    &I::OnClosedEarly,    &I::OnClosedEarly,    &I::OnClosed,      &I::OnClosed,      &I::OnClosed}},
    {kDrained,     "",             {kIgnore,              kIgnore,              kIgnore,              &I::OnDrained,     &I::OnDrained,     &I::OnDrained}},
    {kSignal,      "",             {&I::OnSignal,         &I::OnSignal,         &I::OnSignal,         &I::OnSignal,      &I::OnSignal,      &I::OnSignalStopping}},
    {kOutputFailed, "",            {&I::OnOutputFailed,   &I::OnOutputFailed,   &I::OnOutputFailed,   &I::OnOutputFailed, &I::OnOutputFailed, &I::OnOutputFailedStopping}},
    {kSlept,       "",             {&I::OnSlept,          &I::OnSlept,          &I::OnSlept,          &I::OnSlept,       &I::OnSlept,       &I::OnSlept}},
    // Deadlines are looked at after every event, so a Tick itself does nothing.
    {kTick,        "",             {kIgnore,              kIgnore,              kIgnore,              kIgnore,           kIgnore,           kIgnore}},
};
// clang-format on

constexpr bool InOrder() {
  for (int i = 0; i < kKinds; ++i) {
    if (kTable[i].kind != i) return false;
  }
  return std::size(kTable) == kKinds;
}
static_assert(InOrder());

// A beat may be late and the one after it lost before the other side gives up.
constexpr int kBeatsPerLease = 5;
// Silence that is worth a word: two beats of the usual lease. Never longer than that part of a
// shorter one.
constexpr Duration kSuspectAfter = std::chrono::seconds(6);
constexpr Duration kDialEvery = std::chrono::milliseconds(1500);
// After a pause of our own, and what nodes need to end what they run: for word of that to arrive.
constexpr Duration kStillSettle = std::chrono::seconds(5);

Kind KindOf(const v1::SessionEvent& message) {
  switch (message.kind_case()) {
    case v1::SessionEvent::kWelcome:
      return kWelcome;
    case v1::SessionEvent::kProbeReport:
      return kProbeReport;
    case v1::SessionEvent::kPortsHeld:
      return kPortsHeld;
    case v1::SessionEvent::kReserved:
      return kReserved;
    case v1::SessionEvent::kInventory:
      return kInventory;
    case v1::SessionEvent::kStarted:
      return kStarted;
    case v1::SessionEvent::kExit:
      return kExit;
    case v1::SessionEvent::kStdinTaken:
      return kStdinTaken;
    case v1::SessionEvent::kFenceEnter:
      return kFenceEnter;
    case v1::SessionEvent::kPmix:
      return kPmix;
    case v1::SessionEvent::kFinished:
      return kFinishedMsg;
    case v1::SessionEvent::kFailure:
      return kFailure;
    case v1::SessionEvent::kWarning:
      return kWarning;
    case v1::SessionEvent::kHeartbeat:
      return kHeartbeat;
    case v1::SessionEvent::kProgress:
      return kProgress;
    case v1::SessionEvent::kSpans:
      return kSpans;
    case v1::SessionEvent::KIND_NOT_SET:
      return kUnknown;
  }
  return kUnknown;
}

struct Source {
  Kind kind = kTick;
  std::optional<NodeId> node;
};

Source SourceOf(const Event& event) {
  if (const auto* e = std::get_if<NodePhase>(&event)) return {kPhase, e->node};
  if (const auto* e = std::get_if<NodeConnected>(&event)) return {kConnected, e->node};
  if (const auto* e = std::get_if<NodeMessage>(&event)) return {KindOf(e->event), e->node};
  if (const auto* e = std::get_if<NodeClosed>(&event)) return {kClosed, e->node};
  if (const auto* e = std::get_if<LogsDrained>(&event)) return {kDrained, e->node};
  if (std::holds_alternative<UserSignal>(event)) return {kSignal, std::nullopt};
  if (std::holds_alternative<OutputFailed>(event)) return {kOutputFailed, std::nullopt};
  if (std::holds_alternative<Slept>(event)) return {kSlept, std::nullopt};
  return {};
}

std::vector<std::string> HostNames(const hosts::HostList& hosts) {
  std::vector<std::string> names;
  for (const hosts::HostEntry& entry : hosts.entries) names.push_back(entry.host);
  return names;
}

}  // namespace

const char* StateName(State state) {
  switch (state) {
    case State::kConnecting:
      return "connecting";
    case State::kProbing:
      return "probing";
    case State::kHolding:
      return "holding";
    case State::kStarting:
      return "starting";
    case State::kRunning:
      return "running";
    case State::kStopping:
      return "stopping";
    case State::kFinished:
      return "finished";
  }
  return "?";
}

TimePoint After(TimePoint begin, Duration duration) {
  if (duration <= Duration::zero()) return kNever;
  return duration < kNever - begin ? begin + duration : kNever;
}

JobImpl::JobImpl(hosts::HostList host_list, JobOptions job_options, TimePoint begin)
    : hosts(std::move(host_list)),
      options(std::move(job_options)),
      now(begin),
      views(hosts.entries.size()),
      nodes(hosts.entries.size()),
      phases({{State::kConnecting, begin, kNever}}),
      key{options.job_id, options.attempt, options.incarnation},
      barrier(key, HostNames(hosts)),
      start_by(After(begin, options.start_timeout)),
      limit_at(After(begin, options.time_limit)),
      beat_at(begin + BeatPeriod()) {
  for (size_t i = 0; i < views.size(); ++i) {
    views[i].host = hosts.entries[i].host;
    views[i].waiting_for = "connection";
  }
}

void JobImpl::Dispatch(const Event& event) {
  const Source source = SourceOf(event);
  if (source.node) {
    if (source.node->value() >= nodes.size() || views[source.node->value()].gone) return;
    if (const auto* message = std::get_if<NodeMessage>(&event)) {
      HeardFrom(*source.node);
      if (message->event.has_heartbeat()) {
        CompareClocks(*source.node, message->event.heartbeat().unix_nanos(),
                      message->received_unix_nanos);
      }
    }
  }
  const Row& row = kTable[source.kind];
  const Handler handler = row.in[static_cast<size_t>(state)];
  if (handler != kIllegal) {
    (this->*handler)(event);
  } else if (state != State::kStopping) {
    Violation(*source.node, row.name);
  }
}

// A beat that is due long since shows that it was us who did not run, and the nodes' words may
// still wait to be read.
void JobImpl::CreditOwnPause(TimePoint time) {
  const Duration pause = OwnPause(now, beat_at, time, BeatPeriod() / 4);
  now = std::max(now, time);
  if (pause == Duration::zero()) return;
  for (Node& node : nodes) node.last_heard += pause;
  if (state < State::kRunning && start_by != kNever) start_by += pause;
  StoodStill(now - pause, pause);
}

// A starved process has many short pauses. They are one when it runs less than it stands still.
void JobImpl::StoodStill(TimePoint begin, Duration length) {
  const Duration ran = std::max(begin - still_until, Duration::zero());
  still = std::max(still - ran, Duration::zero()) + length;
  still_until = now;
}

// Whether the nodes have ended, or are ending, the job's workers because we stood still.
bool JobImpl::IsOwnFault() const {
  return still > Duration::zero() && still >= options.lease - 2 * BeatPeriod() &&
         now <= still_until + options.lease + options.grace + kStillSettle;
}

constexpr char kStoodStillHow[] = " (stopped, asleep or without CPU time)";

// After word from a node that it has ended its workers, or let us go, because we were silent. True:
// it is lost by our fault, as told already, or now.
bool JobImpl::BlameOwnPause() {
  if (still_blamed) return true;
  if (verdict.kind != Verdict::Kind::kNone || !IsOwnFault()) return false;
  still_blamed = true;
  verdict_open_until = TimePoint::min();  // what else is lost has a line of its own
  Stop({.kind = Verdict::Kind::kNode,
        .exit_code = kExitNodeLost,
        .message =
            absl::StrCat("this launcher stood still for ", FormatSeconds(still), kStoodStillHow,
                         ", and nodes end a job's workers when its launcher is silent for ",
                         FormatSeconds(options.lease), "; --lease TIME lets them wait longer"),
        .rank = {},
        .signal = 0});
  return true;
}

// Of a node that may have been lost by our fault, but has not said so.
std::string JobImpl::WithOwnPause(std::string text) const {
  if (!still_blamed && IsOwnFault()) {
    absl::StrAppend(&text, "; this launcher had stood still for ", FormatSeconds(still),
                    kStoodStillHow);
  }
  return text;
}

void JobImpl::CheckDeadlines() {
  if (now >= beat_at) Beat();
  if (now >= lease_check_at) CheckLeases();
  if (now >= tell_warnings_at) TellNodeWarnings();
  if (waiting_for_others && now >= wait_until) WaitTimedOut();
  if (state == State::kConnecting && now >= look_again_at) LookAgain();
  if (state == State::kConnecting && now >= last_call_at) LastCall();
  if (state < State::kRunning && now >= start_by) StartTimedOut();
  if (state < State::kStarting && now >= settle_at) ConcludeEarlyFaults();
  if (state < State::kStopping && now >= limit_at) {
    Cancel({.kind = Verdict::Kind::kTimeLimit,
            .exit_code = kExitTimeLimit,
            .message =
                absl::StrCat("the time limit of ", FormatSeconds(options.time_limit),
                             " was reached", state == State::kRunning ? "; " + WhereTheyAre() : ""),
            .rank = {},
            .signal = 0});
  }
  if (state == State::kRunning && now >= warn_mpi_at) TellMissingFromMpi();
  if (state == State::kRunning && now >= stall_at) OnFenceStalled();
  if (state == State::kRunning && now >= warn_exit_at) OnEarlyExitTimeout();
  if (state == State::kStopping && now >= kill_at) KillNow();
  if (state == State::kStopping && now >= give_up_at) GiveUp();
  if (state == State::kStopping && now >= cut_logs_at) CutLogs();
}

Duration JobImpl::BeatPeriod() const {
  return std::max<Duration>(options.lease / kBeatsPerLease, std::chrono::milliseconds(1));
}

void JobImpl::Beat() {
  beat_at = now + BeatPeriod();
  SendMany beat;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].connected && !views[i].gone) beat.nodes.push_back(NodeId(i));
  }
  beat.request.mutable_heartbeat();
  if (!beat.nodes.empty()) actions.push_back(std::move(beat));
}

Duration JobImpl::SuspectAfter() const {
  return std::min<Duration>(kSuspectAfter, 2 * BeatPeriod());
}

void JobImpl::CompareClocks(NodeId id, int64_t theirs, int64_t ours) {
  NodeClock& clock = At(id).clock;
  clock.Add(theirs, ours);
  views[id.value()].clock_ahead_nanos = clock.ahead_nanos();
  views[id.value()].clock_ahead_at_start_nanos = clock.ahead_at_start_nanos();
}

void JobImpl::HeardFrom(NodeId id) {
  Node& node = At(id);
  NodeView& view = views[id.value()];
  if (std::exchange(view.suspect, false)) {
    WarnUser(
        absl::StrCat(view.host, ": heard from again after ", FormatSeconds(now - node.last_heard)));
    lease_check_at = now;
  }
  node.last_heard = now;
}

void JobImpl::CheckLeases() {
  TimePoint next = kNever;
  for (uint32_t i = 0; i < nodes.size() && state != State::kFinished; ++i) {
    const bool known = nodes[i].connected || views[i].joined;
    if (!known || views[i].gone || nodes[i].failed) continue;
    const TimePoint end = nodes[i].by_stream ? kNever : After(nodes[i].last_heard, options.lease);
    if (now < end) {
      const TimePoint suspect_at = nodes[i].last_heard + SuspectAfter();
      if (now < suspect_at) {
        next = std::min(next, suspect_at);
        continue;
      }
      if (!std::exchange(views[i].suspect, true)) {
        WarnUser(absl::StrCat(Host(NodeId(i)), ": nothing was heard from it for ",
                              FormatSeconds(now - nodes[i].last_heard),
                              nodes[i].by_stream
                                  ? "; its agent runs on this machine, and is stopped or gets no "
                                    "CPU: the job continues when it does"
                                  : absl::StrCat("; it will be declared lost after ",
                                                 FormatSeconds(options.lease), " (--lease)")));
        nodes[i].dial_at = now;
      }
      if (now >= nodes[i].dial_at) {
        actions.push_back(DialAnew{NodeId(i)});
        nodes[i].dial_at = now + kDialEvery;
      }
      next = std::min({next, end, nodes[i].dial_at});
      continue;
    }
    std::string why =
        absl::StrCat("nothing was heard from it for ", FormatSeconds(now - nodes[i].last_heard));
    if (state < State::kStarting) {
      EarlyFault(NodeId(i), WithOwnPause(std::move(why)), kExitNodeLost);
    } else {
      LoseConnection(NodeId(i), why, kExitNodeLost);
    }
  }
  lease_check_at = next;
}

void JobImpl::Enter(State next) {
  phases.back().end = now;
  phases.push_back({next, now, next == State::kFinished ? now : kNever});
  state = next;
}

v1::SessionRequest& JobImpl::SendTo(NodeId node) {
  actions.push_back(Send{node, {}});
  return std::get<Send>(actions.back()).request;
}

void JobImpl::Violation(NodeId node, const std::string& what) {
  std::string text = absl::StrCat("its agent sent ", what, " in state ", StateName(state),
                                  ", which is a fault of dtrain: please report it");
  if (state < State::kStarting) {
    EarlyFault(node, std::move(text), kExitRendezvous);
  } else {
    LateFault(node, std::move(text), state == State::kStarting ? kExitRendezvous : kExitAgentLost);
  }
}

std::string JobImpl::FaultsText(const std::string& heading, std::vector<Fault> of) const {
  std::map<absl::string_view, size_t> place;
  for (size_t i = 0; i < hosts.entries.size(); ++i) place.emplace(hosts.entries[i].host, i);
  auto place_of = [&](const Fault& fault) {
    const auto found = place.find(fault.host);
    return found == place.end() ? hosts.entries.size() : found->second;
  };
  std::stable_sort(of.begin(), of.end(),
                   [&](const Fault& a, const Fault& b) { return place_of(a) < place_of(b); });
  return FormatFaults(heading, of);
}

JobCore::JobCore(hosts::HostList hosts, JobOptions options, TimePoint now)
    : impl_(std::make_unique<JobImpl>(std::move(hosts), std::move(options), now)) {}

JobCore::~JobCore() = default;

std::vector<Action> JobCore::OnEvent(TimePoint now, Event event) {
  JobImpl& impl = *impl_;
  if (impl.state == State::kFinished) return {};
  impl.CreditOwnPause(now);
  impl.Dispatch(event);
  if (impl.state != State::kFinished) impl.CheckDeadlines();
  return std::exchange(impl.actions, {});
}

TimePoint JobCore::NextDeadline() const {
  const JobImpl& impl = *impl_;
  if (impl.state == State::kFinished) return kNever;
  TimePoint next = std::min({impl.beat_at, impl.lease_check_at, impl.tell_warnings_at});
  if (impl.state == State::kConnecting) {
    next = std::min({next, impl.look_again_at, impl.last_call_at});
    if (impl.waiting_for_others) next = std::min(next, impl.wait_until);
  }
  if (impl.state < State::kRunning) next = std::min(next, impl.start_by);
  if (impl.state < State::kStarting) next = std::min(next, impl.settle_at);
  if (impl.state < State::kStopping) next = std::min(next, impl.limit_at);
  if (impl.state == State::kRunning)
    next = std::min({next, impl.warn_exit_at, impl.warn_mpi_at, impl.stall_at});
  if (impl.state == State::kStopping) {
    next = std::min({next, impl.kill_at, impl.give_up_at, impl.cut_logs_at});
  }
  return next;
}

State JobCore::state() const { return impl_->state; }
const std::vector<NodeView>& JobCore::nodes() const { return impl_->views; }
const plan::Plan& JobCore::plan() const { return impl_->the_plan; }
const std::vector<PhaseTime>& JobCore::phases() const { return impl_->phases; }
const std::vector<RankEnd>& JobCore::ranks() const { return impl_->ranks; }
const Verdict& JobCore::verdict() const { return impl_->verdict; }

const std::vector<std::string>& JobCore::warnings() const { return impl_->warnings; }

size_t JobCore::secondary_deaths() const {
  const bool first_is_worker = impl_->verdict.kind == Verdict::Kind::kWorker;
  return impl_->ranks_failed - (first_is_worker ? 1 : 0);
}

}  // namespace dtrain::job
