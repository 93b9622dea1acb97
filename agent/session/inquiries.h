// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
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

// Answers callers other than launchers about the node and its jobs, and ends a job for them.
// `peer` gets to know of them what it may, as the rules of `method` are, and is refused the rest.
// Loop thread.
class Inquiries {
 public:
  Inquiries(Surroundings agent, spawn::Quarantine& quarantine, Roster& roster)
      : agent_(std::move(agent)), quarantine_(quarantine), roster_(roster) {}

  // Jobs of others it sees only in name. Callers of one user share reports: making them takes a
  // tenth of the loop's time at most. RESOURCE_EXHAUSTED: many of them wait for one already.
  void ReportNode(const auth::Identity& peer, absl::string_view method,
                  absl::AnyInvocable<void(absl::StatusOr<v1::NodeReport>)> done);
  // The same list at once, without the look at the node that a report takes.
  absl::StatusOr<std::vector<v1::JobOnNode>> ListJobs(const auth::Identity& peer,
                                                      absl::string_view method);
  // The job's last attempt. `owner`: an account, or empty if auth::Choose is to find the owner.
  // Only callers who may know that there is no such job get NOT_FOUND.
  absl::StatusOr<v1::JobOnNode> DescribeJob(const auth::Identity& peer, absl::string_view method,
                                            absl::string_view job_id, absl::string_view owner);
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
    TimePoint due{};  // no report before
    std::unique_ptr<loop::Timer> timer = nullptr;
  };

  std::vector<v1::JobOnNode> JobsFor(const auth::Identity& peer) const;
  v1::NodeReport MakeReport(const auth::Identity& peer, v1::Inventory inventory);
  void Answer(Callers& callers);

  const Surroundings agent_;
  spawn::Quarantine& quarantine_;
  Roster& roster_;
  absl::AnyInvocable<v1::NodeReport()> about_;
  std::map<std::string, Callers> callers_;  // those who wait for a report, or may not have one yet
};

}  // namespace dtrain::session
