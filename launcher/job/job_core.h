// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "dtrain/v1/agent.pb.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/job/signs.h"
#include "launcher/job/xid.h"
#include "launcher/plan/plan.h"
#include "rendezvous/address_choice.h"

// The life of one launch, from the first connection to the exit code. Pure: events in, actions
// out, no I/O and no clock. One loop thread feeds it.
namespace dtrain::job {

struct JobOptions {
  uint32_t protocol = 1;  // kProtocolVersion of common/rpc
  std::string build;      // build id the agents must have
  std::string job_id;
  uint32_t attempt = 0;
  std::string incarnation;  // 16 random bytes of this launcher process
  // Of one host of an elastic job: `attempt` is the number of its session.
  std::optional<v1::ElasticHost> elastic;
  plan::PlanOptions plan;
  // What is said to the nodes of the plan before they start, of a job whose code is staged:
  // StageTree.
  std::shared_ptr<const v1::JobRequest> stage;
  v1::JobPart part;              // what all nodes share: argv, env, working directory ...
  std::string net;               // --net CIDR or interface name; empty: any
  bool shared_machines = false;  // --allow-same-machine: hosts may be two names of one
  std::string stdin_rank;        // "none", "all" or a rank
  bool stdin_is_terminal = false;
  bool dry_run = false;  // stop after the plan
  bool survey = false;   // stop after the probes, on all that the nodes have: nothing is reserved
  std::string probe_token;  // 32 random bytes
  Duration start_timeout = std::chrono::seconds(120);
  // Hosts that cannot be reached for a reason that passes are tried again for so long: from the
  // launch, or (`retry_each`) each from its first try. Zero: no host is.
  Duration retry_for = Duration::zero();
  bool retry_each = true;
  // Hosts that cannot be reached are left out when this many can. Zero: all must be reached.
  uint32_t min_nodes = 0;
  // Hosts that have joined and get no rank stay, with what they could give reserved, for the next
  // attempt; to lose one does not matter to this one.
  bool keep_spares = false;
  // By node: it was lost before, and is not waited for as long as others. Empty: none was.
  std::vector<bool> doubtful;
  // By node rank: who had it in the attempt before; none: a host that this one does not have. See
  // Seated().
  std::vector<std::optional<NodeId>> seats;
  // By node: workers of an attempt before may live there, on a machine with that boot id; absent:
  // they do not. Nothing starts before it has joined, or it is `clear_at`. Empty: nowhere.
  std::vector<std::optional<std::string>> unheard;
  TimePoint clear_at = TimePoint::min();
  // --wait: for GPUs and cores that other jobs have; zero: not at all.
  Duration wait = Duration::zero();
  Duration lease = std::chrono::seconds(15);
  Duration grace = std::chrono::seconds(30);
  // The grace lasts so long at most, while the workers still write files.
  Duration grace_limit = std::chrono::minutes(10);
  Duration time_limit = Duration::zero();  // from now on; zero: none
  // What to tell of it: all of --timeout, where a part of that had passed before. Zero: the same.
  Duration told_time_limit = Duration::zero();
  // Of a detached job: which of its launchers this is, 1, 2, …, what others shall call it, and how
  // long nodes run on without hearing one.
  uint64_t generation = 0;
  std::string launcher;
  Duration away = Duration::zero();
  // After a rank exits with 0 while others run: when to warn, and when to end a job whose fence
  // that rank can no longer enter. Zero: never.
  Duration exit_timeout = std::chrono::seconds(30);
  // A collective of libdtrain that does not end: when to warn, and when to end the job. Zero:
  // never.
  Duration collective_warning = std::chrono::seconds(60);
  Duration collective_timeout = Duration::zero();
  bool exit_timeout_ends_job = false;  // the user asked for it: end the job, fence or not
  // Refuses a plan for a reason that is none of the job's. Null: none is refused.
  std::function<absl::Status(const plan::Plan&)> check_plan;
  // "14:03:05" where the user is. Null: UTC.
  std::function<std::string(int64_t unix_nanos)> time_of_day;
  // The prompt or progress bar that a rank's output ends with; "": none. Null: it is not known.
  std::function<std::string(uint32_t rank)> unfinished_line;
};

// ---- events -------------------------------------------------------------------------------
struct NodePhase {
  NodeId node;
  std::string waiting_for;
};  // "ssh authentication", ...
// A session stands; Hello may be sent. `same_machine`: the agent is our child, and its stream ends
// when it does: as long as that stands, silence says nothing of it. `reached`: the address at which
// we did, as far as known.
struct NodeConnected {
  NodeId node;
  bool same_machine = false;
  std::string reached{};
};
// `received_unix_nanos` is our own wall clock, to compare the clocks of the nodes; 0: not known.
struct AgentMessage {
  NodeId node;
  v1::SessionEvent event;
  int64_t received_unix_nanos = 0;
};
struct ShepherdMessage {
  NodeId node;
  v1::JobEvent event;
  int64_t received_unix_nanos = 0;
};
// The connection could not be made, or ended.
struct NodeClosed {
  NodeId node;
  absl::Status why;
  bool unknown_host = false;    // no connection, as no such name exists
  bool not_authorised = false;  // one side does not let the other in
  bool started_anew = false;    // the machine, with nothing of the job
  bool output_lost = false;     // of its workers, which have ended; `why` says what of it
  std::string passes = {};      // why it may come yet, in few words; empty: it does not
};
// Every log byte up to each LogEnd has been delivered. Due once after each OpenLogs, after the
// node's Finished (at once when that names no log), unless NodeClosed comes instead.
struct LogsDrained {
  NodeId node;
};
// What is seen of a rank in its output has changed.
struct SignSeen {
  NodeId node;
  Rank rank;
  SignReader::Seen seen;
};
// SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2.
struct UserSignal {
  int signal;
  std::string from{};  // as for EndedBy
};
// Nobody needs its workers any more. Their output is awaited.
struct EndAsked {
  std::string why;
  bool cancels = false;  // like a first Ctrl-C: the wait is limited, and the next one kills
};
struct OutputFailed {
  std::string why;
};  // our own stdout is gone
// Our machine was asleep, for so long that no monotonic clock knows of.
struct Slept {
  Duration length;
};
struct Tick {};  // a deadline may have passed

using Event = std::variant<NodePhase, NodeConnected, AgentMessage, ShepherdMessage, NodeClosed,
                           LogsDrained, SignSeen, UserSignal, EndAsked, OutputFailed, Slept, Tick>;

// ---- actions ------------------------------------------------------------------------------
struct ToAgent {
  NodeId node;
  v1::SessionRequest request;
};
struct ToAgents {
  std::vector<NodeId> nodes;
  v1::SessionRequest request;
};
// A start is `common`, which may be large and is the same object for several nodes, merged with
// this.
struct ToShepherd {
  NodeId node;
  v1::JobRequest request;
  std::shared_ptr<const v1::JobPart> common = nullptr;
};
struct ToShepherds {
  std::vector<NodeId> nodes;
  v1::JobRequest request;
};  // may be large
// A sign of life, to agents and shepherds; the shepherds answer.
struct Beat {
  std::vector<NodeId> nodes;
};
struct OpenLogs {
  NodeId node;
};  // start the Logs stream of this node
// End the connection, or the attempt to make one, after what was sent has gone out; the agent goes
// away with it. No event of this node counts any more.
struct Disconnect {
  NodeId node;
};
// Try to connect to it once more, after a pause that grows with the tries that have failed.
struct ConnectAgain {
  NodeId node;
  int tries = 0;
};
// Look for another way to an agent that is silent, beside the connection that there is: a network
// that is back is told to a new one at once, and to an old one when its next repetition is due,
// which TCP puts off twice as far each time. Comes again and again while the node is suspect.
struct DialAnew {
  NodeId node;
};
struct Warn {
  std::string text;     // one line for the user, complete
  bool detail = false;  // matters only when the workers could not be ended, or with --verbose
};
struct PlanReady {};  // plan() is valid from now on
struct Finish {};     // result() is valid; nothing comes after it

using Action = std::variant<ToAgent, ToAgents, ToShepherd, ToShepherds, Beat, OpenLogs, Disconnect,
                            ConnectAgain, DialAnew, Warn, PlanReady, Finish>;

// ---- what it tells ------------------------------------------------------------------------
enum class State {
  kConnecting,  // until every node sent its Welcome, and other jobs gave back what we need
  kProbing,     // addresses are being proven
  kHolding,     // rank 0's node reserves the ports
  kStarting,    // until every node reported its workers running
  kRunning,
  kStopping,  // TERM, grace, KILL; first failure, signal or last success led here
  kFinished,
};
const char* StateName(State state);

struct RankEnd {
  Rank rank;
  NodeId node;
  bool ended = false;
  v1::WorkerExit exit;
  int64_t ended_unix_nanos = 0;  // on our clock; 0: not known
  v1::RankProgress progress;     // operations 0: it never used libdtrain
  uint32_t pid = 0;              // once it was started
  // Of a process that does not run, as its node said last (progress.process_state).
  TimePoint halted_at = kNever;   // when we first heard of it
  int64_t halted_unix_nanos = 0;  // when its node saw it first, on our clock
  SignReader::Seen seen;          // in its output
};

// The one thing that ended the job, for the report.
struct Verdict {
  enum class Kind {
    kNone,
    kSuccess,
    kWorker,
    kNode,
    kRefused,
    kSignal,
    kTimeLimit,
    kStartTimeout,
    kStalled,
    kLauncher  // the launcher before us has died before all workers ran
  };
  Kind kind = Kind::kNone;
  int exit_code = 0;
  std::string message;  // complete, host(s) included; kWorker: empty, or what came on top
  Rank rank;            // kWorker: who failed first
  // kWorker: whose exit came first, if that is another one.
  std::optional<Rank> exited_first = std::nullopt;
  int signal = 0;  // kSignal
  // kWorker: a signal killed it that we had passed on (0: none has), and from whom, if known.
  struct PassedOn {
    int signal = 0;
    std::string from = {};
  };
  PassedOn passed_on = {};
  std::vector<NodeId> nodes = {};  // kNode: whose fault it is; kWorker: that rank's
  // kNode: before the workers ran, these nodes could not be reached or were lost. Nothing else is
  // known against them, and without them all may be well.
  bool absent = false;
  // kNode: nothing has failed, but these nodes are to go away, and their workers had time to end.
  bool leaves = false;
  // Workers may still be running: exit_code is 204, whatever has ended the job.
  bool left_behind = false;
  // kWorker: the rank ended right after it said so, and would again. "SyntaxError"
  absl::string_view mistake = {};
  // kWorker, of an elastic job: that rank's own exit code if --reset-limit's has replaced it; else
  // 0.
  int rank_code = 0;
};

// What a GPU of the job has reported while the attempt ran.
struct GpuFault {
  NodeId node;
  uint32_t gpu = 0;  // NVML's index
  std::string what;  // "reported Xid 79 (GPU has fallen off the bus)"
  XidKind kind = XidKind::kOther;
};
// "GPU 3 reported Xid 79 (GPU has fallen off the bus)"
std::string NameOf(const GpuFault& fault);

struct PhaseTime {
  State state;
  TimePoint begin;
  TimePoint end;  // kNever while it lasts
};

struct NodeView {
  std::string host;
  bool joined = false;
  bool gone = false;                       // disconnected or lost
  bool let_go = false;                     // it is gone as nothing was left to do there
  bool spare = false;                      // it has no rank and is kept: JobOptions::keep_spares
  bool resumable = false;                  // its workers run on when its connection breaks
  bool suspect = false;                    // no message from it for some time, less than the lease
  std::string waiting_for;                 // what it does now, while not yet done with the phase
  v1::Inventory inventory;                 // valid when joined
  int64_t clock_ahead_nanos = 0;           // of ours, as far as known
  int64_t clock_ahead_at_start_nanos = 0;  // the same, but for how often it has been set since
};

struct JobPhases;

class JobCore {
 public:
  // `hosts` is what NodesToAsk gave; NodeId is the index in it.
  JobCore(hosts::HostList hosts, JobOptions options, TimePoint now);
  // Takes over an attempt of a launcher that has died. `hosts` are those that it had begun with, or
  // of `runs`, whose nodes are indices in it. No nodes in that: it had not come to run, and is
  // ended. Nodes say again what they have said; what is known of it already may be fed before.
  JobCore(hosts::HostList hosts, JobOptions options, const v1::AttemptRuns& runs, TimePoint now);
  ~JobCore();
  std::vector<Action> TakeActions();  // of the constructor
  // What each node is told first.
  static v1::Hello HelloOf(const JobOptions& options);

