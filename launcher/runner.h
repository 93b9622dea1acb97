// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "launcher/attempt.h"
#include "launcher/attempt_run.h"
#include "launcher/cli/options.h"
#include "launcher/elastic_run.h"
#include "launcher/handover.h"
#include "launcher/job/campaign_core.h"
#include "launcher/job_end.h"
#include "launcher/job_records.h"
#include "launcher/output/router.h"
#include "launcher/output/stdin_source.h"
#include "launcher/report/facts.h"
#include "launcher/report/progress.h"
#include "launcher/report/timeline.h"
#include "launcher/status/status_server.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/ways.h"

namespace dtrain {

// Carries out one launch: makes the attempts that CampaignCore decides on, with all that they have
// in common: our output and input, the answers, the reports. Loop thread.
class Runner {
 public:
  // `records`: null unless the job is detached. `spec`: null, or of a launch that may be detached
  // later, without what is known only then.
  Runner(loop::Loop& loop, cli::LaunchOptions options, std::unique_ptr<JobRecords> records,
         std::unique_ptr<v1::Spec> spec);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // From the first connection to the report. Returns the exit code of `dtrain launch`.
  int Run();

 private:
  absl::Status Prepare();
  absl::Status PrepareStatus();
  absl::Status PrepareStdin();
  absl::Status PrepareCode();
  void PrepareCampaign();
  Attempt::Handlers AttemptHandlers();

  void Carry(std::vector<job::CampaignAction> actions);
  void Do(const job::BeginAttempt& begin);
  void Start(const job::JobOptions& options, const std::vector<uint32_t>& hosts);
  Attempt::Around AroundAttempts();
  void Make(hosts::HostList hosts, const job::JobOptions& options);
  void BeginJob();
  absl::Status OpenLogs();
  void LeaveIt(const std::string& why);
  void StopDetached(int signal);
  void TakeOver();
  void Conclude();
  // What cannot be prepared never runs. False: that is not a detached job that is over by it.
  bool Refuse(const std::string& why);
  void Decide(const job::CampaignEvent& event);
  void OnUser(job::Event event);  // UserSignal, OutputFailed
  void FeedUser(job::Event event);
  void OnSuperseded(const std::string& text);
  absl::Status MayDetach() const;
  void AskToDetach(absl::AnyInvocable<void(absl::Status)> may);
  absl::Status Detach();
  void LeaveToAnother();
  void OnSignal(int signal);
  void Obey(int signal);
  void OnPlan(const plan::Plan& plan);
  void OnRuns();
  void OnAttemptOver();
  void OnAttemptEnded();
  void OnEnd(job::Verdict verdict);
  void Finish();
  void OnWarning(job::Warn warn);
  void Leave();
  report::JobFacts Facts() const;
  std::string StatusLine(TimePoint now);
  void Warn(absl::string_view text);  // nothing when --quiet

  loop::Loop& loop_;
  loop::BlockingPool beside_{1};  // what a start needs later
  cli::LaunchOptions options_;
  std::unique_ptr<JobRecords> records_;  // null unless detached
  std::unique_ptr<v1::Spec> spec_;       // null: it cannot be detached
  const LaunchClock clock_;
  transport::AgentBinary agent_;
  transport::Ways ways_;
  output::OutputRouter router_;
  hosts::HostList hosts_;                         // those that attempts may use, spares last
  std::unique_ptr<output::StdinSource> stdin_;    // null: nobody wants it
  std::unique_ptr<report::Timeline> timeline_;    // null: nobody wants one
  std::unique_ptr<status::StatusServer> status_;  // null: a dry run
  std::optional<job::CampaignCore> campaign_;
  std::unique_ptr<Code> code_;                    // null: none is staged
  report::CodeFacts code_facts_;                  // of it
  std::vector<uint32_t> attempt_hosts_;           // of the present attempt, as indices of hosts_
  std::unique_ptr<Attempt> attempt_;              // the present one, or, in a pause, the last
  AttemptRun* detachable_ = nullptr;              // the same; null: its ranks change
  std::optional<ElasticRun::Past> elastic_past_;  // if they do
  bool beginning_ = false;                        // it is being written down that one begins
  std::vector<job::Event> for_attempt_;           // what the user has said meanwhile
  report::Progress progress_;
  loop::Timer pause_;
  loop::Timer stop_timer_;  // of a detached job: until a stop is written down
  bool stop_obeyed_ = false;
  loop::Timer leave_timer_;
  loop::Timer logs_timer_;  // of a detached job: until the disk takes its output again
  bool logs_failed_ = false;
  std::unique_ptr<JobEnd> end_;          // once the verdict is written down
  std::unique_ptr<Handover> handover_;   // once another launcher is to take the job over
  std::optional<job::Verdict> verdict_;  // the launch's, once it has ended
  bool stop_asked_ = false;              // by a signal: the last output is not awaited for long
  std::vector<std::string> details_;     // warnings that are told only if the end fails
  int exit_code_ = 0;
};

}  // namespace dtrain
