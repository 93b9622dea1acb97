// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "agent/session/job_status.h"
#include "agent/session/leftovers.h"
#include "agent/session/log_relay.h"
#include "agent/session/session_events.h"
#include "agent/session/shepherd_channel.h"
#include "agent/session/surroundings.h"
#include "common/base/clock.h"
#include "dtrain/v1/state.pb.h"

namespace dtrain::session {

// By the shepherd's own word, which counts for its own report and for what its end leaves.
Reported ReportedBy(const v1::Report& report);
// Of a job that another agent has started. What it has reserved that agent wrote down; without the
// record its shepherd's word keeps others away, at worst from more than it has.
Reported ReportedBy(const v1::Report& report, const v1::JobRecord& record);
v1::Reserve ReservedBy(const v1::Report& report, const v1::JobRecord& record);

// A job as its shepherd tells of it: its status, its output, and what it leaves behind. Loop
// thread.
class ReportedJob {
 public:
  // Hands over what it means for the session, which may destroy this.
  using Feed = std::function<void(const Event& event)>;
  // `hello`: outlives this, and is empty until the launcher has said it.
  ReportedJob(const Surroundings& agent, const v1::Hello& hello, uid_t owner,
              ShepherdChannel& shepherd, Feed feed, Leftovers::Warn warn);
  ~ReportedJob();

  void OnEvent(v1::ShepherdEvent event);
  void OnReport(v1::Report report);
  void SetStopping() {
    status_.SetStopping();
    in_name_.SetStopping();
  }
  bool has_part() const { return status_.has_part(); }

  // What the job uses here by its shepherd's word, for an agent that was asked to reserve nothing.
  v1::Reserve Used() const;
  // All but whose job it is, and since when.
  v1::JobOnNode Describe(SessionState state, bool away) const;
  // The same of what anyone may know; whatever its ranks and its command are, it costs little.
  v1::JobOnNode DescribeInName(SessionState state, bool away) const;
  LogRelay& logs() { return relay_; }
  Leftovers& leftovers() { return leftovers_; }

 private:
  LogRelay::Handlers LogHandlers();
  absl::Status Check(const v1::JobOnNode& job) const;
  // In the place of what `bytes` was.
  absl::Status Count(const google::protobuf::Message& word, size_t& bytes);

  loop::Loop& loop_;
  const v1::Hello& hello_;
  ShepherdChannel& shepherd_;
  const Feed feed_;
  JobStatus status_;
  JobStatus in_name_;  // of what anyone may know
  LogRelay relay_;
  Leftovers leftovers_;
  TimePoint kills_due_{};
  const std::shared_ptr<rpc::SharedLimit> reports_;
  size_t report_bytes_ = 0, end_bytes_ = 0;  // of them
};

}  // namespace dtrain::session
