// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "launcher/attempt.h"
#include "launcher/attempt_run.h"
#include "launcher/elastic_run.h"
#include "launcher/output/stdin_source.h"
#include "launcher/prepared_launch.h"
#include "launcher/status/status_server.h"

namespace dtrain {

// The attempt that a launch is at, or, in a pause, the last one. Makes it, passes it what the user
// says and types, and passes on what it reports: to our output, the status server and a detached
// job's folder. Loop thread.
class PresentAttempt {
 public:
  struct Handlers {
    absl::AnyInvocable<void()> on_runs;     // all workers have started
    absl::AnyInvocable<void()> on_changed;  // some of its facts have
    absl::AnyInvocable<void(bool newer, const std::string& trouble)> on_checkpoint;
    absl::AnyInvocable<void()> on_over;  // its output is on disk: the next may be made
    absl::AnyInvocable<void(const std::string& text)> on_superseded;
  };
  PresentAttempt(PreparedLaunch& launch, Handlers handlers)
      : launch_(launch), handlers_(std::move(handlers)) {}
  ~PresentAttempt();
  PresentAttempt(const PresentAttempt&) = delete;
  PresentAttempt& operator=(const PresentAttempt&) = delete;

  // Before the first Make. The error says what to do.
  absl::Status OpenStdin();
  // Null: nobody can ask.
  void ShowOn(status::StatusServer* status) { status_ = status; }

  // Replaces the last one. With `before`: an attempt that the journal has, to be taken over.
  void Make(hosts::HostList hosts, const job::JobOptions& options);
  void Make(hosts::HostList hosts, const job::JobOptions& options, const v1::JournalState& before);
  // The files of a detached job's output, for this attempt. Blocks.
  absl::Status OpenLogs();
  void Begin();
  void TakeOver(const v1::JournalState& before);
  // The next one is about to be made: what the user says waits until it begins.
  void Hold() { held_ = true; }
  // UserSignal, OutputFailed.
  void Feed(job::Event event);
  void EndInput();  // for all its workers
  void LookAtCheckpoint() { fixed_->LookAtCheckpoint(); }
  void Keep(const std::vector<NodeId>& nodes, AttemptRun::OnKept on_kept) {
    fixed_->Keep(nodes, std::move(on_kept));
  }
  // Nobody reads our stdin any more.
  void CloseStdin() { stdin_.reset(); }
  // Cuts its connections. No attempt is left.
  void Drop();

  bool is_there() const { return attempt_ != nullptr; }
  const Attempt& now() const { return *attempt_; }    // is_there()
  const AttemptRun* fixed() const { return fixed_; }  // null: its ranks change
  const std::vector<hosts::HostEntry>& hosts() const { return hosts_; }
  // Warnings of all attempts that matter only if the end fails.
  const std::vector<std::string>& details() const { return details_; }

 private:
  Attempt::Around AroundIt();
  Attempt::Handlers AttemptHandlers();
  void OnPlan(const plan::Plan& plan);
  void OnRuns();
  void OnWarning(job::Warn warn);
  void OnOver();
  void OnKept();

  PreparedLaunch& launch_;
  Handlers handlers_;
  status::StatusServer* status_ = nullptr;        // null: nobody can ask
  std::unique_ptr<output::StdinSource> stdin_;    // null: no worker reads it
  std::optional<ElasticRun::Past> elastic_past_;  // if its ranks change
  std::vector<hosts::HostEntry> hosts_;
  uint32_t number_ = 0;
  std::unique_ptr<Attempt> attempt_;
  AttemptRun* fixed_ = nullptr;  // attempt_, unless its ranks change
  bool held_ = false;
  std::vector<job::Event> waiting_;  // what the user says meanwhile
  std::vector<std::string> details_;
};

}  // namespace dtrain
