// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/loop/loop.h"
#include "common/os/file_lock.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/detached/job_folder.h"
#include "launcher/detached/journal.h"
#include "launcher/detached/log_store.h"
#include "launcher/job/campaign_core.h"

namespace dtrain {

// A detached job on disk, for the launcher that has it: what was there, and what it adds. Each of
// the calls that end in a task does that when a crash of the machine cannot undo the record, in the
// order of the calls. Loop thread.
class JobRecords {
 public:
  // UNAVAILABLE: another launcher has the job. NOT_FOUND: it has ended. FAILED_PRECONDITION: see
  // story::CheckMachine. Other errors are the folder's. Blocks.
  static absl::StatusOr<std::unique_ptr<JobRecords>> Take(loop::Loop& loop,
                                                          const detached::JobFolder& folder);
  ~JobRecords();

  const v1::Spec& spec() const { return spec_; }
  const detached::JobFolder& folder() const { return folder_; }
  // As launchers before us have left it.
  const v1::JournalState& before() const { return before_; }
  const v1::Launcher& self() const { return standing_.launcher; }
  // For those who wait for it; the disk need not have it.
  void Reached(detached::Standing::Stage stage);
  std::string name() const;  // "process 12 on login1"
  // `text`: one line for the user.
  void OnTrouble(absl::AnyInvocable<void(std::string text)> told) { told_ = std::move(told); }
  // What cannot be written now, since when, and why; null: nothing.
  const std::string* disk_trouble() const {
    return troubles_.empty() ? nullptr : &troubles_.begin()->second;
  }

  // So that it can be written again.
  std::string WhatToDo(const absl::Status& trouble) const;

  // GenerationTaken, before all else.
  void Begin(loop::Task then);
  void AttemptBegins(uint32_t attempt, const std::string& incarnation,
                     const std::vector<std::string>& hosts, loop::Task then);
  void AttemptRuns(v1::AttemptRuns runs, loop::Task then);
  void Fact(v1::NodeFact fact);
  void OutputLost(v1::OutputLost lost);
  void StopAsked(const std::string& by, loop::Task then);
  // By the campaign's own words, after it has decided for another attempt; `again`: under the same
  // number.
  void RestartDecided(const job::CampaignCore& campaign, const job::AttemptRecord& ended,
                      bool again, Duration wait);
  // Before the attempt is ended for one on more hosts.
  void ScaleUpDecided(uint32_t attempt, const std::string& why,
                      const std::vector<std::string>& hosts, loop::Task then);
  void Verdict(int exit_code, const std::string& message, loop::Task then);
  // The last: with the summary the job is over for everyone. Blocks.
  absl::Status WriteSummary(absl::string_view json);
  // Of --on-end; what a launcher before us had begun, and not seen to end, is begun again.
  bool hook_is_over() const { return journal_.state().has_hook(); }
  void HookBegins(loop::Task then);
  void HookEnds(int exit_code, loop::Task then);
  void Ended(loop::Task then);
  // Nothing is left to do. Blocks.
  absl::Status Settle();
  // Removes some jobs that have ended before, by the user's present configuration. Blocks, not for
  // long. Their ids.
  absl::StatusOr<std::vector<std::string>> PruneOthers() const;

  // The output of the present attempt; no more than `limit` bytes of the job's are kept. Blocks.
  absl::Status OpenLogs(uint64_t limit, detached::LogStore::Callbacks callbacks);
  detached::LogStore& logs() { return *logs_; }
  // All output that was given to logs(), and all records, are on disk.
  void Flush(loop::Task then);
  // All records that were given so far are.
  void FlushJournal(loop::Task then);
  uint32_t attempt() const { return journal_.state().attempt().attempt(); }

 private:
  JobRecords(loop::Loop& loop, detached::JobFolder folder, v1::Spec spec, os::FileLock lock,
             std::pair<detached::JournalFile, journal::Contents> opened,
             detached::Standing standing);
  void Append(v1::JournalRecord record, loop::Task then);
  void Report(const absl::Status& trouble, absl::string_view what);

  loop::Loop& loop_;
  const detached::JobFolder folder_;
  const v1::Spec spec_;
  os::FileLock lock_;
  const v1::JournalState before_;
  detached::Standing standing_;
  absl::AnyInvocable<void(std::string)> told_;
  std::map<std::string, std::string> troubles_;  // by what it is that cannot be written
  detached::Journal journal_;
  std::unique_ptr<detached::LogStore> logs_;
};

}  // namespace dtrain
