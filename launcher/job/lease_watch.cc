// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/lease_watch.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/own_pause.h"

namespace dtrain::job {
namespace {

// A beat may be late and the one after it lost before the other side gives up.
constexpr int kBeatsPerLease = 5;
// Silence that is worth a word: two beats of the usual lease. Never longer than that part of a
// shorter one.
constexpr Duration kSuspectAfter = std::chrono::seconds(6);
constexpr Duration kDialEvery = std::chrono::milliseconds(1500);

Duration SuspectAfter(const JobOptions& options) {
  return std::min<Duration>(kSuspectAfter, 2 * BeatPeriod(options));
}

}  // namespace

Duration BeatPeriod(const JobOptions& options) {
  return std::max<Duration>(options.lease / kBeatsPerLease, std::chrono::milliseconds(1));
}

LeaseWatch::LeaseWatch(Cluster& cluster, Out& out)
    : cluster_(cluster),
      out_(out),
      nodes_(cluster.size()),
      beat_at_(cluster.now() + BeatPeriod(cluster.options())),
      heard_any_(cluster.now()),
      excused_until_(TimePoint::min()) {}

void LeaseWatch::Watch(NodeId id, bool same_machine) {
  Node& node = nodes_[id.value()];
  node.watched = true;
  node.by_stream = same_machine;
  node.last_heard = cluster_.now();
  node.last_beat = cluster_.now();
  LookAt(id, SuspectAt(node));
}

void LeaseWatch::Forget(NodeId id) { nodes_[id.value()].watched = false; }

void LeaseWatch::OnMessage(const AgentMessage& message) {
  Hear(message.node);
  if (!message.event.has_heartbeat()) return;
  CompareClocks(message, message.event.heartbeat().unix_nanos());
}

void LeaseWatch::OnMessage(const ShepherdMessage& message) {
  Hear(message.node);
  nodes_[message.node.value()].asked_at = kNever;
}

void LeaseWatch::Hear(NodeId id) {
  Node& node = nodes_[id.value()];
  const Duration silence = cluster_.now() - node.last_heard;
  node.last_heard = cluster_.now();
  if (!node.by_stream) heard_any_ = cluster_.now();
  if (!node.by_stream) {
    const bool is_first = std::exchange(unheard_, false);
    if (std::exchange(cut_off_, false) || is_first) {
      excused_until_ = cluster_.now() + cluster_.options().lease;
    }
  }
  if (!cluster_.view(id).suspect) return;
  cluster_.SetSuspect(id, false);
  // Beats that were sent while it was silent may not have reached its shepherd.
  if (node.asked_at != kNever) node.asked_at = cluster_.now();
  LookAt(id, SuspectAt(node));
  out_.Warn(absl::StrCat(cluster_.host(id), ": heard from again after ", FormatSeconds(silence)));
}

void LeaseWatch::OnWelcome(const AgentMessage& message) {
  const v1::Welcome& welcome = message.event.welcome();
  // A resident agent is nobody's child; only a relay to it is.
  if (welcome.resumable()) {
    nodes_[message.node.value()].by_stream = false;
    cluster_.SetResumable(message.node);
  }
  CompareClocks(message, welcome.inventory().clock_unix_nanos());
}

void LeaseWatch::CompareClocks(const AgentMessage& message, int64_t theirs) {
  NodeClock& clock = nodes_[message.node.value()].clock;
  clock.Add(theirs, message.received_unix_nanos);
  cluster_.SetClock(message.node, clock.ahead_nanos(), clock.ahead_at_start_nanos());
}

int64_t LeaseWatch::ToOurs(NodeId node, int64_t unix_nanos, int64_t received_unix_nanos) const {
  return nodes_[node.value()].clock.ToOurs(unix_nanos, received_unix_nanos);
}

Duration LeaseWatch::CreditOwnPause(TimePoint now) {
  const Duration pause =
      OwnPause(cluster_.now(), beat_at_, now, BeatPeriod(cluster_.options()) / 4);
  cluster_.Advance(now);
  if (pause == Duration::zero()) return pause;
  heard_any_ += pause;
  if (now < excused_until_ + pause) excused_until_ += pause;
  for (Node& node : nodes_) {
    node.last_heard += pause;
    if (node.asked_at != kNever) node.asked_at += pause;
  }
  return pause;
}

TimePoint LeaseWatch::NextDeadline() const {
  return due_.empty() ? beat_at_ : std::min(beat_at_, due_.top().first);
}

void LeaseWatch::OnDeadline(const Silent& silent, const ShepherdSilent& shepherd_silent) {
  if (cluster_.now() >= beat_at_) Beat();
  CheckDue(silent, shepherd_silent);
}

void LeaseWatch::Beat() {
  beat_at_ = cluster_.now() + BeatPeriod(cluster_.options());
  std::vector<NodeId> nodes;
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    const NodeId id(i);
    if (!cluster_.node(id).connected || cluster_.view(id).gone) continue;
    // One that may hear us, but is not heard, must not live for longer than we wait for its end.
    if (cluster_.view(id).suspect) continue;
    nodes.push_back(id);
    nodes_[i].last_beat = cluster_.now();
    if (!cluster_.node(id).told_to_start || cluster_.node(id).ended) continue;
    nodes_[i].asked_at = std::min(nodes_[i].asked_at, cluster_.now());
  }
  if (!nodes.empty()) out_.Add(job::Beat{std::move(nodes)});
}

