// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/moved_jobs.h"

namespace dtrain::detached {

// Which ended jobs are kept: those with `keep` always, of the others the most recent ones. `jobs`
// counts detached jobs and those that ended where they were launched each by themselves, and for
// `bytes` the latter go first: a loop of short launches costs no detached job its output.
struct Retention {
  absl::Duration age = absl::Hours(24 * 30);
  size_t jobs = 500;
  uint64_t bytes = uint64_t{20} << 30;
};

// All detached jobs of a user, in a folder that nobody else can change:
//
//   jobs/JOB/    JobFolder; .new.JOB and .gone.JOB are being made and removed
//   keys/KEY     the id of the job that was accepted with it
//   index        jobs that have ended; rebuilt where it is missing or damaged
//   lock         held while a job is made or removed
//   looks        when ages were looked at (SureTime)
//   moved/JOB    one that went to another machine (MovedJob)
//   incoming/JOB one that comes from there (IncomingJob)
//   lost+found/  folders of jobs whose journals are damaged
//
// Calls may block; those that may have much to do, or wait for another process, beat meanwhile. Any
// number of processes may use one folder at once.
class Jobs {
 public:
  // $XDG_STATE_HOME/dtrain or ~/.local/state/dtrain.
  static absl::StatusOr<std::string> UsualPlace();
  // The same. `may_ask` is called with each place before its file system is asked for anything, as
  // it may not answer. UNAVAILABLE: it was false.
  static absl::StatusOr<std::string> UsualPlace(
      absl::FunctionRef<bool(const std::string& place)> may_ask);
  // What is left to do for a job that has ended takes no longer; Remove waits for it.
  static constexpr Duration kRestPatience = std::chrono::seconds(5);
  explicit Jobs(std::string place, Duration rest_patience = kRestPatience)
      : place_(std::move(place)), rest_patience_(rest_patience) {}

  const std::string& place() const { return place_; }
  // That nobody else can change what is read there. A missing folder is fine: it has no jobs.
  absl::Status Check() const;
  // Makes it where it is missing.
  absl::Status Prepare() const;
  // Likewise, and whether anything can be written there now.
  absl::Status Try() const;

  struct AcceptedJob {
    JobFolder folder;
    // Accepted before, with this id or key. Perhaps by a caller that was killed before it could
    // start a launcher: then nobody holds the job.
    bool was_there = false;
    std::string moved_to = {};  // the machine that has it now; then there is no folder here
  };
  // A crash of the machine does not undo it. INVALID_ARGUMENT: id, name or key
  // cannot be one; ALREADY_EXISTS: id or key belong to a job of another spec (the environment does
  // not count), or the name to a running one. Other errors: the folder is missing and cannot be
  // made, others can change it, or nothing can be written there (exit code kExitState).
  // `fill` is called with the folder of a new job before anybody can find it.
  using Fill = std::function<absl::Status(const JobFolder& draft)>;
  absl::StatusOr<AcceptedJob> Accept(const v1::Spec& spec, const Fill& fill = nullptr,
                                     Beat beat = NoBeat) const;

  // A job that has ended already, and was not here while it ran. Readers see all of it or nothing;
  // a crash of the machine may undo it. Makes the folders where they are missing.
  absl::Status AddEnded(const std::string& job_id, const Fill& fill) const;

  // What Accept would refuse, of a job that must be new here. The folder need not exist.
  absl::Status CheckNew(const v1::Spec& spec) const;

  // Running ones and those that have ended, in no order.
  absl::StatusOr<std::vector<v1::JobEntry>> List() const;
  // Likewise, with those that went to another machine: here they have ended.
  absl::StatusOr<std::vector<v1::JobEntry>> Known() const;
  // As ChooseJob of the known ones. NOT_FOUND also of one that went away, with where it is.
  absl::StatusOr<JobFolder> Find(absl::string_view text) const;

  // The job is on another machine now: its folder here goes, and whoever names it within 30 days is
  // told. `its_lock`: no launcher here has it.
  absl::Status MoveTo(const std::string& host, const JobFolder& job, os::FileLock its_lock) const;
  // It did not arrive, and nobody is to be told of it.
  void ForgetMove(const std::string& job_id) const;
  // What to tell of a job that went; empty: it did not.
  std::string WhereItWent(const std::string& job_id) const;
  // As MoveTo, of a job that has never been here as far as anybody is concerned.
  absl::Status Discard(const JobFolder& job, os::FileLock its_lock) const;

  // A job has ended, and nothing is left to do for it.
  absl::Status Settle(const JobFolder& job) const;
  // FAILED_PRECONDITION: it has not ended. `force`: also one whose files are damaged, or that has
  // not ended and has no launcher.
  absl::Status Remove(const JobFolder& job, bool force = false, Beat beat = NoBeat) const;
  // The time up to which ages are counted: that of an earlier call, a day (or `age`, if that is
  // less) before `now`. So a clock that is ahead for one launch makes no job old. InfinitePast:
  // there was none.
  absl::Time SureTime(absl::Time now, absl::Duration age) const;
  // Removes ended jobs until these limits hold. Returns their ids.
  absl::StatusOr<std::vector<std::string>> Prune(const Retention& most, absl::Time now,
                                                 Beat beat = NoBeat) const;
  // A part of that, for the end of a launcher, which has added its own job: the hundred oldest at
  // most, and none while another process has the lock.
  absl::StatusOr<std::vector<std::string>> PruneSome(const Retention& most, absl::Time now) const;

 private:
  std::string Path(absl::string_view name) const;
  JobFolder Folder(absl::string_view id) const;
  absl::StatusOr<os::FileLock> Lock(Duration patience, Beat beat = NoBeat) const;
  absl::StatusOr<AcceptedJob> FindAccepted(const v1::Spec& spec) const;
  absl::Status CheckWords(const v1::Spec& spec) const;
  absl::Status CheckName(const v1::Spec& spec) const;
  MovedJobs Moved() const;
  absl::Status MoveAway(const v1::JobEntry& job) const;
  absl::Status RemoveRemains(absl::Span<const std::string> names, Beat beat) const;
  std::vector<v1::JobEntry> Surplus(const Retention& most, absl::Time now, size_t at_most) const;
  absl::StatusOr<std::vector<std::string>> RemoveAll(absl::Span<const v1::JobEntry> jobs,
                                                     os::FileLock lock, size_t most_remains,
                                                     Beat beat = NoBeat) const;

  std::string place_;
  Duration rest_patience_;
};

}  // namespace dtrain::detached
