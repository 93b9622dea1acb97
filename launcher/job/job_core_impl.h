// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/collective_watch.h"
#include "launcher/job/job_core.h"
#include "launcher/job/outcome.h"
#include "rendezvous/address_choice.h"
#include "rendezvous/barrier_core.h"
#include "rendezvous/fence_core.h"
#include "rendezvous/pmix_core.h"

// JobCore's inside; include only from launcher/job/*.cc. Handlers are called from the table in
// job_core.cc and stand in the file of their part of the life: joining.cc, starting.cc,
// running.cc, stopping.cc and so on.
namespace dtrain::job {

// Kept for the result file; more than a person reads.
constexpr size_t kMostWarnings = 1000;

// A failure on one node makes workers of others fail within milliseconds, and their reports may
// overtake its own. Until this long after the first report the earliest of them counts.
constexpr Duration kVerdictSettle = std::chrono::milliseconds(100);

struct JobImpl {
  // What we know of a node beside its view.
  struct Node {
    bool connected = false;  // a session stands, Hello was sent
    bool failed = false;     // before the start: it will not come
    bool absent = false;     // the job goes on without it
    bool asked = false;      // it owes us an answer in this state
    bool by_stream = false;  // our own machine's agent: its stream's end tells, not its silence
    bool reserved = false;   // what we asked for is ours there, or will be
    bool start_sent = false;
    bool preparing = false;  // before it starts, for as long as that takes
    bool started = false;
    bool finished = false;  // no worker lives there
    bool drained = false;
    bool told_to_end = false;  // a worker of it was: the agent has ended its job, or we
    std::optional<uint32_t> plan_index;
    size_t ranks_left = 0;
    TimePoint last_heard;
    TimePoint dial_at;              // anew, while it is suspect
    TimePoint first_exit = kNever;  // of a rank with 0
    NodeClock clock;
  };

  JobImpl(hosts::HostList host_list, JobOptions job_options, TimePoint begin);

  // ---- the handlers of the table ----
  void Ignore(const Event&) {}
  void OnPhase(const Event& event);
  void OnConnected(const Event& event);
  void OnWelcome(const Event& event);
  void OnWelcomeAgain(const Event& event);
  void OnProbeReport(const Event& event);
  void OnReserved(const Event& event);
  void OnInventory(const Event& event);
  void OnPortsHeld(const Event& event);
  void OnPreparing(const Event& event);
  void OnStarted(const Event& event);
  void OnExit(const Event& event);
  void OnExitStopping(const Event& event);
  void OnFenceEnter(const Event& event);
  void OnPmix(const Event& event);
  void OnFinished(const Event& event);
  void OnFailureEarly(const Event& event);
  void OnFailure(const Event& event);
  void OnFailureStopping(const Event& event);
  void OnWarning(const Event& event);
  void OnProgress(const Event& event);
  void OnLastProgress(const Event& event);
  void OnClosedEarly(const Event& event);
  void OnClosed(const Event& event);
  void OnDrained(const Event& event);
  void OnSignal(const Event& event);
  void OnSignalStopping(const Event& event);
  void OnSlept(const Event& event) { StoodStill(now, std::get<Slept>(event).length); }
  void OnOutputFailed(const Event& event);
  void OnOutputFailedStopping(const Event& event);

  // ---- job_core.cc: dispatch, deadlines, small tools ----
  void Dispatch(const Event& event);
  void CheckDeadlines();
  void Enter(State next);
  void Violation(NodeId node, const std::string& what);
  Node& At(NodeId node) { return nodes[node.value()]; }
  const std::string& Host(NodeId node) const { return views[node.value()].host; }
  // Hosts are told in the order of the hostfile, whoever spoke first.
  std::string FaultsText(const std::string& heading, std::vector<Fault> of) const;
  NodeId NodeOfPlan(size_t index) const { return the_plan.nodes[index].node; }
  v1::SessionRequest& SendTo(NodeId node);
  void WarnUser(std::string text, bool detail = false) {
    if (warnings.size() < kMostWarnings) warnings.push_back(text);
    actions.push_back(Warn{std::move(text), detail});
  }

