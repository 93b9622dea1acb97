// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "launcher/job/cluster.h"
#include "launcher/job/node_warnings.h"
#include "launcher/job/outcome.h"
#include "launcher/job/verdicts.h"

namespace dtrain::job {

// The way down: TERM, grace, KILL, the last bytes of the logs, and the end, which always comes.
//
// A node runs until its Finished: then it has ended, no worker lives there. With Released it is
// free: others may have its GPUs. It is done once its output is through, too, and it was let go; it
// is lost when its connection is.
//
//   input                    | when               | does
//   -------------------------|--------------------|----------------------------------------------
//   Stop(cause)              | nothing runs yet   | lets go of all nodes; the end
//                            | starting, running  | Stop{grace} to those that run; kill_at =
//                            |                    | now + grace + 1 s; give_up_at = kill_at + 125 s
//                            | stopping           | offered to Verdicts
//   Succeed()                | running            | as above, Stop only to rank 0's node, for what
//                            |                    | it holds for ranks elsewhere
//   Cancel(verdict): first   | any                | Stop; give_up_at <= (kill_at or now) + 3 s;
//   signal, time limit       |                    | cut_logs_at = all free ? now + 1 s : give_up_at
//                            | stopping           | once: Stop{grace, cancelled} to those that run
//   OutputGone(verdict)      | any                | Cancel; nobody's output is awaited any more
//   KillNow(): second Ctrl-C | stopping           | as kill_at; cut_logs_at = all free ? now :
//                            |                    | give_up_at
//   OnSaving(node)           | before kill_at     | kill_at >= now + 5 s, and give_up_at,
//                            |                    | cut_logs_at as above; once a second: Saving
//                            |                    | to the others that run
//   kill_at                  | any is not free    | Stop{0} to them, EndJob{1 s} to their agents,
//                            |                    | which also shortens the wait for GPUs;
//                            |                    | give_up_at <= now + (cancelled ? 3 : 125) s
//   OnCleanupFailed(node)    | stopping           | 204 noted; give_up_at <= now + 5 s
//   give_up_at               | any is not free    | 204 "end not reported"; they are lost
//   OnEnded(node)            | it runs            | it has ended
//   OnReleased(node)         | it has ended       | it is free; before it has ended: kept
//   OnDrained or OutputGone  | it is free         | Goodbye, Disconnect; it is done
//   cut_logs_at              | it has ended       | "did not wait for its last output"; it is done
//   OnLost(node)             | not done           | it is lost; the caller offers why
//   the last is done or lost | stopping           | warnings; success if no verdict stands; Finish
// A deadline is set once and then only falls, but for OnSaving; one that has come does not come
// again.
class StopPhase {
 public:
  StopPhase(Cluster& cluster, Out& out, Verdicts& verdicts, NodeWarnings& warnings)
      : cluster_(cluster),
        out_(out),
        verdicts_(verdicts),
        warnings_(warnings),
        drained_(cluster.size()) {}

  const Verdicts& verdicts() const { return verdicts_; }
  Verdicts::Taken Stop(Cause why);
  void Stop(Verdict why) { Stop(Cause::Other(std::move(why))); }
  void Succeed();
  void Cancel(Verdict why);
  void OutputGone(Verdict why);
  void KillNow();

  // Workers are sent a signal that somebody has sent to us.
  void OnPassedOn(int signal, const std::string& from) { verdicts_.OnPassedOn(signal, from); }
  void OnCleanupFailed(NodeId node, std::string why);
  void OnRefused(NodeId node);      // nothing was started there, and nothing more will be said
  void OnNothingLeft(NodeId node);  // its agent knows of no such job, and that is no loss
  void OnEnded(NodeId node);
  absl::Status OnReleased(const Event& event);
  void OnDrained(const Event& event);
  void OnSaving(const Event& event);
  void DropLogs(NodeId node) { drained_[node.value()] = true; }  // its output is not asked for
  // It is lost. What that means is offered next, and only then the end is looked for.
  void OnLost(NodeId node);
  void FinishIfAllGone();
  // One that the job does without.
  void LetGo(NodeId node, bool lost = false);

  TimePoint NextDeadline() const;
  void OnDeadline();

 private:
  void Begin();
  void SendStop();
  void PassOnSaving(NodeId from);
  void Kill();
  void GiveUp();
  void CutLogs();
  void Drop(NodeId node, bool let_go);
  void LetGoIfDone(NodeId node);
  void LetGoOfAllDone();
  void Finish();

  Cluster& cluster_;
  Out& out_;
  Verdicts& verdicts_;
  NodeWarnings& warnings_;
  std::vector<bool> drained_;  // by node
  bool succeeded_ = false;     // all ranks ended with 0
  bool cancelled_ = false;     // nobody wants the rest of the logs at any price
  bool output_gone_ = false;
  TimePoint kill_at_ = kNever, killed_at_ = kNever;
  TimePoint give_up_at_ = kNever, cut_logs_at_ = kNever;
  TimePoint pass_on_saving_at_ = TimePoint::min();  // not before
};

}  // namespace dtrain::job
