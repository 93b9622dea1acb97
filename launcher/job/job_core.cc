// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/job_core.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/exit_code.h"
#include "launcher/job/cancels.h"
#include "launcher/job/cluster.h"
#include "launcher/job/early_faults.h"
#include "launcher/job/gpu_watch.h"
#include "launcher/job/hold_phase.h"
#include "launcher/job/join_phase.h"
#include "launcher/job/lease_watch.h"
#include "launcher/job/losses.h"
#include "launcher/job/mpi_watch.h"
#include "launcher/job/node_warnings.h"
#include "launcher/job/outcome.h"
#include "launcher/job/own_pauses.h"
#include "launcher/job/plan_phase.h"
#include "launcher/job/probe_phase.h"
#include "launcher/job/rank_table.h"
#include "launcher/job/rank_watch.h"
#include "launcher/job/reserve_phase.h"
#include "launcher/job/retries.h"
#include "launcher/job/run_phase.h"
#include "launcher/job/stall_watch.h"
#include "launcher/job/start_limit.h"
#include "launcher/job/start_phase.h"
#include "launcher/job/stop_phase.h"
#include "launcher/job/takeover.h"
#include "launcher/job/verdicts.h"

namespace dtrain::job {

// For the kernel to end processes, after KILL.
constexpr Duration kEndOfWorkers = std::chrono::milliseconds(500);

// The parts of JobCore, each built on those above it.
struct JobPhases {
  JobPhases(hosts::HostList hosts, JobOptions options, TimePoint now)
      : cluster(std::move(hosts), std::move(options), now) {}

  Cluster cluster;
  Out out;
  RankTable ranks{cluster};
  LeaseWatch lease_watch{cluster, out};
  NodeWarnings warnings{cluster, out};
  GpuWatch gpus{cluster, out};
  Verdicts verdicts{cluster, ranks};
  StopPhase stop{cluster, out, verdicts, warnings};
  OwnPauses own_pauses{cluster, stop};
  Losses losses{cluster, out, ranks, lease_watch, stop, own_pauses};
  RankWatch rank_watch{cluster, out, ranks, lease_watch, stop};
  Cancels cancels{cluster, out, rank_watch, stop};
  MpiWatch mpi_watch{cluster, out, ranks};
  StallWatch stall_watch{cluster, out, ranks, mpi_watch, rank_watch};
  RunPhase run{
      cluster, ranks, lease_watch, stop, own_pauses, losses, {rank_watch, mpi_watch, stall_watch}};
  Retries retries{cluster, out};
  EarlyFaults early_faults{cluster, out, retries, stop};
  StartLimit start_limit{cluster, early_faults, stop};
  StartPhase start{cluster, out, ranks, stop, start_limit, stall_watch, run};
  ReservePhase reserve{cluster, out, early_faults, start_limit, stop};
  HoldPhase hold{cluster, out, early_faults, reserve, start};
  ProbePhase probe{cluster, out, early_faults, stop, hold};
  PlanPhase plan{cluster, out, ranks, early_faults, stop, reserve, probe};
  JoinPhase join{cluster, out, lease_watch, stop, own_pauses, retries, early_faults, losses, plan};
  Takeover takeover{cluster, out, ranks, lease_watch, stop, stall_watch, run};

  // By its type, for the table.
  template <typename Phase>
  Phase& Get() {
    return std::get<Phase&>(std::tie(warnings, gpus, stop, own_pauses, losses, rank_watch, cancels,
                                     stall_watch, run, start, hold, probe, plan, join, takeover));
  }
  // Those with a deadline of their own, in the order in which they are called when several are due;
  // LeaseWatch comes before them.
  auto Timed() {
    return std::tie(warnings, reserve, retries, join, start_limit, early_faults, cancels, mpi_watch,
                    stall_watch, stop);
  }

  void Dispatch(const Event& event);
  void CheckDeadlines();
  void Violation(NodeId node, absl::string_view what);
  TimePoint DeadAt(NodeId node) const;
};

namespace {

// An error: what a node must not say.
using Handler = absl::Status (*)(JobPhases&, const Event&);

template <typename T>
struct PhaseOf;
template <typename Phase, typename Result>
struct PhaseOf<Result (Phase::*)(const Event&)> {
  using Type = Phase;
};

// A cell of the table: a phase and its handler.
template <auto kMethod>
absl::Status On(JobPhases& phases, const Event& event) {
  auto& phase = phases.Get<typename PhaseOf<decltype(kMethod)>::Type>();
  if constexpr (std::is_void_v<decltype((phase.*kMethod)(event))>) {
    (phase.*kMethod)(event);
    return absl::OkStatus();
  } else {
    return (phase.*kMethod)(event);
  }
}

absl::Status Ignore(JobPhases&, const Event&) { return absl::OkStatus(); }

enum Kind {
  kPhase,
  kConnected,
  kWelcome,
  kProbeReport,
  kPortsHeld,
  kReserved,
  kInventory,
  kPreparing,
  kStageWord,
  kStaged,
  kStarted,
  kExit,
  kStdinTaken,
  kFenceEnter,
  kPmix,
  kElastic,
  kCheckpoint,
  kSaving,
  kFinishedMsg,
  kReleased,
  kFailure,
  kWarning,
  kGpus,
  kHeartbeat,
  kProgress,
  kSpans,
  kRetold,
  kUnknown,
  kClosed,
  kDrained,
  kSign,
  kSignal,
  kEndAsked,
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

constexpr Handler kIgnore = &Ignore;
// What a node must not send in that state. It is told as that node's fault; in kStopping, where
// the end is decided, it is dropped.
constexpr Handler kIllegal = nullptr;

// clang-format off
constexpr Row kTable[] = {
    //                              connecting                    probing                         holding                         starting                        running                         stopping
    {kPhase,         "",           {On<&JoinPhase::OnPhase>,      kIgnore,                        kIgnore,                        kIgnore,                        kIgnore,                        kIgnore}},
    {kConnected,     "",           {On<&JoinPhase::OnConnected>,  kIgnore,                        kIgnore,                        kIgnore,                        kIgnore,                        kIgnore}},
    {kWelcome,       "Welcome",    {On<&JoinPhase::OnWelcome>,    On<&JoinPhase::OnWelcomeAgain>, On<&JoinPhase::OnWelcomeAgain>, On<&JoinPhase::OnWelcomeAgain>, On<&JoinPhase::OnWelcomeAgain>, kIgnore}},
    {kProbeReport,   "ProbeReport",
                                   {kIllegal,                     On<&ProbePhase::OnProbeReport>, kIllegal,                       kIllegal,                       kIllegal,                       kIllegal}},
    {kPortsHeld,     "PortsHeld",  {kIllegal,                     kIllegal,                       On<&HoldPhase::OnPortsHeld>,    kIllegal,                       kIllegal,                       kIllegal}},
    // Later only of spares, for whose answers nothing waits.
    {kReserved,      "Reserved",   {On<&HoldPhase::OnReserved>,   On<&HoldPhase::OnReserved>,     On<&HoldPhase::OnReserved>,     On<&HoldPhase::OnReserved>,     On<&HoldPhase::OnReserved>,     kIgnore}},
    {kInventory,     "Inventory",  {On<&PlanPhase::OnInventory>,  kIllegal,                       kIllegal,                       kIllegal,                       kIllegal,                       kIgnore}},
    {kPreparing,     "Preparing",  {kIllegal,                     kIllegal,                       kIllegal,                       On<&StartPhase::OnPreparing>,   kIllegal,                       kIgnore}},
    // What is sent to whom is decided by who feeds us.
    {kStageWord,     "StageMissing or StageTaken",
                                   {kIllegal,                     kIllegal,                       kIllegal,                       On<&StartPhase::OnStageWord>,   kIllegal,                       kIgnore}},
    {kStaged,        "Staged",     {kIllegal,                     kIllegal,                       kIllegal,                       On<&StartPhase::OnStaged>,      kIllegal,                       kIgnore}},
    {kStarted,       "Started",    {kIllegal,                     kIllegal,                       kIllegal,                       On<&StartPhase::OnStarted>,     On<&Takeover::OnStarted>,       kIgnore}},
    {kExit,          "WorkerExit", {kIllegal,                     kIllegal,                       kIllegal,                       On<&RunPhase::OnExit>,          On<&RunPhase::OnExit>,          On<&RunPhase::OnExitStopping>}},
    {kStdinTaken,    "StdinTaken", {kIllegal,                     kIllegal,                       kIllegal,                       kIgnore,                        kIgnore,                        kIgnore}},
    {kFenceEnter,    "FenceEnter", {kIllegal,                     kIllegal,                       kIllegal,                       On<&StallWatch::OnFenceEnter>,  On<&StallWatch::OnFenceEnter>,  kIgnore}},
    {kPmix,          "PMIx message",
                                   {kIllegal,                     kIllegal,                       kIllegal,                       On<&StallWatch::OnPmix>,        On<&StallWatch::OnPmix>,        kIgnore}},
    // Between the hosts of an elastic job, which is more than one of ours; and of the campaign.
    {kElastic,       "elastic message",
                                   {kIllegal,                     kIllegal,                       kIllegal,                       kIgnore,                        kIgnore,                        kIgnore}},
    {kCheckpoint,    "Checkpoint", {kIllegal,                     kIllegal,                       kIllegal,                       kIgnore,                        kIgnore,                        kIgnore}},
    {kSaving,        "Saving",     {kIllegal,                     kIllegal,                       kIllegal,                       kIgnore,                        kIgnore,                        On<&StopPhase::OnSaving>}},
    {kFinishedMsg,   "Finished",   {kIllegal,                     kIllegal,                       kIllegal,                       On<&RunPhase::OnFinished>,      On<&RunPhase::OnFinished>,      On<&RunPhase::OnFinished>}},
    // It may overtake all that the shepherd says, when the launcher comes back to the agent.
    {kReleased,      "Released",   {kIllegal,                     kIllegal,                       kIllegal,                       On<&StopPhase::OnReleased>,     On<&StopPhase::OnReleased>,     On<&StopPhase::OnReleased>}},
    {kFailure,       "NodeFailure",
                                   {On<&JoinPhase::OnFailure>,    On<&JoinPhase::OnFailure>,      On<&JoinPhase::OnFailure>,      On<&Losses::OnFailure>,         On<&Losses::OnFailure>,         On<&Losses::OnFailure>}},
    {kWarning,       "Warning",    {On<&NodeWarnings::OnWarning>, On<&NodeWarnings::OnWarning>,   On<&NodeWarnings::OnWarning>,   On<&NodeWarnings::OnWarning>,   On<&NodeWarnings::OnWarning>,   On<&NodeWarnings::OnWarning>}},
    {kGpus,          "GpuStates",  {kIllegal,                     kIllegal,                       kIllegal,                       On<&GpuWatch::OnStates>,        On<&GpuWatch::OnStates>,        On<&GpuWatch::OnStates>}},
    {kHeartbeat,     "Heartbeat",  {kIgnore,                      kIgnore,                        kIgnore,                        kIgnore,                        kIgnore,                        kIgnore}},
    {kProgress,      "Progress",   {kIllegal,                     kIllegal,                       kIllegal,                       On<&RankWatch::OnProgress>,     On<&RankWatch::OnProgress>,     On<&RankWatch::OnLastProgress>}},
    // The timeline is written by who feeds us.
    {kSpans,         "Spans",      {kIllegal,                     kIllegal,                       kIllegal,                       kIgnore,                        kIgnore,                        kIgnore}},
    {kRetold,        "Retold",     {kIllegal,                     kIllegal,                       kIllegal,                       kIllegal,                       On<&Takeover::OnRetold>,        kIgnore}},
    {kUnknown,       "an empty or unknown message",
                                   {kIllegal,                     kIllegal,                       kIllegal,                       kIllegal,                       kIllegal,                       kIllegal}},
    {kClosed,        "",           {On<&JoinPhase::OnClosed>,     On<&JoinPhase::OnClosed>,       On<&JoinPhase::OnClosed>,       On<&Losses::OnClosed>,          On<&Losses::OnClosed>,          On<&Losses::OnClosed>}},
    {kDrained,       "",           {kIgnore,                      kIgnore,                        kIgnore,                        On<&StopPhase::OnDrained>,      On<&StopPhase::OnDrained>,      On<&StopPhase::OnDrained>}},
    {kSign,          "",           {kIgnore,                      kIgnore,                        kIgnore,                        On<&RunPhase::OnSign>,          On<&RunPhase::OnSign>,          On<&RunPhase::OnSign>}},
    {kSignal,        "",           {On<&Cancels::OnSignal>,       On<&Cancels::OnSignal>,         On<&Cancels::OnSignal>,         On<&Cancels::OnSignal>,         On<&Cancels::OnSignal>,         On<&Cancels::OnSignalStopping>}},
    {kEndAsked,      "",           {On<&Cancels::OnEndAsked>,     On<&Cancels::OnEndAsked>,       On<&Cancels::OnEndAsked>,       On<&Cancels::OnEndAsked>,       On<&Cancels::OnEndAsked>,       On<&Cancels::OnEndAskedStopping>}},
    {kOutputFailed,  "",           {On<&Cancels::OnOutputFailed>, On<&Cancels::OnOutputFailed>,   On<&Cancels::OnOutputFailed>,   On<&Cancels::OnOutputFailed>,   On<&Cancels::OnOutputFailed>,   On<&Cancels::OnOutputFailed>}},
    {kSlept,         "",           {On<&OwnPauses::OnSlept>,      On<&OwnPauses::OnSlept>,        On<&OwnPauses::OnSlept>,        On<&OwnPauses::OnSlept>,        On<&OwnPauses::OnSlept>,        On<&OwnPauses::OnSlept>}},
    // Deadlines are looked at after every event, so a Tick itself does nothing.
    {kTick,          "",           {kIgnore,                      kIgnore,                        kIgnore,                        kIgnore,                        kIgnore,                        kIgnore}},
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
    case v1::SessionEvent::kFinished:
      return kFinishedMsg;
    case v1::SessionEvent::kReleased:
      return kReleased;
    case v1::SessionEvent::kGpus:
      return kGpus;
    case v1::SessionEvent::kFailure:
      return kFailure;
    case v1::SessionEvent::kWarning:
      return kWarning;
    case v1::SessionEvent::kHeartbeat:
      return kHeartbeat;
    case v1::SessionEvent::kOpened:  // of the connection, or of another launcher, not of the job
    case v1::SessionEvent::kKept:
    case v1::SessionEvent::kAttached:
    case v1::SessionEvent::KIND_NOT_SET:
      return kUnknown;
  }
  return kUnknown;
}

Kind KindOf(const v1::JobEvent& message) {
  switch (message.kind_case()) {
    case v1::JobEvent::kPreparing:
      return kPreparing;
    case v1::JobEvent::kStageMissing:
    case v1::JobEvent::kStageTaken:
      return kStageWord;
    case v1::JobEvent::kStaged:
      return kStaged;
    case v1::JobEvent::kStarted:
      return kStarted;
    case v1::JobEvent::kExit:
      return kExit;
    case v1::JobEvent::kStdinTaken:
      return kStdinTaken;
    case v1::JobEvent::kFenceEnter:
      return kFenceEnter;
    case v1::JobEvent::kPmix:
      return kPmix;
    case v1::JobEvent::kElastic:
      return kElastic;
    case v1::JobEvent::kCheckpoint:
      return kCheckpoint;
    case v1::JobEvent::kSaving:
      return kSaving;
    case v1::JobEvent::kFinished:
      return kFinishedMsg;
    case v1::JobEvent::kFailure:
      return kFailure;
    case v1::JobEvent::kWarning:
      return kWarning;
    case v1::JobEvent::kHeartbeat:
      return kHeartbeat;
    case v1::JobEvent::kProgress:
      return kProgress;
    case v1::JobEvent::kSpans:
      return kSpans;
    case v1::JobEvent::kRetold:
      return kRetold;
    case v1::JobEvent::KIND_NOT_SET:
      return kUnknown;
  }
  return kUnknown;
}

// Of a node that has no part in the job; what happens to its connection included.
bool SpareMaySay(Kind kind) {
  switch (kind) {
    case kPhase:
    case kConnected:
    case kWelcome:
    case kReserved:
    case kFailure:
    case kWarning:
    case kHeartbeat:
    case kClosed:
    case kDrained:
      return true;
    default:
      return false;
  }
}

struct Source {
  Kind kind = kTick;
  std::optional<NodeId> node;
};

Source SourceOf(const Event& event) {
  if (const auto* e = std::get_if<NodePhase>(&event)) return {kPhase, e->node};
  if (const auto* e = std::get_if<NodeConnected>(&event)) return {kConnected, e->node};
  if (const auto* e = std::get_if<AgentMessage>(&event)) return {KindOf(e->event), e->node};
  if (const auto* e = std::get_if<ShepherdMessage>(&event)) return {KindOf(e->event), e->node};
  if (const auto* e = std::get_if<NodeClosed>(&event)) return {kClosed, e->node};
  if (const auto* e = std::get_if<LogsDrained>(&event)) return {kDrained, e->node};
  if (const auto* e = std::get_if<SignSeen>(&event)) return {kSign, e->node};
  if (std::holds_alternative<UserSignal>(event)) return {kSignal, std::nullopt};
  if (std::holds_alternative<EndAsked>(event)) return {kEndAsked, std::nullopt};
  if (std::holds_alternative<OutputFailed>(event)) return {kOutputFailed, std::nullopt};
  if (std::holds_alternative<Slept>(event)) return {kSlept, std::nullopt};
  return {};
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

void JobPhases::Dispatch(const Event& event) {
  const Source source = SourceOf(event);
  if (source.node) {
    if (source.node->value() >= cluster.size() || cluster.view(*source.node).gone) return;
    if (const auto* agent = std::get_if<AgentMessage>(&event)) lease_watch.OnMessage(*agent);
    if (const auto* shepherd = std::get_if<ShepherdMessage>(&event)) {
      lease_watch.OnMessage(*shepherd);
    }
  }
  if (source.node && cluster.is_spare(*source.node) && !SpareMaySay(source.kind)) {
    return Violation(*source.node, kTable[source.kind].name);
  }
  const Row& row = kTable[source.kind];
  const Handler handler = row.in[static_cast<size_t>(cluster.state())];
  if (handler == kIllegal) {
    if (cluster.state() != State::kStopping) Violation(*source.node, row.name);
  } else if (const absl::Status status = handler(*this, event); !status.ok()) {
    Violation(*source.node, status.message());
  }
}

void JobPhases::CheckDeadlines() {
  lease_watch.OnDeadline(
      [this](NodeId node, std::string why) {
        if (cluster.state() < State::kStarting) {
          join.OnSilent(node, std::move(why));
        } else {
          losses.OnSilent(node, why);
        }
      },
      [this](NodeId node, Duration silence) { losses.OnShepherdSilent(node, silence); });
  std::apply([](auto&... phase) { (phase.OnDeadline(), ...); }, Timed());
}

void JobPhases::Violation(NodeId node, absl::string_view what) {
  const State state = cluster.state();
  std::string text = absl::StrCat("its agent sent ", what, " in state ", StateName(state),
                                  ", which is a bug in dtrain: please report it");
  if (state < State::kStarting) {
    join.Fault(node, std::move(text), kExitRendezvous);
  } else {
    losses.Fault(node, std::move(text),
                 state == State::kStarting ? kExitRendezvous : kExitAgentLost);
  }
}

JobCore::JobCore(hosts::HostList hosts, JobOptions options, TimePoint now)
    : phases_(std::make_unique<JobPhases>(std::move(hosts), std::move(options), now)) {}

JobCore::JobCore(hosts::HostList hosts, JobOptions options, const v1::AttemptRuns& runs,
                 TimePoint now)
    : JobCore(std::move(hosts), std::move(options), now) {
  phases_->takeover.Begin(runs);
}

JobCore::~JobCore() = default;

std::vector<Action> JobCore::TakeActions() { return phases_->out.Take(); }

std::vector<Action> JobCore::OnEvent(TimePoint now, Event event) {
  JobPhases& p = *phases_;
  if (state() == State::kFinished) return {};
  if (const Duration pause = p.lease_watch.CreditOwnPause(now); pause > Duration::zero()) {
    p.start_limit.Credit(pause);
    p.own_pauses.StoodStill(p.cluster.now() - pause, pause);
  }
  p.Dispatch(event);
  if (state() != State::kFinished) p.CheckDeadlines();
  return p.out.Take();
}

TimePoint JobCore::NextDeadline() const {
  if (state() == State::kFinished) return kNever;
  return std::apply(
      [this](const auto&... phase) {
        return std::min({phases_->lease_watch.NextDeadline(), phase.NextDeadline()...});
      },
      phases_->Timed());
}

State JobCore::state() const { return phases_->cluster.state(); }
const std::vector<NodeView>& JobCore::nodes() const { return phases_->cluster.views(); }
const plan::Plan& JobCore::plan() const { return phases_->cluster.plan(); }
const std::vector<PhaseTime>& JobCore::phases() const { return phases_->cluster.phases(); }
const std::vector<RankEnd>& JobCore::ranks() const { return phases_->ranks.all(); }
const Verdict& JobCore::verdict() const { return phases_->verdicts.verdict(); }
const std::vector<rendezvous::Chosen>& JobCore::addresses() const {
  return phases_->probe.chosen();
}
const std::vector<GpuFault>& JobCore::gpu_faults() const { return phases_->gpus.faults(); }
const std::vector<std::string>& JobCore::warnings() const { return phases_->out.warnings(); }

const std::string& JobCore::stopped() const { return phases_->losses.stopped(); }

TimePoint JobPhases::DeadAt(NodeId node) const {
  if (!cluster.node(node).told_to_start || cluster.node(node).ended) return TimePoint::min();
  const TimePoint heard = std::max(lease_watch.last_heard(node), lease_watch.last_beat(node));
  const JobOptions& options = cluster.options();
  return heard + std::max(options.lease, options.away) + options.grace + kEndOfWorkers;
}

TimePoint JobCore::dead_at() const {
  TimePoint all = TimePoint::min();
  for (uint32_t i = 0; i < phases_->cluster.size(); ++i) {
    all = std::max(all, phases_->DeadAt(NodeId(i)));
  }
  return all;
}

std::vector<std::pair<NodeId, TimePoint>> JobCore::unheard() const {
  std::vector<std::pair<NodeId, TimePoint>> nodes;
  const Cluster& cluster = phases_->cluster;
  if (cluster.options().generation > 0 || cluster.options().elastic) return nodes;
  for (uint32_t i = 0; i < cluster.size(); ++i) {
    const TimePoint dead_at = phases_->DeadAt(NodeId(i));
    if (dead_at == TimePoint::min()) continue;
    if (cluster.view(NodeId(i)).resumable) return {};
    nodes.emplace_back(NodeId(i), dead_at);
  }
  return nodes;
}

size_t JobCore::secondary_deaths() const {
  const bool first_is_worker = verdict().kind == Verdict::Kind::kWorker;
  return phases_->ranks.failed() - (first_is_worker ? 1 : 0);
}

}  // namespace dtrain::job
