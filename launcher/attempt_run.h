// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "launcher/code.h"
#include "launcher/job/job_core.h"
#include "launcher/job_records.h"
#include "launcher/node_links.h"
#include "launcher/node_output.h"
#include "launcher/output/router.h"
#include "launcher/report/progress.h"
#include "launcher/report/timeline.h"
#include "launcher/status/log_tails.h"
#include "launcher/transport/ways.h"

namespace dtrain {

// Our wall clock as it was when the launch began: one that is set while a job runs moves nothing.
struct LaunchClock {
  TimePoint begin;
  int64_t begin_unix_nanos = 0;

  int64_t At(TimePoint now) const {
    return begin_unix_nanos + std::chrono::nanoseconds(now - begin).count();
  }
};

// One attempt of a launch: feeds JobCore with what happens on its nodes and does what it decides.
// Nothing of it outlives it but what its agents do by themselves. Loop thread.
class AttemptRun {
 public:
  // What it shares with the attempts before and after it. All outlive it.
  struct Around {
    loop::Loop& loop;
    transport::Ways& ways;
    output::OutputRouter& router;
    status::LogTails* tails = nullptr;     // null: nobody can ask
    report::Timeline* timeline = nullptr;  // null: nobody wants one
    LaunchClock clock;
    JobRecords* records = nullptr;  // of a detached job
    Code* code = nullptr;           // that is staged
  };
  struct Handlers {
    absl::AnyInvocable<void()> on_plan;  // core().plan() is valid from now on
    absl::AnyInvocable<void(uint32_t rank, uint32_t pid)> on_worker_started;
    absl::AnyInvocable<void(Rank rank, bool closed)> on_stdin_taken;
    absl::AnyInvocable<void()> on_runs;  // all workers have started
    absl::AnyInvocable<void(job::Warn)> on_warning;
    // All nodes have the code: what was sent, in words.
    absl::AnyInvocable<void(std::string sent)> on_staged;
    // A node says how its GPUs are.
    absl::AnyInvocable<void(NodeId node, const v1::GpuStates& states)> on_gpus;
    // After each event of the job, with the node that it was of, if of one.
    absl::AnyInvocable<void(std::optional<NodeId> of)> on_event;
    absl::AnyInvocable<void(Rank rank)> on_rank_ended;
    absl::AnyInvocable<void()> on_changed;  // after one or several of them
    // It is over, and the connections that it had have ended. Once; not to destroy it from within.
    absl::AnyInvocable<void()> on_over;
    // Another launcher has the job.
    absl::AnyInvocable<void(std::string text)> on_superseded;
  };

  AttemptRun(const Around& around, hosts::HostList hosts, const job::JobOptions& options,
             Handlers handlers);
  // One that a launcher before us had begun, as the journal has it.
  AttemptRun(const Around& around, hosts::HostList hosts, const job::JobOptions& options,
             const v1::JournalState& before, Handlers handlers);
  ~AttemptRun();
  AttemptRun(const AttemptRun&) = delete;
  AttemptRun& operator=(const AttemptRun&) = delete;

  // Connects to the hosts.
  void Begin(const std::vector<hosts::HostEntry>& hosts);
  // Connects to them, of an attempt that is taken over.
  void TakeOver(const std::vector<hosts::HostEntry>& hosts, const v1::JournalState& before);
  // Output that may be forgotten by the nodes.
  void SetSafe(const v1::LogPositions& positions);
  // The disk has taken some.
  void OnRoom();
  // What comes from the user: UserSignal, OutputFailed.
  void Feed(job::Event event);
  void SendStdin(Rank rank, absl::string_view data, bool end);

  const job::JobCore& core() const { return core_; }
  const job::JobOptions& options() const { return options_; }
  v1::AttemptRuns Runs() const;  // once they do
  // How much of each output was shown; ascending by rank, then stream.
  std::vector<v1::LogPosition> Taken() const;
  const report::SlowestNodes& slowest() const { return slowest_; }

 private:
  NodeLinks::Handlers LinkHandlers();
  void Do(job::Action& action);
  void OnJobEvent(NodeId id, v1::JobEvent event);
  void OnCode(NodeId id, const v1::JobEvent& event);
  void OnLogs(NodeId id, const v1::LogChunk& chunk);
  void OnLogsEnd(NodeId id, absl::Status status);
  void OnLogsFault(NodeId id, absl::string_view why);
  void OnLeft();
  void OnRan();
  void WriteDown(NodeId id, const v1::JobEvent& event);
  void WriteDownGpus(NodeId id, const v1::GpuStates& states);
  int64_t WallNow() const { return around_.clock.At(around_.loop.Now()); }

  const Around around_;
  const job::JobOptions options_;
  Handlers handlers_;
  job::JobCore core_;
  NodeOutput node_output_;
  NodeLinks links_;
  std::optional<CodeSender> code_;  // while it is staged
  report::SlowestNodes slowest_;
  loop::Timer deadline_;
  std::deque<job::Event> events_;             // that came while actions were being carried out
  std::deque<NodeId> unread_;                 // whose output waits for the disk
  std::map<NodeId, std::string> gpu_errors_;  // as they were written down
  bool replaying_ = false;                    // what is fed is in the journal already
  bool feeding_ = false;
  bool ran_ = false;
  bool finished_ = false;
  bool over_ = false;
  Duration asleep_ = loop::Loop::TimeAsleep();  // when last looked at
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain
