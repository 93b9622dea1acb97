// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/loop/loop.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/campaign_run.h"
#include "launcher/cli/options.h"
#include "launcher/detached_job.h"
#include "launcher/detaching.h"
#include "launcher/job_end.h"
#include "launcher/job_records.h"
#include "launcher/prepared_launch.h"
#include "launcher/status/status_server.h"

namespace dtrain {

// Carries out one launch: prepares it, runs its attempts, obeys signals, answers queries and
// reports the end. Loop thread.
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
  int Refuse(const absl::Status& why);
  bool is_detached() const { return detached_job_ != nullptr; }
  void OnOutputFailed(const absl::Status& why);
  void OnSignal(int signal);
  void OnEnd();
  void LeaveJob(const std::string& text, int exit_code);
  void Leave() { loop_.Stop(); }

  loop::Loop& loop_;
  PreparedLaunch launch_;
  CampaignRun campaign_;
  std::unique_ptr<status::StatusServer> status_;  // null: a dry run
  std::unique_ptr<DetachedJob> detached_job_;     // null unless detached
  Detaching detaching_;
  std::unique_ptr<JobEnd> end_;  // once the verdict is written down
  int exit_code_ = 0;
};

}  // namespace dtrain