  // ---- silence.cc: who is heard of ----
  void CreditOwnPause(TimePoint now);
  void StoodStill(TimePoint begin, Duration length);
  bool IsOwnFault() const;
  bool BlameOwnPause();
  std::string WithOwnPause(std::string text) const;
  Duration BeatPeriod() const;
  void Beat();
  void CheckLeases();
  Duration SuspectAfter() const;
  void CompareClocks(NodeId node, int64_t theirs, int64_t ours);
  void HeardFrom(NodeId node);

  // ---- joining.cc: until all have shown what they have and where they can be reached ----
  absl::Status Join(const NodeMessage& message);
  void CheckAllDecided();
  void EarlyFault(NodeId node, std::string text, int exit_code);
  void ConcludeEarlyFaults();
  void StartProbing();
  void SendProbes(rendezvous::Candidates probe_these);
  void FinishProbing();

  // ---- starting.cc: until all have started ----
  void HoldPorts();
  uint32_t PortsOf(size_t plan_index) const;
  v1::WholeJob Whole() const;
  void StartIfReady();
  void StartAll();
  v1::JobPart PartOf(size_t plan_index) const;
  v1::Meeting MeetingOfAll() const;
  void StartTimedOut();
  std::string Waiting() const;
  void SetPreparing(NodeId node, bool preparing);

  // ---- absent.cc: --min-nodes
  bool IsElastic() const { return options.min_nodes > 0; }
  bool MayLeaveOut(NodeId node) const;
  void LeaveOut(NodeId node, std::string why, int exit_code);
  void TellLeftOut();
  void PlanLastCall();
  void LastCall();
  absl::StatusOr<plan::Plan> PlaceOnPresent(const std::vector<v1::Inventory>& inventories) const;

  // ---- reserving.cc: what several jobs on a node have of it ----
  void ReserveAll();
  void Busy(std::string why);
  void LookAgain();
  void WaitTimedOut();

  // ---- planning.cc ----
  void MakePlan();
  void ReleaseIdle();
  absl::StatusOr<plan::Plan> PlanOn(const std::vector<v1::Inventory>& inventories) const;
  bool PlaceAndPin();
  bool CheckNodes();
  void WarnOfInventories();
  bool CheckStdinRank();
  bool CheckTorchrunAgents();
  void LookForLaunchers();
  bool HasContract(v1::Contract contract) const;
  void Refuse(const absl::Status& status);

  // ---- running.cc ----
  bool RecordExit(const NodeMessage& message);
  void OnRankFailed(const NodeMessage& message);
  void ConsiderFirst(const NodeMessage& message);
  std::pair<int64_t, uint32_t> FailureOrder(const NodeMessage& message);
  void CheckAllEnded();
  void TellNodeWarnings();

  // ---- watching.cc: what ranks are doing ----
  bool RecordProgress(const NodeMessage& message);
  void NoteHalt(const NodeMessage& message, RankEnd& end);
  void TellHalted();
  std::string HaltText(const RankEnd& end) const;
  std::string HaltedRanks() const;
  std::string WhereTheyAre() const;
  std::string CollectiveText() const;
  void CheckCollectives();
  void PlanStallCheck();
  void OnEarlyExitTimeout();
  void OnFenceStalled();
  void Stalled(std::string message);

  // ---- losing.cc: nodes ----
  void LateFault(NodeId node, std::string text, int exit_code);
  void AddLateFault(NodeId node, std::string text, int exit_code);
  void LoseConnection(NodeId node, const std::string& why, int exit_code);
  void LoseNode(NodeId node, std::string text, int exit_code);
  void LetGo(NodeId node);
  bool IsCause(NodeId node);
  bool IsTold(const std::string& text) const;
  void LostFirst(NodeId node, std::string text, int exit_code);

  // ---- pmix.cc: ranks that are in an MPI world ----
  void SendPmix(std::vector<rendezvous::PmixCore::Send> sends);
  bool WaitsForMissingRanks() const;
  std::vector<std::string> MissingFromMpi(bool ended) const;
  void PlanMpiStall();
  std::string MpiStallText() const;
  void TellMissingFromMpi();

  // ---- stopping.cc ----
  void Cancel(Verdict why);
  void Stop(Verdict why);
  void BeginStopping();
  void KillNow();
  void GiveUp();
  void CutLogs();
  bool AnyUnfinished() const;
  void ReleaseIfDone(NodeId node);
  void Release(NodeId node);
  void FinishIfAllGone();
  void FinishJob();

