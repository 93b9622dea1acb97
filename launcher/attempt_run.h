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
#include "launcher/attempt.h"
#include "launcher/code.h"
#include "launcher/job/job_core.h"
#include "launcher/node_links.h"
#include "launcher/node_output.h"
#include "launcher/report/progress.h"

namespace dtrain {

// An attempt of which all nodes are known from the beginning: feeds JobCore with what happens on
// them and does what it decides. Nothing of it outlives it but what its agents do by themselves.
// Loop thread.
class AttemptRun : public Attempt {
 public:
  AttemptRun(const Around& around, hosts::HostList hosts, const job::JobOptions& options,
             Handlers handlers);
  // One that a launcher before us had begun, as the journal has it.
  AttemptRun(const Around& around, hosts::HostList hosts, const job::JobOptions& options,
             const v1::JournalState& before, Handlers handlers);
  ~AttemptRun() override;
  AttemptRun(const AttemptRun&) = delete;
  AttemptRun& operator=(const AttemptRun&) = delete;

  void Begin(const std::vector<hosts::HostEntry>& hosts) override;
  // Connects to them, of an attempt that is taken over.
  void TakeOver(const std::vector<hosts::HostEntry>& hosts, const v1::JournalState& before);
  // Output that may be forgotten by the nodes.
  void SetSafe(const v1::LogPositions& positions);
  // To the one host of a run of an elastic job.
  void SendElastic(v1::ElasticDown down);
  // Has agents whose sessions end with our connections keep the job for another launcher; `on_kept`
  // is called for each, with why it cannot be or "".
  using OnKept = absl::AnyInvocable<void(NodeId, const std::string& refused)>;
  void Keep(const std::vector<NodeId>& nodes, OnKept on_kept);
  // Asks the node of rank 0, while its workers run, whether they have written a checkpoint.
  void LookAtCheckpoint();
  // The disk has taken some.
  void OnRoom();
  void Feed(job::Event event) override;
  void SendStdin(Rank rank, absl::string_view data, bool end) override;
  report::JobFacts facts() const override { return report::FactsOf(core_); }
  TimePoint dead_at() const override { return core_.dead_at(); }
  std::vector<std::pair<NodeId, TimePoint>> unheard() const override { return core_.unheard(); }
  const std::string& stopped() const override { return core_.stopped(); }
  const report::SlowestNodes& slowest() const override { return slowest_; }

  const job::JobCore& core() const { return core_; }
  const job::JobOptions& options() const { return options_; }
  v1::AttemptRuns Runs() const;  // once they do
  // How much of each output was shown; ascending by rank, then stream.
  std::vector<v1::LogPosition> Taken() const;

 private:
  NodeLinks::Handlers LinkHandlers();
  void Do(job::Action& action);
  void OnJobEvent(NodeId id, v1::JobEvent event);
  void OnCode(NodeId id, const v1::JobEvent& event);
  void OnLogs(NodeId id, v1::LogChunk chunk);
  void OnLogsEnd(NodeId id, absl::Status status);
  void OnLogsFault(NodeId id, absl::string_view why);
  void SayGoodbye(job::ToAgent goodbye);
  void Disconnect(NodeId node);
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
  job::SignReader signs_;
  NodeLinks links_;
  std::optional<CodeSender> code_;  // while it is staged
  report::SlowestNodes slowest_;
  loop::Timer deadline_;
  std::deque<job::Event> events_;             // that came while actions were being carried out
  std::deque<NodeId> unread_;                 // whose output waits for the disk
  std::map<NodeId, std::string> gpu_errors_;  // as they were written down
  // Nodes to say goodbye to when the journal is on disk; whether they are to be disconnected then.
  std::map<NodeId, bool> farewells_;
  OnKept on_kept_;
  bool looks_ = false;      // a node was asked to look at a checkpoint
  bool replaying_ = false;  // what is fed is in the journal already
  bool feeding_ = false;
  bool ran_ = false;
  bool finished_ = false;
  bool over_ = false;
  Duration asleep_ = loop::Loop::TimeAsleep();  // when last looked at
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain
