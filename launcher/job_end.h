// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "common/os/scratch_folder.h"
#include "launcher/cli/options.h"
#include "launcher/end_hook.h"
#include "launcher/job_records.h"
#include "launcher/output/router.h"
#include "launcher/report/facts.h"
#include "launcher/report/progress.h"
#include "launcher/report/timeline.h"
#include "launcher/status/status_server.h"

namespace dtrain {

// After Ctrl-C nobody waits for a terminal that takes nothing (Ctrl-S).
inline constexpr Duration kOutputWait = std::chrono::seconds(2);

// Tells how a launch has ended, to all who are told: the report, the files that the user asked for,
// a detached job's summary and --on-end. Loop thread.
class JobEnd {
 public:
  // All outlive it.
  struct Around {
    loop::Loop& loop;
    const cli::LaunchOptions& options;
    output::OutputRouter& router;
    JobRecords* records = nullptr;           // of a detached job
    report::Timeline* timeline = nullptr;    // null: nobody wants one
    status::StatusServer* status = nullptr;  // null: nobody can ask
    const report::SlowestNodes& slowest;     // of the last attempt
    int64_t begin_unix_nanos = 0;
  };
  // `facts`: with the verdict. `done` is called once everyone was told, or nobody listens.
  JobEnd(const Around& around, absl::AnyInvocable<report::JobFacts()> facts, loop::Task done);

  // `details`: warnings that matter only if something may be left behind. `stopped`: who has
  // stopped the launch does not wait for long until its last output is taken.
  void Begin(std::vector<std::string> details, bool stopped);
  // Ends the wait for log files. False: there is none.
  bool StopWaiting();
  // Of `dtrain launch`.
  int exit_code() const { return exit_code_; }

 private:
  void OnFilesOver();
  void BeginAttached();
  void SayReport();
  void WriteFiles();
  void SayUnwritten(const absl::Status& why);
  // "output was lost: <why>"; empty: none was, or it is a detached launcher's log.
  std::string LostOutput() const;
  void SayLostOutput();
  void BeginDetached();
  void RunHook(loop::Task then);
  // Of a job with a terminal.
  void KeepRecord();
  void WhenKept(loop::Task then);
  void TellRecord() const;
  void RunOwnHook(loop::Task then);
  absl::StatusOr<std::string> WriteOwnSummary();
  absl::Status StartOwnHook(const std::string& command, EndHook::Done over);
  void FinishStatus();
  void Settle();
  void FinishOutput();
  void Warn(absl::string_view text);  // nothing when --quiet
  std::string ResultJson();

  const Around around_;
  absl::AnyInvocable<report::JobFacts()> facts_;
  loop::Task done_;
  std::vector<std::string> details_;
  bool stopped_ = false;  // nobody waits for long
  bool files_over_ = false;
  std::string missing_;  // in the log files
  int exit_code_;
  loop::Timer patience_;
  loop::Timer summary_timer_;  // until the disk takes it
  bool summary_failed_ = false;
  std::unique_ptr<EndHook> hook_;
  std::optional<os::ScratchFolder> summary_folder_;
  bool own_hook_begun_ = false;
  loop::PatientCall keeping_;
  bool kept_ = false;  // the record is written, or nobody waits for it
  absl::Status kept_status_;
  std::vector<loop::Task> when_kept_;
};

}  // namespace dtrain
