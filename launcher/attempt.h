// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/loop/loop.h"
#include "dtrain/v1/elastic.pb.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/node.pb.h"
#include "launcher/code.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/job/job_core.h"
#include "launcher/job_records.h"
#include "launcher/output/router.h"
#include "launcher/plan/plan.h"
#include "launcher/report/facts.h"
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

// One attempt of a launch, from its first connection until nothing of it is left. Loop thread.
class Attempt {
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
  // Those that are not set do nothing.
  struct Handlers {
    absl::AnyInvocable<void(const plan::Plan&)> on_plan = [](const plan::Plan&) {};
    absl::AnyInvocable<void(const v1::StdinTaken&)> on_stdin_taken = [](const auto&) {};
    absl::AnyInvocable<void()> on_runs = [] {};  // all workers have started
    absl::AnyInvocable<void(job::Warn)> on_warning = [](const job::Warn&) {};
    // All nodes have the code: what was sent, in words.
    absl::AnyInvocable<void(std::string sent)> on_staged = [](const std::string&) {};
    // A node says how its GPUs are.
    absl::AnyInvocable<void(NodeId node, const v1::GpuStates&)> on_gpus =
        [](NodeId, const v1::GpuStates&) {};
    // Of a host of an elastic job, unread.
    absl::AnyInvocable<void(v1::ElasticUp)> on_elastic = [](const v1::ElasticUp&) {};
    // The answer to AttemptRun::LookAtCheckpoint. `trouble`: why it cannot be known; or empty.
    absl::AnyInvocable<void(bool newer, const std::string& trouble)> on_checkpoint =
        [](bool, const std::string&) {};
    // After each event of the job, with the node that it was of, if of one.
    absl::AnyInvocable<void(std::optional<NodeId> of)> on_event = [](std::optional<NodeId>) {};
    absl::AnyInvocable<void(Rank rank)> on_rank_ended = [](Rank) {};
    absl::AnyInvocable<void()> on_changed = [] {};  // after one or several of them
    // It is over, and the connections that it had have ended. Once; not to destroy it from within.
    absl::AnyInvocable<void()> on_over = [] {};
    // Another launcher has the job.
    absl::AnyInvocable<void(std::string text)> on_superseded = [](const std::string&) {};
  };

  virtual ~Attempt() = default;

  // Connects to the hosts.
  virtual void Begin(const std::vector<hosts::HostEntry>& hosts) = 0;
  // What comes from the user: UserSignal, OutputFailed.
  virtual void Feed(job::Event event) = 0;
  virtual void SendStdin(Rank rank, absl::string_view data, bool end) = 0;
  // Valid until the next event of any kind.
  virtual report::JobFacts facts() const = 0;
  // When the workers of lost nodes have ended, by their own lease. The past: none are lost.
  virtual TimePoint dead_at() const = 0;
  // As JobCore::unheard().
  virtual std::vector<std::pair<NodeId, TimePoint>> unheard() const { return {}; }
  // As JobCore::stopped().
  virtual const std::string& stopped() const = 0;
  virtual const report::SlowestNodes& slowest() const = 0;
};

}  // namespace dtrain
