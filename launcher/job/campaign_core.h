// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "launcher/job/job_core.h"
#include "launcher/job/scale_up.h"

// The attempts of one launch: which of them is followed by another, when, and on which hosts. Pure:
// events in, actions out. JobCore decides about one attempt.
namespace dtrain::job {

struct CampaignOptions {
  std::vector<std::string> hosts;  // all that an attempt may use, spares last
  uint32_t least_hosts = 1;        // an attempt needs so many of them
  uint32_t most_hosts = 0;         // and has use for so many
  uint32_t max_restarts = 0;       // --max-restarts: those that count
  // --restart-window: an older one does not count any more; zero: all do.
  Duration restart_window = std::chrono::hours(24);
  bool spares = false;  // some hosts only replace others
  // --restart-on
  bool on_failure = true;
  bool on_node = true;
  bool on_stall = true;
  // --no-restart-on: exit codes of a rank, from and to.
  std::vector<std::pair<uint32_t, uint32_t>> never_on;
  // --backoff: before a restart, doubled by each attempt shorter than --min-uptime.
  Duration backoff = std::chrono::seconds(1);
  Duration longest_backoff = std::chrono::seconds(60);
  Duration min_uptime = std::chrono::seconds(60);
  Duration join_timeout = std::chrono::minutes(10);  // for the hosts of a restart to come
  Duration time_limit = Duration::zero();            // --timeout, over all attempts; zero: none
  Duration scale_up = Duration::zero();              // --scale-up: hosts must be back for so long
};

// ---- events -------------------------------------------------------------------------------
// All of its workers have started.
struct AttemptRuns {
  std::vector<uint32_t> hosts = {};  // that have joined it
  std::vector<uint32_t> seats = {};  // those with ranks, by node rank
};
// A GPU whose error says that its host is not to be used again.
struct BadGpu {
  uint32_t host = 0;  // index of CampaignOptions::hosts
  std::string what;   // "GPU 3 reported Xid 79 (GPU has fallen off the bus)"
};
// A host whose workers may live until then, if it has not been rebooted since.
struct Unheard {
  uint32_t host = 0;
  TimePoint dead_at;
  std::string boot_id;
};
// Every node has reported that nothing of it lives, or is lost.
struct AttemptEnded {
  Verdict verdict;              // whose message names hosts
  std::string cause;            // one line, for people
  std::vector<uint32_t> hosts;  // whose fault it is, as indices of CampaignOptions::hosts
  std::vector<BadGpu> bad_gpus;
  std::vector<uint32_t> lost_spares;  // hosts that had no rank, as such indices
  std::string stopped;                // JobCore::stopped()
  // The workers of lost nodes have ended by then, by their own lease. The past: none are lost.
  TimePoint dead_at;
  // JobCore::unheard(). If there are some, dead_at says no more.
  std::vector<Unheard> unheard = {};
  Duration ran = Duration::zero();  // the rank that did so longest
  bool done = false;                // each rank has ended with 0 before it was told to
  bool joined = false;              // all of `hosts` had
};
// One of those that are looked for.
struct HostLooked {
  uint32_t host = 0;
  bool reachable = false;
};
// The answer to LookAtCheckpoint. `newer`: one was completed since the first of them.
struct CheckpointLooked {
  bool newer = false;
  bool unknown = false;  // the user has been told why
};
struct StopAsked {
  int signal = 0;
  std::string from = {};  // as for EndedBy
};
struct CampaignTick {};

using CampaignEvent =
    std::variant<AttemptRuns, AttemptEnded, HostLooked, CheckpointLooked, StopAsked, CampaignTick>;

// ---- actions ------------------------------------------------------------------------------
struct BeginAttempt {
  uint32_t attempt = 0;
  std::vector<uint32_t> hosts;   // in the order of CampaignOptions::hosts
  std::vector<bool> doubtful;    // of these: it was lost, and may not be back
  std::vector<Unheard> unheard;  // of these
  std::vector<uint32_t> seats;   // who had the node ranks when the job ran last; empty: it has not
  Duration time_limit = Duration::zero();
};
struct Announce {
  std::string text;  // one line for the user, complete
};
// In the node of rank 0.
struct LookAtCheckpoint {};
// For one on more hosts. AttemptEnded follows.
struct EndAttempt {
  std::string why;              // one line
  std::vector<uint32_t> hosts;  // that are back
};
struct EndCampaign {
  Verdict verdict;
};

using CampaignAction =
    std::variant<BeginAttempt, Announce, LookAtCheckpoint, EndAttempt, EndCampaign>;

// An attempt that is over.
struct AttemptRecord {
  uint32_t attempt = 0;
  std::string cause;  // empty: it succeeded
  int exit_code = 0;
  Duration ran = Duration::zero();  // zero: it never ran
  bool counted = false;             // the restart after it counts
  std::vector<uint32_t> hosts;      // by whose fault
  bool lost = false;                // they were
  std::vector<uint32_t> back = {};  // hosts that were there again: it was ended for their sake
  TimePoint ended;
};

// What a launcher that takes a job over knows of it.
struct CampaignPast {
  std::vector<AttemptRecord> ended;
  uint32_t attempt = 0;  // the present one, or, before a restart, the next
  bool begun = false;    // its nodes may have heard of it
  bool runs = false;
  Duration ran = Duration::zero();   // so long, by now
  bool pauses = false;               // before the next
  Duration wait = Duration::zero();  // the rest of that
  std::vector<uint32_t> left_out;    // hosts
  std::vector<uint32_t> seats;       // AttemptRuns::seats
  Duration age = Duration::zero();   // of the job
  int stop_signal = 0;               // it was told to end
  std::string stop_from = {};        // by whom
  std::string scale_up;              // EndAttempt::why, of the present one; empty: none was
  std::vector<uint32_t> back;        // EndAttempt::hosts
};

class CampaignCore {
 public:
  enum class State {
    kAttempt,  // one is on its way: from its first connection until its last node has let go
    kPause,    // before the next
    kOver,
  };

