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
#include "launcher/node_link.h"
#include "launcher/output/router.h"
#include "launcher/output/stdin_source.h"
#include "launcher/report/facts.h"
#include "launcher/report/progress.h"
#include "launcher/report/timeline.h"
#include "launcher/status/status_server.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/redials.h"
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
  struct Node {
    std::unique_ptr<NodeLink> link;  // null: not connected, or no more
    v1::Finished finished;           // once it came
    bool logs_ended = false;         // they may do so before it comes
    bool said_goodbye = false;
    bool disconnecting = false;
    loop::Timer goodbye_timer;
    explicit Node(loop::Loop& loop) : goodbye_timer(loop) {}
  };

  absl::Status Prepare();
  void StartGrpc();
  absl::Status PrepareTimeline();
  absl::Status PrepareStatus();
  absl::Status PrepareStdin();
  void Connect(NodeId id);

  void Feed(job::Event event);
  void Do(job::Action& action);
  void ToNode(NodeId id, const SharedRequest& request);
  const SharedRequest& CommonBytes(const std::shared_ptr<const v1::JobPart>& common);
  void Trace(const job::Event& event, TimePoint now);
  void TraceNode(NodeId id, absl::string_view part, TimePoint now);
  void OnJobEvent(NodeId id, v1::JobEvent event);
  void OnFinished(NodeId id, const v1::Finished& finished);
  bool IsOn(NodeId id, uint32_t rank) const;
  void OnLogs(NodeId id, const v1::LogChunk& chunk);
  void EndStreams(NodeId id);
  void OnLogsFault(NodeId id, absl::string_view why);
  void OnSignal(int signal);
  void Disconnect(NodeId id);
  void OnPlan();
  void OnFinish();
  void Leave();
  report::JobFacts Facts() const;
  std::string StatusLine(TimePoint now);
  void Warn(absl::string_view text);  // nothing when --quiet
  NodeId NodeOf(Rank rank) const;
  int64_t WallNow() const;

  loop::Loop& loop_;
  loop::BlockingPool beside_{1};  // what a start needs later
  cli::LaunchOptions options_;
  transport::AgentBinary agent_;
  transport::Ways ways_;
  transport::Redials redials_;
  link::KeptBytes kept_{link::kKeptPerLaunch};
  output::OutputRouter router_;
  std::unique_ptr<output::StdinSource> stdin_;  // null: nobody wants it
  std::unique_ptr<report::Timeline> timeline_;  // null: nobody wants one
  std::unique_ptr<job::JobCore> core_;
  std::unique_ptr<status::StatusServer> status_;  // null: a dry run
  std::vector<std::unique_ptr<Node>> nodes_;
  report::SlowestNodes slowest_;
  report::Progress progress_;
  loop::Timer deadline_;
  loop::Timer leave_timer_;
  std::deque<job::Event> events_;  // that came while actions were being carried out
  bool feeding_ = false;
  // The last that several requests have in common.
  std::shared_ptr<const v1::JobPart> common_;
  std::optional<SharedRequest> common_bytes_;
  const SharedBeat beat_;
  size_t leaving_ = 0;  // connections that are being ended
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
