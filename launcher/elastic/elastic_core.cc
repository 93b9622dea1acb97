// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic/elastic_core.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "launcher/elastic/texts.h"
#include "launcher/job/outcome.h"

namespace dtrain::elastic {
namespace {

using Kind = job::Verdict::Kind;

bool IsStopSignal(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGPIPE;
}

}  // namespace

ElasticCore::ElasticCore(ElasticOptions options, HostBook& book, TimePoint now)
    : options_(std::move(options)),
      book_(book),
      begin_(now),
      now_(now),
      runs_(options_.first_run, options_.first_number),
      forming_(options_, book_, runs_, failures_, out_),
      join_by_(now + options_.join_timeout) {
  book_.OnAttempt();
}

std::vector<ElasticAction> ElasticCore::OnEvent(TimePoint now, const ElasticEvent& event) {
  if (state_ == State::kOver) return {};
  now_ = std::max(now_, now);
  std::visit([this](const auto& each) { On(each); }, event);
  runs_.Sweep(state_ == State::kForm || state_ == State::kOpen);
  if (state_ == State::kEnd && runs_.all().empty()) {
    state_ = State::kOver;
    out_.Do(failures_.Conclude());
  }
  return out_.Take();
}

TimePoint ElasticCore::NextDeadline() const {
  if (state_ == State::kEnd || state_ == State::kOver) return kNever;  // the runs' own count
  TimePoint next = book_.NextDeadline();
  if (options_.time_limit > Duration::zero()) next = std::min(next, begin_ + options_.time_limit);
  if (state_ == State::kGather && !runs_.MakesRoom()) next = std::min(next, join_by_);
  if (state_ == State::kForm) next = std::min(next, come_by_);
  if (state_ != State::kOpen) return next;
  if (failures_.first() && !stuck_said_) {
    next = std::min(next, failures_.first_at() + options_.stuck);
  }
  if (runs_.CanTellCoordinator()) next = std::min(next, notices_.NextDeadline());
  return next;
}

void ElasticCore::On(const HostsFound& found) {
  listed_ = true;
  forming_.SetMissing(found.missing);
  const HostChange change = book_.Found(now_, found.hosts);
  // Those that the attempt before knew are in the book already.
  OnHosts(state_ == State::kGather ? kHostsAdded : change);
}

void ElasticCore::On(const DoorWaits& waits) {
  Run* run = runs_.Living(waits.run);
  if (run == nullptr || run->joined) return;
  run->waiting = waits.clients;
  if (state_ == State::kForm) MayOpen();
}

void ElasticCore::On(const SeatAsked& asked) {
  Run* run = runs_.Living(asked.run, asked.local_rank);
  if (state_ != State::kOpen || run == nullptr || !run->seated) return;
  Record& record = run->records[asked.local_rank];
  if (record != Record::kNone) return;
  record = Record::kReady;
  MayDecide();
}

void ElasticCore::On(const WorkerEnded& ended) {
  Run* run = runs_.Living(ended.run, ended.local_rank);
  if (state_ == State::kEnd || run == nullptr) return;
  if (ended.exit_code == 0) return Succeed(ended.run, ended.local_rank);
  Lose(FailureOf(ended, *run), Fault::kWorker, TimePoint::min());
  Settle();
}

void ElasticCore::On(const RunOver& over) {
  Run* run = runs_.Find(over.run);
  if (run == nullptr || run->over) return;
  failures_.OnOver(over, *run);
  run->over = true;
  const bool was_lost = run->ending && run->Count(Record::kFailure) == 0 &&
                        over.verdict.kind == Kind::kNode && state_ != State::kEnd;
  if (was_lost) book_.Deny(now_, run->host, over.dead_at);
  book_.NotBefore(now_, run->host, over.dead_at);
  // New workers would find GPUs and ports taken by the old ones.
  if (LeavesBehind(over.verdict)) book_.NotBefore(now_, run->host, kNever);
  if (state_ == State::kEnd) return;
  if (LeavesBehind(over.verdict)) {
    out_.Say(
        absl::StrCat(run->host, " is not used again: not all of its processes could be ended"));
  }
  if (run->ending) return OnHosts(kHostsAdded);  // it may be used again
  if (over.verdict.kind == Kind::kSuccess) {
    for (uint32_t i = 0; i < run->records.size(); ++i) {
      if (!run->ending && run->records[i] != Record::kSuccess) Succeed(over.run, i);
      run = runs_.Find(over.run);
      if (run == nullptr) return;
    }
    return Settle();
  }
  Lose(FailureOf(over, *run), over.verdict.kind == Kind::kWorker ? Fault::kWorker : Fault::kHost,
       over.dead_at);
  Settle();
}

void ElasticCore::On(const Registered& registered) {
  Run* run = runs_.Living(registered.run, registered.local_rank);
  if (run == nullptr || state_ == State::kEnd) return;
  run->takes_notices[registered.local_rank] = registered.not_understood.empty();
  if (!registered.not_understood.empty() && !std::exchange(unheard_said_, true)) {
    out_.Say(absl::StrCat("changes of hosts reach the job only when a collective fails: ",
                          job::Printable(registered.not_understood)));
  }
  // Only rank 0 is ever told.
  const auto [first, coordinator] = runs_.Coordinator();
  const bool is_rank_0 = coordinator != nullptr && first == registered.run;
  if (is_rank_0 && registered.local_rank == 0) Compare();
}

void ElasticCore::On(const NoticeDone& done) {
  if (notices_.OnDone(now_, done.timestamp, done.failed.empty()) &&
      !std::exchange(unheard_said_, true)) {
    out_.Say(absl::StrCat("changes of hosts reach the job only when a collective fails: ",
                          job::Printable(done.failed)));
  }
  Compare();
}

// The runs are told by the caller: each knows of grace, and of a second Ctrl-C.
void ElasticCore::On(const StopAsked& asked) {
  if (state_ == State::kEnd || !IsStopSignal(asked.signal)) return;
  failures_.EndWith(StopBy(asked.signal, asked.from));
  state_ = State::kEnd;
}

void ElasticCore::On(const StoppedThere& stopped) {
  if (state_ == State::kEnd) return;
  End({MakeVerdict(Kind::kNode, kExitTerminated, stopped.text), stopped.text});
}

void ElasticCore::On(const Tick&) {
  if (state_ == State::kEnd) return;
  if (options_.time_limit > Duration::zero() && now_ >= begin_ + options_.time_limit) {
    return End(TimeIsUp(options_.time_limit));
  }
  OnHosts(book_.OnTime(now_));
  if (state_ == State::kGather && now_ >= join_by_ && !runs_.MakesRoom()) {
    return End(TooLate(
        round_ == 0, absl::StrCat(forming_.Want(round_ + 1), " after ",
                                  job::FormatSeconds(options_.join_timeout), forming_.Missing())));
  }
  if (state_ == State::kForm && now_ >= come_by_) return LeaveLateOut();
  if (state_ != State::kOpen) return;
  if (failures_.first() && !stuck_said_ && now_ >= failures_.first_at() + options_.stuck) {
    stuck_said_ = true;
    out_.Say(StuckText(runs_.all(), *failures_.first(), now_ - failures_.first_at()));
  }
  if (notices_.MaySend(now_)) Compare();
}

// Hosts have come, gone, or may be used again.
void ElasticCore::OnHosts(HostChange change) {
  if (change == kNoChange) return;
  if (state_ == State::kGather && listed_) TryForm();
  if (state_ == State::kOpen) Compare();
}

void ElasticCore::Succeed(RunId id, uint32_t local_rank) {
  Run& run = *runs_.Find(id);
  Record& record = run.records[local_rank];
  if (record == Record::kReady) {  // the job wants it in the next round
    Lose(Withdrawal(id, run, local_rank), Fault::kWithdrew, TimePoint::min());
  } else if (record == Record::kNone) {
    record = Record::kSuccess;
  }
  Settle();
}

// All of a host's workers fail with one: JobCore ends the others.
void ElasticCore::Lose(Failure failure, Fault fault, TimePoint dead_at) {
  const RunId id = failure.run;
  Run& run = *runs_.Find(id);
  const bool decides = IsForTheUser(failure.verdict) || (fault == Fault::kWorker && round_ == 0);
  runs_.Fail(run);
  if (fault != Fault::kWithdrew) book_.Deny(now_, run.host, dead_at);
  failures_.Add(now_, std::move(failure), decides);
  if (fault == Fault::kWithdrew || fault == Fault::kLate) {
    out_.Stop(id, run, failures_.CauseOf(run.host));
  }
  run.ending = true;
  if (decides) return End({});
  if (state_ == State::kOpen) return;
  run.seated = false;
  if (state_ == State::kForm) {
    state_ = State::kGather;
    forming_.Begin();
  }
}

void ElasticCore::Settle() {
  switch (state_) {
    case State::kGather:
      return TryForm();
    case State::kForm:
      return MayOpen();
    case State::kOpen:
      return MayDecide();
    case State::kEnd:
    case State::kOver:
      return;
  }
}

// In Horovod's order.
void ElasticCore::MayDecide() {
  if (state_ != State::kOpen) return;
  const Tally tally = runs_.Records();
  if (tally.none > 0) return;
  if (tally.success > 0 && tally.failure == 0) {
    if (tally.ready > 0) out_.Say(LeftWaitingText(runs_.all()));
    return End(SuccessOfAll());
  }
  if (tally.success > 0 || tally.ready == 0) return End({});
  if (options_.most_resets && resets_ >= *options_.most_resets) {
    std::string text = absl::StrCat("no resets left (--reset-limit ", *options_.most_resets, ")");
    const Kind kind = failures_.first() ? Kind::kNone : Kind::kRefused;
    return End({MakeVerdict(kind, kExitRestarts, text), text});
  }
  ++resets_;
  join_by_ = now_ + options_.join_timeout;
  forming_.Begin();
  runs_.Close();
  state_ = State::kGather;
  TryForm();
}

void ElasticCore::TryForm() {
  switch (forming_.Try(now_, round_ + 1, resets_, join_by_)) {
    case Forming::Result::kWaits:
      return;
    case Forming::Result::kForms:
      state_ = State::kForm;
      come_by_ = now_ + options_.join_timeout;
      return MayOpen();
    case Forming::Result::kStateLost:
      return EndForWant("no host of the last round is left, and the state is lost with them");
    case Forming::Result::kNotEnough:
      return EndForWant(absl::StrCat(forming_.Want(round_ + 1), ", and no other host can come",
                                     forming_.Missing()));
  }
}

// What has failed says more than what is missing now.
void ElasticCore::EndForWant(const std::string& text) {
  if (failures_.first()) return End({MakeVerdict(Kind::kNone, 0, text), text});
  End(TooFew(round_ == 0, text));
}

void ElasticCore::MayOpen() {
  for (const auto& [id, run] : runs_.all()) {
    if (run.seated && !run.joined && !run.IsHere()) return;
  }
  state_ = State::kOpen;
  ++round_;
  failures_.OnRound();
  notices_.OnRound();
  stuck_said_ = false;
  out_.Do(OpenRound{round_, runs_.Open()});
  MayDecide();
  Compare();
}

// Tells rank 0, if a round that began now would be another one.
void ElasticCore::Compare() {
  if (state_ != State::kOpen) return;
  const Plan plan = forming_.plan();
  notices_.SetDue(!failures_.first() && !IsPresent(plan, runs_.all()));
  if (!runs_.CanTellCoordinator() || !notices_.MaySend(now_)) return;
  // Never "removed" alone: rank 0 would not send its state, and a newcomer that arrives meanwhile
  // would wait for it.
  bool only_added = true;
  for (const auto& [id, run] : runs_.all()) {
    only_added = only_added && (!run.seated || plan.Of(id) != nullptr);
  }
  const HostChange change = only_added ? kHostsAdded : kHostsAdded | kHostsRemoved;
  out_.Do(Notify{runs_.Coordinator().first, 0, notices_.Send(), change});
}

// Before a round is opened, the door cannot tell which of its workers wait there.
void ElasticCore::LeaveLateOut() {
  std::vector<Failure> late;
  for (const auto& [id, run] : runs_.all()) {
    if (!run.seated || run.joined || run.IsHere()) continue;
    late.push_back(Absence(id, run, options_.join_timeout));
  }
  if (round_ == 0) return End({late.front().verdict, late.front().verdict.message});
  for (Failure& failure : late) Lose(std::move(failure), Fault::kLate, TimePoint::min());
  Settle();
}

// One Ctrl-C after the time limit kills, as in other jobs: also runs that were ending before it.
void ElasticCore::End(Ending ending) {
  const bool cancels = ending.verdict.kind == Kind::kTimeLimit;
  failures_.EndWith(std::move(ending));
  state_ = State::kEnd;
  for (auto& [id, run] : runs_.all()) {
    if (run.over) continue;
    const bool works = !run.ending && run.Count(Record::kSuccess) < run.records.size();
    if (works || cancels) out_.Stop(id, run, "the job is over", cancels);
  }
}

}  // namespace dtrain::elastic
