// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "launcher/job/cluster.h"
#include "launcher/job/early_faults.h"
#include "launcher/job/lease_watch.h"
#include "launcher/job/losses.h"
#include "launcher/job/outcome.h"
#include "launcher/job/own_pauses.h"
#include "launcher/job/plan_phase.h"
#include "launcher/job/retries.h"
#include "launcher/job/stop_phase.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {

// From the first connection until all nodes have shown what they have, or, with --min-nodes, those
// that can be reached. Nothing runs yet: what fails is reported at once, and every node let go.
class JoinPhase {
 public:
  JoinPhase(Cluster& cluster, Out& out, LeaseWatch& lease_watch, StopPhase& stop,
            OwnPauses& own_pauses, Retries& retries, EarlyFaults& early_faults, Losses& losses,
            PlanPhase& plan);

  void OnPhase(const Event& event);
  void OnConnected(const Event& event);
  absl::Status OnWelcome(const Event& event);
  void OnWelcomeAgain(const Event& event);
  // Until the word to start.
  void OnClosed(const Event& event);
  void OnFailure(const Event& event);
  void OnSilent(NodeId node, std::string why);
  void Fault(NodeId node, std::string text, int exit_code, bool absent = false);

  TimePoint NextDeadline() const;
  void OnDeadline();

 private:
  absl::Status Join(const AgentMessage& message);
  std::string EndsAtLogout(const v1::Welcome& welcome) const;
  void SayHello(NodeId node, bool same_machine);
  bool IsElastic() const { return cluster_.options().min_nodes > 0; }
  bool MayLeaveOut(NodeId node) const;
  void CheckAllDecided();
  bool MayBegin();
  void TellKilled(NodeId node);
  bool IsDoubtful(NodeId node) const;
  void Decided(NodeId node);
  void CallLast(Duration wait);
  void LastCall();
  void EndRetries();

  Cluster& cluster_;
  Out& out_;
  LeaseWatch& lease_watch_;
  StopPhase& stop_;
  OwnPauses& own_pauses_;
  Retries& retries_;
  EarlyFaults& early_faults_;
  Losses& losses_;
  PlanPhase& plan_;
  rendezvous::BarrierCore barrier_;
  TimePoint last_call_at_ = kNever;        // hosts that have not joined by then are left out
  Duration last_call_ = Duration::zero();  // how long they were given
  bool awaits_end_ = false;                // JobOptions::clear_at is awaited
  size_t undecided_;  // nodes that have not joined or failed, without the doubtful ones
};

}  // namespace dtrain::job
