// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/cluster.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {

// How often each side says that it lives.
Duration BeatPeriod(const JobOptions& options);

// Who is heard from, and who hears from us: beats, suspects, leases, and the clocks that come with
// the beats.
class LeaseWatch {
 public:
  // Of a node whose lease is over. It must be gone or forgotten then.
  using Silent = std::function<void(NodeId node, std::string why)>;
  // Of one whose agent is heard, but not its shepherd, for so long.
  using ShepherdSilent = std::function<void(NodeId node, Duration silence)>;

  LeaseWatch(Cluster& cluster, Out& out);

  // It is expected to send something from now on. `same_machine`: its agent is our own child, so
  // that the end of its stream counts, not its silence.
  void Watch(NodeId node, bool same_machine);
  void Forget(NodeId node);
  // Nobody has been heard by this launcher yet, which took the job over: as after a cut, the first
  // node that is heard gives the others a lease.
  void BeginUnheard() { unheard_ = cluster_.options().away > cluster_.options().lease; }
  void OnMessage(const AgentMessage& message);  // any
  void OnMessage(const ShepherdMessage& message);
  void OnWelcome(const AgentMessage& message);

  // Moves the cluster's time to `now`, and returns for how long this process did not run before
  // that, as an overdue beat shows. Messages may still wait to be read, so that time is nobody's
  // silence.
  Duration CreditOwnPause(TimePoint now);

  TimePoint NextDeadline() const;
  void OnDeadline(const Silent& silent, const ShepherdSilent& shepherd_silent);

  TimePoint last_heard(NodeId node) const { return nodes_[node.value()].last_heard; }
  // When it can have heard from us last, if all that it says is lost on its way.
  TimePoint last_beat(NodeId node) const { return nodes_[node.value()].last_beat; }
  // A time of that node's clock on ours, not after `received` (0: unknown).
  int64_t ToOurs(NodeId node, int64_t unix_nanos, int64_t received_unix_nanos) const;

 private:
  struct Node {
    bool watched = false;
    bool by_stream = false;
    TimePoint last_heard;
    TimePoint last_beat;
    TimePoint dial_at;            // anew, while it is suspect
    TimePoint asked_at = kNever;  // by a beat that its shepherd has not answered yet
    TimePoint due;                // of its entry that counts
    NodeClock clock;
  };
  void Beat();
  void Hear(NodeId id);
  void CompareClocks(const AgentMessage& message, int64_t theirs);
  TimePoint SuspectAt(const Node& node) const;
  TimePoint ShepherdSilentAt(const Node& node) const;
  void LookAt(NodeId node, TimePoint when);
  // Where nobody is heard, it is we who are cut off: workers that live on without us (--away) are
  // given up only when they have not.
  bool IsCutOff() const;
  void TellCutOff();
  void CheckDue(const Silent& silent, const ShepherdSilent& shepherd_silent);
  void Check(NodeId node, const Silent& silent, const ShepherdSilent& shepherd_silent);
  void Suspect(NodeId node);

  Cluster& cluster_;
  Out& out_;
  std::vector<Node> nodes_;
  TimePoint beat_at_;
  TimePoint heard_any_;   // of the nodes whose silence counts
  bool cut_off_ = false;  // as told
  bool unheard_ = false;
  TimePoint excused_until_;  // all of them, after that
  // When to look at which node: never too late, and too early where it was heard since, so that a
  // message moves nothing here. Of a node's entries that with its `due` counts.
  using Due = std::pair<TimePoint, NodeId>;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

}  // namespace dtrain::job
