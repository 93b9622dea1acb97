// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "launcher/attempt.h"
#include "launcher/cli/options.h"
#include "launcher/code.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/job_records.h"
#include "launcher/output/router.h"
#include "launcher/report/facts.h"
#include "launcher/report/timeline.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/ways.h"

namespace dtrain {

// What a launch needs before its first connection and all its attempts share: its options, our
// output, the code, the timeline, the ways to the hosts. Loop thread.
class PreparedLaunch {
 public:
  // `records`: null unless the job is detached.
  PreparedLaunch(loop::Loop& loop, cli::LaunchOptions options, std::unique_ptr<JobRecords> records,
                 absl::AnyInvocable<void(absl::Status)> on_output_failed);
  PreparedLaunch(const PreparedLaunch&) = delete;
  PreparedLaunch& operator=(const PreparedLaunch&) = delete;

  // Opens our output, takes the code, and checks that the result file and the timeline can be
  // written. Blocks.
  absl::Status PrepareFiles();
  // Names the job and makes the ways to `hosts`, all that attempts may use. Unauthenticated and
  // InvalidArgument come from Ways.
  absl::Status PrepareHosts(const hosts::HostList& hosts);
  // It may be the reason that the launch cannot be prepared.
  void DropResultFile() { options_.result_json.clear(); }
  // See job::JobOptions.
  void TellUnfinishedLines(std::function<std::string(uint32_t rank)> line) {
    options_.job.unfinished_line = std::move(line);
  }
  void Warn(absl::string_view text);  // nothing when --quiet

  loop::Loop& loop() { return loop_; }
  const cli::LaunchOptions& options() const { return options_; }
  JobRecords* records() { return records_.get(); }  // null unless detached
  const LaunchClock& clock() const { return clock_; }
  transport::Ways& ways() { return ways_; }
  output::OutputRouter& router() { return router_; }
  report::Timeline* timeline() { return timeline_.get(); }  // null: nobody wants one
  Code* code() { return code_.get(); }                      // null: none is staged
  const report::CodeFacts* code_facts() const { return code_ == nullptr ? nullptr : &code_facts_; }

 private:
  transport::WayOptions Telling(transport::WayOptions ways);
  absl::Status PrepareCode();

  loop::Loop& loop_;
  loop::BlockingPool beside_{1};  // runs what a start needs later
  cli::LaunchOptions options_;
  std::unique_ptr<JobRecords> records_;
  const LaunchClock clock_;
  transport::AgentBinary agent_;
  transport::Ways ways_;
  output::OutputRouter router_;
  std::unique_ptr<report::Timeline> timeline_;
  std::unique_ptr<Code> code_;
  report::CodeFacts code_facts_;
};

}  // namespace dtrain