  CampaignCore(CampaignOptions options, TimePoint now);
  CampaignCore(CampaignOptions options, const CampaignPast& past, TimePoint now);

  // Once, before any event. Of an attempt that has begun nothing comes: the caller takes it over.
  std::vector<CampaignAction> Begin();
  std::vector<CampaignAction> OnEvent(TimePoint now, const CampaignEvent& event);
  TimePoint NextDeadline() const;

  State state() const { return state_; }
  const CampaignOptions& options() const { return options_; }
  bool restarts() const { return options_.max_restarts > 0 || options_.spares; }
  uint32_t attempt() const { return attempt_; }
  uint32_t counted() const;                             // restarts that have counted, so far
  TimePoint next_at() const { return next_at_; }        // in kPause
  TimePoint runs_since() const { return runs_since_; }  // the present attempt; or kNever
  const std::vector<AttemptRecord>& ended() const { return ended_; }
  std::vector<std::string> left_out() const;  // hosts
  // Hosts of which HostLooked is to come now and then.
  std::vector<uint32_t> absent() const { return scale_up_.absent(); }
  // The present attempt is being ended for one on more hosts.
  bool scales_up() const { return scales_up_.has_value(); }

 private:
  struct Host {
    std::vector<TimePoint> ends;  // attempts that ended by its fault
    bool doubtful = false;        // the last of them ended as it was lost
    bool left_out = false;        // while enough others are there
    bool set_aside = false;       // until an attempt runs: one with it has not come to that
    std::optional<Unheard> unheard;
    bool waited_for = false;  // likewise: it was lost before that once, and dialled again
  };
  // What comes after an attempt.
  enum class Next { kOver, kRestart, kJoinAgain, kBeginAgain, kPlanAgain };

  void On(const AttemptRuns&);
  void On(const AttemptEnded& end);
  void On(const HostLooked& looked);
  void On(const CheckpointLooked& looked);
  void On(const StopAsked& asked);
  void On(const CampaignTick&);

  Next Judge(const AttemptEnded& end) const;
  bool IsReplaced(const AttemptEnded& end) const;
  uint32_t Used() const;  // of max_restarts
  void Restart(const AttemptEnded& end);
  bool SetLeavingAside(const AttemptEnded& end);
  std::string HostsBack() const;
  void DecideScaleUp();
  bool IsScaledUp(const AttemptEnded& end) const;
  void RestartScaledUp(const AttemptEnded& end);
  void JoinAgain(const AttemptEnded& end);
  void BeginAgain(const AttemptEnded& end);
  bool MayPlanAgain(const AttemptEnded& end) const;
  void PlanAgain(const AttemptEnded& end);
  TimePoint NotBefore(const AttemptEnded& end, bool restarts);
  void Blame(const AttemptEnded& end);
  void BlameGpus(const AttemptEnded& end);
  void Count(const AttemptRecord& record, uint32_t host);
  void Welcome(const AttemptRecord& record);
  std::string SetAsideWelcomed();
  std::string TakeBackLeftOut();
  Duration BackOff();
  bool LeaveOut(uint32_t host, const std::string& why);
  void Pause(TimePoint until);
  void Start();
  void End(Verdict verdict);
  uint32_t eligible() const;
  bool SufficesWithout(const std::vector<uint32_t>& hosts) const;

  const CampaignOptions options_;
  const TimePoint begin_;
  TimePoint now_;
  State state_ = State::kAttempt;
  bool begun_ = false;  // by the launcher before us
  uint32_t attempt_ = 0;
  TimePoint runs_since_ = kNever;  // of the present attempt
  TimePoint next_at_ = kNever;     // kPause
  TimePoint join_by_ = kNever;     // of the present restart, until it runs
  Duration backoff_;
  int stop_signal_ = 0;
  std::string stop_from_;
  std::vector<Host> hosts_;
  std::vector<uint32_t> seats_;  // of the attempt that ran last
  ScaleUp scale_up_;
  std::optional<EndAttempt> scales_up_;  // the present attempt is being ended for that
  bool waits_told_ = false;              // that its next checkpoint is awaited for that
  std::vector<uint32_t> welcomed_;       // hosts for whose sake the one that is to run was begun
  std::vector<AttemptRecord> ended_;
  std::vector<CampaignAction> actions_;
};

}  // namespace dtrain::job
