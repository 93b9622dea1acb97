// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/shepherd_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace dtrain::shepherd {
namespace {

// Events with their conditions already decided, so that the table alone tells what happens.
enum class Input {
  kPart,
  kPartToPrepare,
  kPrepared,
  kSpawned,
  kSpawnFailed,       // others run
  kSpawnFailedFirst,  // none runs
  kStop,
  kCancel,
  kStopNow,
  kAgentGone,  // only before the part came; later it is a stop with the part's grace
  kEnded,
  kLastEnded,
  kWrote,
  kNothingLeft,
  kSwept,
  kDrained,
  kDeadline,
};

struct Row {
  State from;
  Input input;
  State to;
  std::vector<Action> actions;
};

using A = Action;
using I = Input;
using S = State;

// The life of a shepherd. A pair that is not here is an error of who sent the event.
const std::vector<Row>& Table() {
  static const auto* table = new std::vector<Row>{
      {S::kWaiting, I::kPart, S::kStarting, {A::kSpawn}},
      {S::kWaiting, I::kPartToPrepare, S::kPreparing, {A::kPrepare}},
      {S::kWaiting, I::kStop, S::kFinished, {A::kFinish}},
      {S::kWaiting, I::kCancel, S::kFinished, {A::kFinish}},
      {S::kWaiting, I::kStopNow, S::kFinished, {A::kFinish}},
      {S::kWaiting, I::kAgentGone, S::kFinished, {A::kFinish}},

      {S::kPreparing, I::kPrepared, S::kStarting, {A::kSpawn}},
      {S::kPreparing, I::kSpawnFailedFirst, S::kSweeping, {A::kSweep}},
      {S::kPreparing, I::kStop, S::kSweeping, {A::kSweep}},
      {S::kPreparing, I::kCancel, S::kSweeping, {A::kSweep}},
      {S::kPreparing, I::kStopNow, S::kSweeping, {A::kSweep}},

      {S::kStarting, I::kSpawned, S::kRunning, {}},
      {S::kStarting, I::kSpawnFailed, S::kKilling, {A::kKill}},
      {S::kStarting, I::kSpawnFailedFirst, S::kSweeping, {A::kSweep}},

      {S::kRunning, I::kEnded, S::kRunning, {}},
      {S::kRunning, I::kLastEnded, S::kLingering, {A::kAwaitRest}},
      {S::kRunning, I::kStop, S::kStopping, {A::kTerminate}},
      {S::kRunning, I::kCancel, S::kStopping, {A::kTerminate}},
      {S::kRunning, I::kStopNow, S::kKilling, {A::kKill}},

      {S::kStopping, I::kEnded, S::kStopping, {}},
      {S::kStopping, I::kLastEnded, S::kLingering, {A::kAwaitRest}},
      {S::kStopping, I::kStop, S::kStopping, {}},  // may shorten the grace
      {S::kStopping, I::kCancel, S::kStopping, {}},
      {S::kStopping, I::kStopNow, S::kKilling, {A::kKill}},
      {S::kStopping, I::kWrote, S::kStopping, {}},
      {S::kStopping, I::kDeadline, S::kKilling, {A::kTellKilled, A::kKill}},

      {S::kLingering, I::kNothingLeft, S::kSweeping, {A::kSweep}},
      {S::kLingering, I::kStop, S::kLingering, {}},
      {S::kLingering, I::kCancel, S::kHurrying, {A::kTerminateRest}},
      {S::kLingering, I::kStopNow, S::kSweeping, {A::kSweep}},
      {S::kLingering, I::kWrote, S::kLingering, {}},
      {S::kLingering, I::kDeadline, S::kHurrying, {A::kTerminateRest}},

      {S::kHurrying, I::kNothingLeft, S::kSweeping, {A::kSweep}},
      {S::kHurrying, I::kStop, S::kHurrying, {}},
      {S::kHurrying, I::kCancel, S::kHurrying, {}},
      {S::kHurrying, I::kStopNow, S::kSweeping, {A::kSweep}},
      {S::kHurrying, I::kWrote, S::kHurrying, {}},
      {S::kHurrying, I::kDeadline, S::kSweeping, {A::kTellKilled, A::kSweep}},

      {S::kKilling, I::kEnded, S::kKilling, {}},
      {S::kKilling, I::kLastEnded, S::kSweeping, {A::kSweep}},
      {S::kKilling, I::kStop, S::kKilling, {}},
      {S::kKilling, I::kCancel, S::kKilling, {}},
      {S::kKilling, I::kStopNow, S::kKilling, {}},
      {S::kKilling, I::kDeadline, S::kDraining, {A::kReportUnkillable, A::kDrain}},

      {S::kSweeping, I::kStop, S::kSweeping, {}},
      {S::kSweeping, I::kCancel, S::kSweeping, {}},
      {S::kSweeping, I::kStopNow, S::kSweeping, {}},
      {S::kSweeping, I::kNothingLeft, S::kSweeping, {}},  // it was on its way
      {S::kSweeping, I::kSwept, S::kDraining, {A::kDrain}},
      {S::kSweeping, I::kDeadline, S::kDraining, {A::kReportUnkillable, A::kDrain}},

      {S::kDraining, I::kEnded, S::kDraining, {}},  // an unkillable one, after all
      {S::kDraining, I::kLastEnded, S::kDraining, {}},
      {S::kDraining, I::kSwept, S::kDraining, {}},
      {S::kDraining, I::kStop, S::kDraining, {}},
      {S::kDraining, I::kCancel, S::kDraining, {}},
      {S::kDraining, I::kStopNow, S::kDraining, {}},
      {S::kDraining, I::kDrained, S::kFinished, {A::kFinish}},
      {S::kDraining, I::kDeadline, S::kFinished, {A::kFinish}},

      {S::kFinished, I::kStop, S::kFinished, {}},
      {S::kFinished, I::kCancel, S::kFinished, {}},
      {S::kFinished, I::kStopNow, S::kFinished, {}},
      {S::kFinished, I::kEnded, S::kFinished, {}},
      {S::kFinished, I::kLastEnded, S::kFinished, {}},
      {S::kFinished, I::kSwept, S::kFinished, {}},  // of one that could not be ended
  };
  return *table;
}

const Row* Find(State from, Input input) {
  for (const Row& row : Table()) {
    if (row.from == from && row.input == input) return &row;
  }
  return nullptr;
}

struct Decide {
  State state;
  size_t live;
  Duration own_grace;
  Input Stop(Duration grace, bool cancelled) const {
    return grace <= Duration::zero() ? I::kStopNow : cancelled ? I::kCancel : I::kStop;
  }
  Input operator()(const PartArrived& e) const { return e.prepare ? I::kPartToPrepare : I::kPart; }
  Input operator()(const Prepared&) const { return I::kPrepared; }
  Input operator()(const Spawned&) const { return I::kSpawned; }
  Input operator()(const SpawnFailed& e) const {
    return e.running > 0 ? I::kSpawnFailed : I::kSpawnFailedFirst;
  }
  Input operator()(const StopAsked& e) const { return Stop(e.grace, e.cancelled); }
  Input operator()(const AgentGone&) const {
    return state == S::kWaiting ? I::kAgentGone : Stop(own_grace, /*cancelled=*/true);
  }
  Input operator()(const WorkerEnded&) const { return live > 1 ? I::kEnded : I::kLastEnded; }
  Input operator()(const Wrote&) const { return I::kWrote; }
  Input operator()(const NothingLeft&) const { return I::kNothingLeft; }
  Input operator()(const Swept&) const { return I::kSwept; }
  Input operator()(const Drained&) const { return I::kDrained; }
};

}  // namespace