TimePoint LeaseWatch::SuspectAt(const Node& node) const {
  return node.last_heard + SuspectAfter(cluster_.options());
}

TimePoint LeaseWatch::ShepherdSilentAt(const Node& node) const {
  return node.asked_at == kNever ? kNever : After(node.asked_at, cluster_.options().lease);
}

void LeaseWatch::LookAt(NodeId id, TimePoint when) {
  nodes_[id.value()].due = when;
  due_.emplace(when, id);
}

void LeaseWatch::CheckDue(const Silent& silent, const ShepherdSilent& shepherd_silent) {
  std::vector<NodeId> due;
  for (; !due_.empty() && due_.top().first <= cluster_.now(); due_.pop()) {
    const auto [when, id] = due_.top();
    if (nodes_[id.value()].due == when) due.push_back(id);
  }
  std::sort(due.begin(), due.end());  // they are told in this order
  due.erase(std::unique(due.begin(), due.end()), due.end());
  for (const NodeId id : due) Check(id, silent, shepherd_silent);
}

void LeaseWatch::Check(NodeId id, const Silent& silent, const ShepherdSilent& shepherd_silent) {
  Node& node = nodes_[id.value()];
  if (!node.watched || cluster_.view(id).gone || cluster_.state() == State::kFinished) return;
  const TimePoint now = cluster_.now();
  TimePoint end = kNever;
  if (!node.by_stream) {
    end = std::max(After(node.last_heard, cluster_.options().lease), excused_until_);
    if (now >= end && IsCutOff()) {
      TellCutOff();
      end = After(node.last_heard, cluster_.options().away);
    }
  }
  if (now >= end) {
    silent(id, absl::StrCat("no message from it for ", FormatSeconds(now - node.last_heard)));
    return;
  }
  if (now < SuspectAt(node)) {
    if (now >= ShepherdSilentAt(node)) {
      const Duration silence = now - std::exchange(node.asked_at, kNever);
      if (!cluster_.node(id).ended) shepherd_silent(id, silence);
    }
    LookAt(id, std::min(SuspectAt(node), ShepherdSilentAt(node)));
    return;
  }
  if (!cluster_.view(id).suspect) Suspect(id);
  if (now >= node.dial_at) {
    out_.Add(DialAnew{id});
    node.dial_at = now + kDialEvery;
  }
  LookAt(id, std::min(end, node.dial_at));
}

bool LeaseWatch::IsCutOff() const {
  const JobOptions& options = cluster_.options();
  return options.away > options.lease && cluster_.state() == State::kRunning &&
         cluster_.now() - heard_any_ >= SuspectAfter(options);
}

void LeaseWatch::TellCutOff() {
  if (std::exchange(cut_off_, true)) return;
  const JobOptions& options = cluster_.options();
  out_.Warn(absl::StrCat("no node was heard for ", FormatSeconds(cluster_.now() - heard_any_),
                         ": this machine may be cut off. The job goes on without it for ",
                         FormatSeconds(options.away), " (--away), and it keeps trying"));
}

void LeaseWatch::Suspect(NodeId id) {
  Node& node = nodes_[id.value()];
  cluster_.SetSuspect(id, true);
  node.dial_at = cluster_.now();
  const std::string then =
      node.by_stream ? "its agent runs on this machine, and is stopped or gets no CPU: the job "
                       "continues when it does"
                     : absl::StrCat("it will be declared lost after ",
                                    FormatSeconds(cluster_.options().lease), " (--lease)");
  out_.Warn(absl::StrCat(cluster_.host(id), ": no message from it for ",
                         FormatSeconds(cluster_.now() - node.last_heard), "; ", then));
}

}  // namespace dtrain::job
