// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/auth/identity.h"
#include "agent/session/log_relay.h"
#include "agent/session/log_source.h"
#include "agent/session/roster.h"
#include "agent/session/surroundings.h"
#include "agent/spawn/quarantine.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"

namespace dtrain::session {

// How much of the loop's time the questions of one user take: a tenth at most, in the long run.
// Pure.
class QuestionTime {
 public:
  // Until then, a question that can wait does.
  TimePoint due() const { return due_; }
  // From then on, one that cannot wait is answered.
  TimePoint answered_from() const { return due_ - kAhead; }
  void Take(TimePoint begin, Duration cost) { due_ = std::max(due_, begin) + kPart * cost; }

 private:
  static constexpr int kPart = 10;
  // Programs ask several questions in a row: these may take a tenth of this at once.
  static constexpr Duration kAhead = std::chrono::seconds(5);

  TimePoint due_{};
};

// Answers callers other than launchers about the node and its jobs, and ends a job for them.
// `peer` gets to know of them what it may, as the rules of `method` are, and is refused the rest.
// Loop thread.
class Inquiries {
 public:
  Inquiries(Surroundings agent, spawn::Quarantine& quarantine, Roster& roster)
      : agent_(std::move(agent)), quarantine_(quarantine), roster_(roster) {}

  // Jobs of others it sees only in name. Callers of one user share reports, and wait until they
  // have QuestionTime for the next. RESOURCE_EXHAUSTED: many of them wait for one already.
  void ReportNode(const auth::Identity& peer, absl::string_view method,
                  absl::AnyInvocable<void(absl::StatusOr<v1::NodeReport>)> done);
  // The same list at once, without the look at the node that a report takes. What `done` takes
  // counts as the user's QuestionTime; it calls none of these three. RESOURCE_EXHAUSTED: none is
  // left.
  void ListJobs(const auth::Identity& peer, absl::string_view method,
                absl::FunctionRef<void(const absl::StatusOr<std::vector<v1::JobOnNode>>&)> done);
  // Likewise the job's last attempt. `owner`: an account, or empty if auth::Choose is to find the
  // owner. NOT_FOUND is only for callers who may know that.
  void DescribeJob(const auth::Identity& peer, absl::string_view method, absl::string_view job_id,
                   absl::string_view owner,
                   absl::FunctionRef<void(const absl::StatusOr<v1::JobOnNode>&)> done);
  void ReadLog(const auth::Identity& peer, absl::string_view method,
               const v1::ReadLogRequest& request, LogRelay::OnRead done);
  // As LogRelay::Follow. Ends with the session.
  absl::StatusOr<std::shared_ptr<LogSource>> FollowLog(const auth::Identity& peer,
                                                       absl::string_view method,
                                                       const v1::ReadLogRequest& request,
                                                       LogSource::Handlers handlers);
  absl::StatusOr<v1::StopJobReply> StopJob(const auth::Identity& peer,
                                           const v1::StopJobRequest& request);
  // What ReportNode tells of the agent itself: all but inventory and jobs. Without it nobody calls
  // ReportNode's agent resident: it tells no time of its start.
  void SetAbout(absl::AnyInvocable<v1::NodeReport()> about) { about_ = std::move(about); }

 private:
  using OnReport = absl::AnyInvocable<void(absl::StatusOr<v1::NodeReport>)>;
  // Of one user.
  struct Callers {
    auth::Identity peer;
    std::vector<OnReport> waiting = {};
    QuestionTime time = {};
    std::unique_ptr<loop::Timer> timer = nullptr;
  };

  Callers& CallersOf(const auth::Identity& peer);
  // RESOURCE_EXHAUSTED: not now.
  absl::Status MayAskOfJobs(const Callers& callers) const;
  std::vector<v1::JobOnNode> JobsFor(const auth::Identity& peer) const;
  v1::NodeReport MakeReport(const auth::Identity& peer, v1::Inventory inventory);
  void Answer(Callers& callers);

  const Surroundings agent_;
  spawn::Quarantine& quarantine_;
  Roster& roster_;
  absl::AnyInvocable<v1::NodeReport()> about_;
  std::map<std::string, Callers> callers_;  // those who wait for a report, or would have to
};

}  // namespace dtrain::session
