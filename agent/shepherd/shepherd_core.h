// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"

namespace dtrain::shepherd {

// How long after SIGKILL a process may stay before it counts as unkillable.
inline constexpr Duration kUnkillableAfter = std::chrono::seconds(60);
// Of a stop's grace, what is left for processes that do not end by themselves: then they get
// SIGTERM. A quarter of it, if that is less.
inline constexpr Duration kLastCall = std::chrono::seconds(5);
// What the workers of a cancelled job have left running may end by itself for so long.
inline constexpr Duration kLingerWhenCancelled = std::chrono::seconds(2);
// A grace does not end so soon after a process was seen to write files.
inline constexpr Duration kAfterWriting = std::chrono::seconds(2);
// How long the rest of the logs may take once no process writes any more (no place takes them), and
// when somebody has asked for the end.
inline constexpr Duration kDrainLimit = std::chrono::seconds(10);
inline constexpr Duration kDrainLimitWhenStopped = std::chrono::seconds(2);

enum class State {
  kWaiting,    // for the job part
  kPreparing,  // what workers need is not on the node yet: images of containers
  kStarting,   // spawning
  kRunning,
  kStopping,   // SIGTERM was sent, the grace runs
  kLingering,  // all workers reaped; what they have started may end by itself
  kHurrying,   // and it has got SIGTERM, too
  kKilling,    // SIGKILL was sent, workers still to be reaped
  kSweeping,   // all workers reaped, what they left behind is being killed
  kDraining,   // reading the rest of the logs
  kFinished,
};
absl::string_view StateName(State state);

struct PartArrived {
  size_t workers = 0;
  Duration grace{};  // for a stop that nobody asked for: the agent is gone
  bool prepare = false;
  Duration grace_limit{};  // of what workers have left running when they ended by themselves
};
struct Prepared {};
struct Spawned {};
struct SpawnFailed {
  size_t running = 0;  // workers that had been started before
};
struct StopAsked {
  Duration grace{};        // zero: now
  bool cancelled = false;  // somebody waits for the end: helpers have less time
  Duration limit{};        // what the grace may grow to while processes write; zero: it does not
};
struct AgentGone {};  // or a signal that ends the shepherd
struct WorkerEnded {};
struct Wrote {};        // a process of the job, on whatever node, has just written much to files
struct NothingLeft {};  // of the processes that workers have started
struct Swept {};
struct Drained {};
using Event = std::variant<PartArrived, Prepared, Spawned, SpawnFailed, StopAsked, AgentGone,
                           WorkerEnded, Wrote, NothingLeft, Swept, Drained>;

enum class Action {
  kPrepare,  // tell Prepared, or SpawnFailed
  kSpawn,
  kTerminate,      // SIGTERM to the workers
  kAwaitRest,      // tell NothingLeft when no process is left
  kTerminateRest,  // SIGTERM to those that are
  kTellKilled,     // who is killed next, and why
  kKill,           // SIGKILL to all that lives
  kSweep,          // kill what is left, tell Swept when nothing is
  kReportUnkillable,
  kDrain,   // read the logs to their end, tell Drained
  kFinish,  // the last word to the agent, then exit
};

// Decides about the life of one node's workers. Pure. A worker's own failure stops nothing here:
// whether the job goes on is the launcher's decision, which arrives as StopAsked. The grace runs
// from the stop, or from the last worker's end, and is for what workers have started, too. It grows
// while they write files, up to a limit.
class ShepherdCore {
 public:
  // An error when the event makes no sense in this state; nothing has changed then.
  absl::StatusOr<std::vector<Action>> OnEvent(TimePoint now, const Event& event);
  // To be called when NextDeadline is reached; harmless before it.
  std::vector<Action> OnDeadline(TimePoint now);
  TimePoint NextDeadline() const { return deadline_; }
  // The end of the grace as it is now, and of what it can grow to.
  TimePoint kill_at() const { return kill_at_; }
  TimePoint limit_at() const { return limit_at_; }
  // The limit is above the grace, which grows while processes write.
  bool may_grow() const { return may_grow_; }
  // It has grown to the limit.
  bool at_limit() const { return may_grow_ && kill_at_ >= limit_at_; }
  State state() const { return state_; }
  size_t live_workers() const { return live_; }
  // Somebody waits for the end.
  bool cancelled() const { return cancelled_; }
  // Workers that end from now on were told to.
  bool stop_asked() const { return stop_asked_; }
  bool agent_gone() const { return agent_gone_; }

 private:
  void Enter(TimePoint now, State state);
  void Limit(TimePoint now, Duration grace, Duration limit);

  State state_ = State::kWaiting;
  TimePoint deadline_ = kNever;
  TimePoint kill_at_ = kNever;  // of a stop, or after the last worker's end
  TimePoint limit_at_ = kNever;
  bool may_grow_ = false;
  bool cancelled_ = false;
  size_t live_ = 0;
  Duration own_grace_{}, own_limit_{};
  bool stop_asked_ = false;
  bool agent_gone_ = false;
};

}  // namespace dtrain::shepherd
