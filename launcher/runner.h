// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "launcher/cli/options.h"
#include "launcher/job/job_core.h"
#include "launcher/node_links.h"
#include "launcher/node_output.h"
#include "launcher/output/router.h"
#include "launcher/output/stdin_source.h"
#include "launcher/report/facts.h"
#include "launcher/report/progress.h"
#include "launcher/report/timeline.h"
#include "launcher/status/status_server.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/ways.h"

namespace dtrain {

// Carries out one launch: feeds JobCore with what happens and does what it decides. Loop thread.
class Runner {
 public:
  Runner(loop::Loop& loop, cli::LaunchOptions options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // From the first connection to the report. Returns the exit code of `dtrain launch`.
  int Run();

 private:
  absl::Status Prepare();
  absl::Status PrepareStatus();
  absl::Status PrepareStdin();
  NodeLinks::Handlers LinkHandlers();

  void Feed(job::Event event);
  void Do(job::Action& action);
  void OnJobEvent(NodeId id, v1::JobEvent event);
  void OnLogs(NodeId id, const v1::LogChunk& chunk);
  void OnLogsEnd(NodeId id, absl::Status status);
  void OnLogsFault(NodeId id, absl::string_view why);
  void OnSignal(int signal);
  void OnPlan();
  void OnFinish();
  void SayEnd();
  void WriteFiles();
  void Leave();
  report::JobFacts Facts() const;
  std::string StatusLine(TimePoint now);
  void Warn(absl::string_view text);  // nothing when --quiet
  int64_t WallNow() const;

  loop::Loop& loop_;
  loop::BlockingPool beside_{1};  // what a start needs later
  cli::LaunchOptions options_;
  transport::AgentBinary agent_;
  transport::Ways ways_;
  output::OutputRouter router_;
  std::unique_ptr<output::StdinSource> stdin_;  // null: nobody wants it
  std::unique_ptr<report::Timeline> timeline_;  // null: nobody wants one
  std::unique_ptr<job::JobCore> core_;
  std::unique_ptr<status::StatusServer> status_;  // null: a dry run
  std::optional<NodeOutput> node_output_;  // once there is a core, and a status server if any
  NodeLinks links_;
  report::SlowestNodes slowest_;
  report::Progress progress_;
  loop::Timer deadline_;
  loop::Timer leave_timer_;
  std::deque<job::Event> events_;  // that came while actions were being carried out
  bool feeding_ = false;
  const TimePoint begin_ = Clock::now();
  const int64_t begin_unix_nanos_ = absl::GetCurrentTimeNanos();
  Duration asleep_ = loop::Loop::TimeAsleep();  // when last looked at
  bool stdin_started_ = false;
  bool finishing_ = false;
  bool writing_ = false;   // the connections are closed, the last output is not yet written
  bool unwanted_ = false;  // that output, by a signal since the end
  std::vector<std::string> details_;  // warnings that are told only if the end fails
  int exit_code_ = 0;
};

}  // namespace dtrain
