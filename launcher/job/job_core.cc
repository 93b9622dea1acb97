// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/job_core.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
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
  kPreparing,
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
    {kPreparing,   "Preparing",    {kIllegal,             kIllegal,             kIllegal,             &I::OnPreparing,   kIllegal,          kIgnore}},
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
    case v1::SessionEvent::kPreparing:
      return kPreparing;
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

uint32_t ToMs(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, UINT32_MAX));
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
                                  ", which is a bug in dtrain: please report it");
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
