// SPDX-License-Identifier: Apache-2.0
// Who is heard of, and who hears of us: beats, leases, clocks, and pauses of this launcher itself.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/own_pause.h"
#include "common/base/text.h"
#include "launcher/job/job_core_impl.h"

namespace dtrain::job {
namespace {

// A beat may be late and the one after it lost before the other side gives up.
constexpr int kBeatsPerLease = 5;
// Silence that is worth a word: two beats of the usual lease. Never longer than that part of a
// shorter one.
constexpr Duration kSuspectAfter = std::chrono::seconds(6);
constexpr Duration kDialEvery = std::chrono::milliseconds(1500);
// After a pause of our own, and what nodes need to end what they run: for word of that to arrive.
constexpr Duration kStillSettle = std::chrono::seconds(5);

}  // namespace

// A beat that is due long since shows that it was us who did not run, and the nodes' words may
// still wait to be read.
void JobImpl::CreditOwnPause(TimePoint time) {
  const Duration pause = OwnPause(now, beat_at, time, BeatPeriod() / 4);
  now = std::max(now, time);
  if (pause == Duration::zero()) return;
  for (Node& node : nodes) node.last_heard += pause;
  if (state < State::kRunning && start_by != kNever) start_by += pause;
  StoodStill(now - pause, pause);
}

// A starved process has many short pauses. They are one when it runs less than it stands still.
void JobImpl::StoodStill(TimePoint begin, Duration length) {
  const Duration ran = std::max(begin - still_until, Duration::zero());
  still = std::max(still - ran, Duration::zero()) + length;
  still_until = now;
}

// Whether the nodes have ended, or are ending, the job's workers because we stood still.
bool JobImpl::IsOwnFault() const {
  return still > Duration::zero() && still >= options.lease - 2 * BeatPeriod() &&
         now <= still_until + options.lease + options.grace + kStillSettle;
}

constexpr char kStoodStillHow[] = " (stopped, asleep or without CPU time)";

// After word from a node that it has ended its workers, or let us go, because we were silent. True:
// it is lost by our fault, as told already, or now.
bool JobImpl::BlameOwnPause() {
  if (still_blamed) return true;
  if (verdict.kind != Verdict::Kind::kNone || !IsOwnFault()) return false;
  still_blamed = true;
  verdict_open_until = TimePoint::min();  // what else is lost has a line of its own
  Stop({.kind = Verdict::Kind::kNode,
        .exit_code = kExitNodeLost,
        .message =
            absl::StrCat("this launcher did not run for ", FormatSeconds(still), kStoodStillHow,
                         ", and nodes end a job's workers when its launcher is silent for ",
                         FormatSeconds(options.lease), "; --lease TIME lets them wait longer"),
        .rank = {},
        .signal = 0});
  return true;
}

// Of a node that may have been lost by our fault, but has not said so.
std::string JobImpl::WithOwnPause(std::string text) const {
  if (!still_blamed && IsOwnFault()) {
    absl::StrAppend(&text, "; this launcher had not run for ", FormatSeconds(still),
                    kStoodStillHow);
  }
  return text;
}

Duration JobImpl::BeatPeriod() const {
  return std::max<Duration>(options.lease / kBeatsPerLease, std::chrono::milliseconds(1));
}

void JobImpl::Beat() {
  beat_at = now + BeatPeriod();
  SendMany beat;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].connected && !views[i].gone) beat.nodes.push_back(NodeId(i));
  }
  beat.request.mutable_heartbeat();
  if (!beat.nodes.empty()) actions.push_back(std::move(beat));
}

Duration JobImpl::SuspectAfter() const {
  return std::min<Duration>(kSuspectAfter, 2 * BeatPeriod());
}

void JobImpl::CompareClocks(NodeId id, int64_t theirs, int64_t ours) {
  NodeClock& clock = At(id).clock;
  clock.Add(theirs, ours);
  views[id.value()].clock_ahead_nanos = clock.ahead_nanos();
  views[id.value()].clock_ahead_at_start_nanos = clock.ahead_at_start_nanos();
}

void JobImpl::HeardFrom(NodeId id) {
  Node& node = At(id);
  NodeView& view = views[id.value()];
  if (std::exchange(view.suspect, false)) {
    WarnUser(
        absl::StrCat(view.host, ": heard from again after ", FormatSeconds(now - node.last_heard)));
    lease_check_at = now;
  }
  node.last_heard = now;
}

void JobImpl::CheckLeases() {
  TimePoint next = kNever;
  for (uint32_t i = 0; i < nodes.size() && state != State::kFinished; ++i) {
    const bool known = nodes[i].connected || views[i].joined;
    if (!known || views[i].gone || nodes[i].failed) continue;
    const TimePoint end = nodes[i].by_stream ? kNever : After(nodes[i].last_heard, options.lease);
    if (now < end) {
      const TimePoint suspect_at = nodes[i].last_heard + SuspectAfter();
      if (now < suspect_at) {
        next = std::min(next, suspect_at);
        continue;
      }
      if (!std::exchange(views[i].suspect, true)) {
        WarnUser(absl::StrCat(
            Host(NodeId(i)), ": no message from it for ", FormatSeconds(now - nodes[i].last_heard),
            nodes[i].by_stream ? "; its agent runs on this machine, and is stopped or gets no "
                                 "CPU: the job continues when it does"
                               : absl::StrCat("; it will be declared lost after ",
                                              FormatSeconds(options.lease), " (--lease)")));
        nodes[i].dial_at = now;
      }
      if (now >= nodes[i].dial_at) {
        actions.push_back(DialAnew{NodeId(i)});
        nodes[i].dial_at = now + kDialEvery;
      }
      next = std::min({next, end, nodes[i].dial_at});
      continue;
    }
    std::string why =
        absl::StrCat("no message from it for ", FormatSeconds(now - nodes[i].last_heard));
    if (state < State::kStarting) {
      EarlyFault(NodeId(i), WithOwnPause(std::move(why)), kExitNodeLost);
    } else {
      LoseConnection(NodeId(i), why, kExitNodeLost);
    }
  }
  lease_check_at = next;
}

}  // namespace dtrain::job