  const hosts::HostList hosts;
  const JobOptions options;
  TimePoint now;
  State state = State::kConnecting;
  std::vector<NodeView> views;
  std::vector<Node> nodes;
  std::vector<PhaseTime> phases;
  std::vector<RankEnd> ranks;
  std::vector<Action> actions;
  std::vector<std::string> warnings;
  std::vector<std::pair<NodeId, std::string>> node_warnings;  // not told yet
  std::set<std::string> details;  // texts among them, and told ones, that are details
  Verdict verdict;

  // joining
  rendezvous::JoinKey key;
  rendezvous::BarrierCore barrier;
  size_t failed_early = 0;
  std::vector<Fault> faults;
  std::vector<Fault> left_out;       // of hosts that the job can do without
  std::set<std::string> told_texts;  // of those since the start
  bool tell_late_faults = false;     // they are the verdict, whose message is yet to be written
  plan::Plan the_plan;
  size_t master = 0;             // index in the plan
  bool torchrun_agents = false;  // the program is a torchrun on each node, and they are one job
  std::vector<rendezvous::AddressNode> address_nodes;
  rendezvous::Candidates candidates;  // all
  rendezvous::Candidates probed;      // of this round
  std::vector<v1::ProbeRequest> probe_requests;
  std::vector<v1::ProbeReport> probe_reports;
  std::vector<rendezvous::Chosen> addresses;
  size_t answers_due = 0;                                               // nodes with `asked`
  std::vector<std::vector<uint32_t>> ports;                             // by plan index
  size_t preparing = 0;                                                 // nodes that do
  size_t ports_due = 0;                                                 // nodes that owe theirs
  uint32_t master_port = 0, coordinator_port = 0, rendezvous_port = 0;  // once they are held

  // reserving
  size_t reserves_due = 0;      // nodes that owe a Reserved
  size_t looks_due = 0;         // nodes that owe an Inventory
  std::vector<Fault> refusals;  // of this round
  bool waiting_for_others = false;
  std::string busy;  // why, as last told

  // running
  bool ran = false;  // all nodes had started
  std::optional<rendezvous::FenceCore> fence;
  TimePoint fence_since = kNever;
  std::optional<rendezvous::PmixCore> pmix;  // once a rank has asked for it
  TimePoint mpi_since = kNever;              // when the first rank had joined
  CollectiveWatch collectives;
  TimePoint warned_of_collective = kNever;  // the one that began then
  size_t ranks_ended = 0;
  size_t ranks_failed = 0;
  Rank early_exit;                             // the first to exit with 0
  std::pair<int64_t, uint32_t> first_failure;  // our wall clock, rank
  TimePoint verdict_open_until = kNever;       // until then the first failure may be another's

  // stopping
  bool succeeded = false;  // all ranks ended with 0
  bool cancelled = false;  // nobody wants the rest of the logs at any price
  bool output_failed = false;
  int cancels = 0;  // SIGINT, SIGTERM, SIGHUP seen
  std::vector<Fault> cleanup_faults;
  TimePoint killed_at;

  Duration still = Duration::zero();  // we did not run, by the last pauses
  TimePoint still_until;              // the end of the last
  bool still_blamed = false;          // for the end of the job

  // deadlines
  TimePoint start_by = kNever;
  TimePoint last_call_at = kNever;  // hosts that have not joined by then are left out
  TimePoint look_again_at = kNever;
  TimePoint wait_until = kNever;
  TimePoint limit_at = kNever;
  TimePoint settle_at = kNever;  // when the early faults are told
  TimePoint settle_by = kNever;
  TimePoint beat_at = kNever;
  TimePoint lease_check_at = kNever;
  TimePoint kill_at = kNever;
  TimePoint give_up_at = kNever;
  TimePoint cut_logs_at = kNever;
  TimePoint warn_exit_at = kNever;
  TimePoint warn_mpi_at = kNever;
  TimePoint tell_warnings_at = kNever;
  TimePoint stall_at = kNever;
};

// The agent's own word: it has let a silent launcher go, or does not know of the job any more.
bool HasGivenUsUp(const NodeClosed& closed);

// The message's alternative, which the table has checked.
inline const NodeMessage& Message(const Event& event) { return std::get<NodeMessage>(event); }

// As messages have it; what they cannot say becomes the nearest that they can.
uint32_t ToMs(Duration duration);

// `begin + duration` without overflow; never when the duration is zero.
TimePoint After(TimePoint begin, Duration duration);

}  // namespace dtrain::job
