// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "launcher/job/job_core.h"

// What comes into CampaignCore, and what it asks for.
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

}  // namespace dtrain::job
