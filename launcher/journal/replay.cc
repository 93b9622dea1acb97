// SPDX-License-Identifier: Apache-2.0
#include "launcher/journal/replay.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "launcher/journal/frame.h"

namespace dtrain::journal {
namespace {

using State = v1::JournalState;
using Record = v1::JournalRecord;

constexpr uint32_t kMostRanks = 1 << 20;

constexpr unsigned Bit(State::Phase phase) { return 1u << phase; }
constexpr unsigned kNew = Bit(State::PHASE_NEW);
constexpr unsigned kAccepted = Bit(State::PHASE_ACCEPTED);
constexpr unsigned kBegun = Bit(State::PHASE_BEGUN);
constexpr unsigned kRuns = Bit(State::PHASE_RUNS);
constexpr unsigned kRestarting = Bit(State::PHASE_RESTARTING);
constexpr unsigned kConcluded = Bit(State::PHASE_CONCLUDED);
constexpr unsigned kOfAnAttempt = kBegun | kRuns | kRestarting;
constexpr unsigned kLives = kAccepted | kOfAnAttempt | kConcluded;

struct Rule {
  absl::string_view name;
  unsigned phases;
};

Rule RuleOf(Record::KindCase kind) {
  switch (kind) {
    case Record::kAccepted:
      return {"the job is accepted", kNew};
    case Record::kGenerationTaken:
      return {"a launcher takes the job", kLives};
    case Record::kAttemptBegins:
      return {"an attempt begins", kAccepted | kRestarting};
    case Record::kAttemptRuns:
      return {"the attempt runs", kBegun};
    case Record::kNodeFact:
      return {"a node says something", kOfAnAttempt | kConcluded};
    case Record::kStopAsked:
      return {"a stop is asked for", kLives};
    case Record::kTimeLimit:
      return {"the time limit is reached", kLives};
    case Record::kRestartDecided:
      return {"a restart is decided", kBegun | kRuns};
    case Record::kLogsSafe:
      return {"output is safe", kOfAnAttempt | kConcluded};
    case Record::kOutputLost:
      return {"log files lack output", kLives};
    case Record::kVerdict:
      return {"there is a verdict", kAccepted | kOfAnAttempt};
    case Record::kHookBegins:
      return {"--on-end begins", kConcluded};
    case Record::kHookEnds:
      return {"--on-end has ended", kConcluded};
    case Record::kEnded:
      return {"the job has ended", kConcluded};
    case Record::kSnapshot:
      return {"a snapshot", kNew};
    case Record::kScaleUp:
      return {"the attempt is ended for one on more hosts", kRuns};
    case Record::kHeader:
    case Record::KIND_NOT_SET:
      break;
  }
  return {"a record that is no event", 0};
}

absl::string_view NameOf(State::Phase phase) {
  switch (phase) {
    case State::PHASE_ACCEPTED:
      return "accepted";
    case State::PHASE_BEGUN:
      return "starting";
    case State::PHASE_RUNS:
      return "running";
    case State::PHASE_RESTARTING:
      return "restarting";
    case State::PHASE_CONCLUDED:
      return "over";
    case State::PHASE_ENDED:
      return "ended";
    default:
      return "new";
  }
}

template <typename... Parts>
absl::Status Illegal(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("out of order: ", parts...));
}

bool ToldToEnd(const State& state) { return state.has_stop() || state.has_time_limit(); }

absl::Status CheckAttempt(const State& state, uint32_t attempt) {
  if (state.has_attempt() && attempt == state.attempt().attempt()) return absl::OkStatus();
  return Illegal("it is of attempt ", attempt, ", and the last one is ",
                 state.has_attempt() ? absl::StrCat(state.attempt().attempt()) : "none");
}

// Its place in the sorted `all`, or null.
template <typename All, typename Key, typename KeyOf>
auto* FindKey(All& all, const Key& key, KeyOf key_of) {
  const auto at = std::partition_point(all.begin(), all.end(),
                                       [&](const auto& each) { return key_of(each) < key; });
  return at != all.end() && key_of(*at) == key ? &*at : nullptr;
}

// Keeps it sorted. There is none of that key.
template <typename All, typename KeyOf>
void Insert(All& all, const typename All::value_type& what, KeyOf key_of) {
  const auto at = std::partition_point(
      all.begin(), all.end(), [&](const auto& each) { return key_of(each) < key_of(what); });
  const auto place = at - all.begin();
  *all.Add() = what;
  std::rotate(all.pointer_begin() + place, all.pointer_end() - 1, all.pointer_end());
}

uint32_t NodeOf(const v1::NodeJournal& node) { return node.node(); }
const std::string& FileOf(const v1::FileLoss& loss) { return loss.name(); }
uint32_t RankOf(const v1::WorkerExit& exit) { return exit.rank(); }
std::pair<uint32_t, int> StreamOf(const v1::LogPosition& at) { return {at.rank(), at.stream()}; }

absl::Status CheckRank(const State& state, uint32_t rank) {
  const uint32_t ranks = state.attempt().world_size();
  if (ranks == 0 || rank < ranks) return absl::OkStatus();
  return Illegal("rank ", rank, " of ", ranks);
}

// Whoever takes the job over uses it as it is.
absl::Status CheckRuns(const v1::AttemptRuns& runs, const State& state) {
  if (absl::Status of = CheckAttempt(state, runs.attempt()); !of.ok()) return of;
  std::vector<bool> seen(std::min(runs.world_size(), kMostRanks));
  uint32_t next = 0;
  for (const v1::RunningNode& node : runs.nodes()) {
    if (node.node() < next || node.node() >= static_cast<uint32_t>(state.attempt().hosts_size())) {
      return Illegal("node ", node.node(), " of ", state.attempt().hosts_size(), " runs");
    }
    next = node.node() + 1;
    for (const v1::WorkerSpec& worker : node.workers()) {
      if (worker.rank() >= seen.size() || seen[worker.rank()]) {
        return Illegal("rank ", worker.rank(), " of ", runs.world_size(), " runs");
      }
      seen[worker.rank()] = true;
    }
    for (const v1::WorkerStarted& worker : node.started()) {
      if (worker.rank() >= seen.size() || !seen[worker.rank()]) {
        return Illegal("rank ", worker.rank(), " of ", runs.world_size(), " has started");
      }
    }
  }
  if (runs.nodes_size() > 0 && (seen.size() != runs.world_size() ||
                                std::find(seen.begin(), seen.end(), false) != seen.end())) {
    return Illegal("not all of ", runs.world_size(), " ranks run");
  }
  return absl::OkStatus();
}

absl::Status TakeGeneration(const v1::Launcher& launcher, State& state) {
  if (launcher.generation() <= state.launcher().generation()) {
    return Illegal("generation ", launcher.generation(), " after ", state.launcher().generation());
  }
  *state.mutable_launcher() = launcher;
  return absl::OkStatus();
}

absl::Status Begin(const v1::AttemptBegins& attempt, State& state) {
  if (ToldToEnd(state)) return Illegal("an attempt begins, and the job was told to end");
  if (attempt.generation() != state.launcher().generation()) {
    return Illegal("generation ", attempt.generation(), " begins an attempt, and generation ",
                   state.launcher().generation(), " has the job");
  }
  uint32_t next = 0;
  if (state.has_attempt()) {
    const bool again = state.restarts_size() > 0 && state.restarts().rbegin()->again();
    next = state.attempt().attempt() + (again ? 0 : 1);
  }
  if (attempt.attempt() != next) {
    return Illegal("attempt ", attempt.attempt(), " begins instead of ", next);
  }
  state.set_phase(State::PHASE_BEGUN);
  *state.mutable_attempt() = attempt;
  state.clear_runs();
  state.clear_nodes();
  state.clear_exits();
  state.clear_logs_safe();
  state.clear_scale_up();
  return absl::OkStatus();
}

absl::Status TakeFact(const v1::NodeFact& fact, State& state) {
  if (absl::Status attempt = CheckAttempt(state, fact.attempt()); !attempt.ok()) return attempt;
  if (fact.node() >= static_cast<uint32_t>(state.attempt().hosts_size())) {
    return Illegal("node ", fact.node(), " of ", state.attempt().hosts_size());
  }
  if (fact.has_exit()) {
    if (absl::Status rank = CheckRank(state, fact.exit().rank()); !rank.ok()) return rank;
    auto& exits = *state.mutable_exits();
    if (FindKey(exits, fact.exit().rank(), RankOf) == nullptr) Insert(exits, fact.exit(), RankOf);
    return absl::OkStatus();
  }
  auto& nodes = *state.mutable_nodes();
  if (FindKey(nodes, fact.node(), NodeOf) == nullptr) {
    v1::NodeJournal made;
    made.set_node(fact.node());
    Insert(nodes, made, NodeOf);
  }
  v1::NodeJournal& node = *FindKey(nodes, fact.node(), NodeOf);
  if (fact.has_finished() && !node.has_finished()) *node.mutable_finished() = fact.finished();
  if (fact.has_failure() && !node.has_failure()) *node.mutable_failure() = fact.failure();
  if (fact.has_gpus()) *node.mutable_gpus() = fact.gpus();
  if (fact.has_lost() && !node.has_lost()) *node.mutable_lost() = fact.lost();
  return absl::OkStatus();
}

absl::Status DecideRestart(const v1::RestartDecided& restart, State& state) {
  if (absl::Status attempt = CheckAttempt(state, restart.attempt()); !attempt.ok()) return attempt;
  if (ToldToEnd(state)) return Illegal("a restart is decided, and the job was told to end");
  if (restart.again() && state.has_runs()) return Illegal("an attempt that ran is begun again");
  *state.add_restarts() = restart;
  state.clear_scale_up();
  state.set_phase(State::PHASE_RESTARTING);
  return absl::OkStatus();
}

absl::Status DecideScaleUp(const v1::ScaleUpDecided& decided, State& state) {
  if (absl::Status attempt = CheckAttempt(state, decided.attempt()); !attempt.ok()) return attempt;
  *state.mutable_scale_up() = decided;
  return absl::OkStatus();
}

absl::Status TakePositions(const v1::LogsSafe& safe, State& state) {
  if (absl::Status attempt = CheckAttempt(state, safe.attempt()); !attempt.ok()) return attempt;
  auto& known = *state.mutable_logs_safe();
  for (const v1::LogPosition& at : safe.positions().streams()) {
    if (absl::Status rank = CheckRank(state, at.rank()); !rank.ok()) return rank;
    const v1::LogPosition* last = FindKey(known, StreamOf(at), StreamOf);
    if (last != nullptr && last->offset() > at.offset()) {
      return Illegal("output of rank ", at.rank(), " is safe up to byte ", at.offset(),
                     ", and was up to byte ", last->offset());
    }
  }
  for (const v1::LogPosition& at : safe.positions().streams()) {
    if (v1::LogPosition* last = FindKey(known, StreamOf(at), StreamOf)) {
      *last = at;
    } else {
      Insert(known, at, StreamOf);
    }
  }
  return absl::OkStatus();
}

void TakeLosses(const v1::OutputLost& lost, v1::OutputLost& known) {
  if (known.why().empty()) known.set_why(lost.why());
  for (const v1::FileLoss& loss : lost.files()) {
    if (v1::FileLoss* last = FindKey(*known.mutable_files(), loss.name(), FileOf)) {
      *last = loss;
    } else {
      Insert(*known.mutable_files(), loss, FileOf);
    }
  }
}

absl::Status EndHook(const v1::HookEnds& hook, State& state) {
  if (state.hooks_begun() == 0 || state.has_hook()) {
    return Illegal("--on-end has ended, and was ",
                   state.has_hook() ? "over already" : "not started");
  }
  *state.mutable_hook() = hook;
  return absl::OkStatus();
}

absl::Status Restore(const State& snapshot, State& state) {
  if (!State::Phase_IsValid(snapshot.phase()) || snapshot.phase() == State::PHASE_NEW ||
      ((Bit(snapshot.phase()) & kOfAnAttempt) != 0 && !snapshot.has_attempt())) {
    return Illegal("a snapshot of no possible state");
  }
  state = snapshot;
  return absl::OkStatus();
}

absl::Status Change(const Record& record, State& state) {
  switch (record.kind_case()) {
    case Record::kAccepted:
      *state.mutable_accepted() = record.accepted();
      *state.mutable_launcher() = record.accepted().by();
      state.set_phase(State::PHASE_ACCEPTED);
      break;
    case Record::kGenerationTaken:
      return TakeGeneration(record.generation_taken(), state);
    case Record::kAttemptBegins:
      return Begin(record.attempt_begins(), state);
    case Record::kAttemptRuns:
      if (absl::Status of = CheckRuns(record.attempt_runs(), state); !of.ok()) return of;
      *state.mutable_runs() = record.attempt_runs();
      state.set_phase(State::PHASE_RUNS);
      break;
    case Record::kNodeFact:
      return TakeFact(record.node_fact(), state);
    case Record::kStopAsked:
      if (!ToldToEnd(state)) *state.mutable_stop() = record.stop_asked();
      break;
    case Record::kTimeLimit:
      if (!ToldToEnd(state)) *state.mutable_time_limit() = record.time_limit();
      break;
    case Record::kRestartDecided:
      return DecideRestart(record.restart_decided(), state);
    case Record::kScaleUp:
      return DecideScaleUp(record.scale_up(), state);
    case Record::kLogsSafe:
      return TakePositions(record.logs_safe(), state);
    case Record::kOutputLost:
      TakeLosses(record.output_lost(), *state.mutable_output_lost());
      break;
    case Record::kVerdict:
      *state.mutable_verdict() = record.verdict();
      state.set_phase(State::PHASE_CONCLUDED);
      break;
    case Record::kHookBegins:
      if (state.has_hook()) return Illegal("--on-end begins again after its end");
      state.set_hooks_begun(state.hooks_begun() + 1);
      break;
    case Record::kHookEnds:
      return EndHook(record.hook_ends(), state);
    case Record::kEnded:
      *state.mutable_ended() = record.ended();
      state.set_phase(State::PHASE_ENDED);
      break;
    case Record::kSnapshot:
      return Restore(record.snapshot(), state);
    case Record::kHeader:
    case Record::KIND_NOT_SET:
      break;  // in no phase
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Apply(const v1::JournalRecord& record, v1::JournalState& state) {
  const Rule rule = RuleOf(record.kind_case());
  if ((rule.phases & Bit(state.phase())) == 0) {
    return Illegal(rule.name, ", and the job is ", NameOf(state.phase()));
  }
  return Change(record, state);
}

v1::JournalRecord Snapshot(const v1::JournalState& state) {
  v1::JournalRecord record;
  *record.mutable_snapshot() = state;
  return record;
}

}  // namespace dtrain::journal