absl::string_view StateName(State state) {
  static constexpr absl::string_view kNames[] = {"waiting",  "preparing", "starting", "running",
                                                 "stopping", "lingering", "hurrying", "killing",
                                                 "sweeping", "draining",  "finished"};
  return kNames[static_cast<size_t>(state)];
}

absl::StatusOr<std::vector<Action>> ShepherdCore::OnEvent(TimePoint now, const Event& event) {
  Input input = std::visit(Decide{state_, live_, own_grace_}, event);
  const Row* row = Find(state_, input);
  const auto* part = std::get_if<PartArrived>(&event);
  if (row == nullptr || (part != nullptr && part->workers == 0) ||
      (std::holds_alternative<WorkerEnded>(event) && live_ == 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("event ", event.index(), " while ", StateName(state_)));
  }
  if (part != nullptr) {
    live_ = part->workers;
    own_grace_ = part->grace;
    own_limit_ = part->grace_limit;
  } else if (const auto* failed = std::get_if<SpawnFailed>(&event)) {
    live_ = failed->running;
    stop_asked_ = true;
  } else if (std::holds_alternative<WorkerEnded>(event)) {
    --live_;
  } else if (std::holds_alternative<AgentGone>(event)) {
    agent_gone_ = true;
  }
  const bool stop =
      input == I::kStop || input == I::kCancel || input == I::kStopNow || input == I::kAgentGone;
  stop_asked_ |= stop;
  cancelled_ |= input == I::kCancel;
  if (stop) {
    const auto* asked = std::get_if<StopAsked>(&event);
    const Duration grace = asked != nullptr ? asked->grace : own_grace_;
    if (row->to == State::kStopping) kill_at_ = std::min(kill_at_, now + grace);
    Limit(now, grace, asked != nullptr ? asked->limit : Duration::zero());
  } else if (input == I::kWrote) {
    kill_at_ = std::max(kill_at_, std::min(now + kAfterWriting, limit_at_));
  }
  Enter(now, row->to);
  return row->actions;
}

void ShepherdCore::Limit(TimePoint now, Duration grace, Duration limit) {
  const TimePoint at = now + std::max(grace, limit);
  if (at >= limit_at_) return;
  limit_at_ = at;
  may_grow_ = limit > grace;
}

void ShepherdCore::Enter(TimePoint now, State state) {
  const State before = std::exchange(state_, state);
  switch (state) {
    case State::kStopping:
    case State::kHurrying:
      deadline_ = kill_at_;
      break;
    case State::kLingering: {
      if (kill_at_ == kNever) {
        kill_at_ = now + own_grace_;
        Limit(now, own_grace_, own_limit_);
      }
      const Duration left = std::max(kill_at_ - now, Duration::zero());
      deadline_ = kill_at_ - std::min(kLastCall, left / 4);
      if (cancelled_) deadline_ = std::min(deadline_, now + kLingerWhenCancelled);
      break;
    }
    case State::kKilling:
    case State::kSweeping:
      if (before != state) deadline_ = now + kUnkillableAfter;
      break;
    case State::kDraining:
      if (before != state) deadline_ = now + kDrainLimit;
      if (stop_asked_) deadline_ = std::min(deadline_, now + kDrainLimitWhenStopped);
      break;
    default:
      deadline_ = kNever;
  }
}

std::vector<Action> ShepherdCore::OnDeadline(TimePoint now) {
  if (now < deadline_) return {};
  const Row* row = Find(state_, I::kDeadline);
  DTRAIN_CHECK(row != nullptr);  // only states with such a row have a deadline
  Enter(now, row->to);
  return row->actions;
}

}  // namespace dtrain::shepherd