  std::vector<Action> OnEvent(TimePoint now, Event event);
  TimePoint NextDeadline() const;

  State state() const;
  const std::vector<NodeView>& nodes() const;
  const plan::Plan& plan() const;  // valid after PlanReady
  const std::vector<PhaseTime>& phases() const;
  const std::vector<RankEnd>& ranks() const;  // valid after PlanReady, by rank
  const Verdict& verdict() const;             // valid after Finish
  // Of a survey that has succeeded: the proven one of each node of the plan.
  const std::vector<rendezvous::Chosen>& addresses() const;
  // Who has stopped the job by an agent while this attempt was ending for another reason: it has no
  // part in verdict(), but no attempt may follow. Empty: nobody.
  const std::string& stopped() const;
  size_t secondary_deaths() const;  // workers that failed after the first, told or not
  const std::vector<GpuFault>& gpu_faults() const;
  const std::vector<std::string>& warnings() const;  // given so far, up to a thousand
  // When the workers of lost nodes have ended, by their own lease. The past: none are lost.
  TimePoint dead_at() const;
  // The same of each of them, if the job's next agent there joins only when they have: it does not
  // where sessions outlive their connection, nor in an elastic job. Empty: none, or not all.
  std::vector<std::pair<NodeId, TimePoint>> unheard() const;

 private:
  std::unique_ptr<JobPhases> phases_;
};

}  // namespace dtrain::job
