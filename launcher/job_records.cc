// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_records.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/os/fd.h"
#include "launcher/detached/jobs.h"
#include "launcher/detached/ourselves.h"
#include "launcher/detached/supervisor.h"
#include "launcher/history/retention.h"
#include "launcher/job/campaign_journal.h"
#include "launcher/journal/records.h"
#include "launcher/story/care.h"
#include "launcher/story/output.h"

namespace dtrain {
namespace {

using v1::JournalState;

detached::Jobs JobsWith(const detached::JobFolder& folder) {
  const std::filesystem::path path(folder.path());
  return detached::Jobs(path.parent_path().parent_path().string());
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobRecords>> JobRecords::Take(loop::Loop& loop,
                                                             const detached::JobFolder& folder) {
  auto spec = folder.ReadSpec();
  if (!spec.ok()) return spec.status();
  if (absl::Status checked = story::CheckMachine(folder); !checked.ok()) return checked;
  v1::Launcher self = detached::Ourselves();
  auto lock = folder.Lock(self);
  if (!lock.ok()) return lock.status();
  if (folder.IsSettled()) {
    return absl::NotFoundError(absl::StrCat(folder.id(), " has ended"));
  }
  auto opened = folder.OpenJournal();
  if (!opened.ok()) return opened.status();
  self.set_generation(opened->second.state.launcher().generation() + 1);
  const auto cgroups = os::ReadSmallFile("/proc/self/cgroup");
  detached::Standing standing;
  standing.launcher = self;
  standing.unit = detached::UnitOf(cgroups.ok() ? *cgroups : "", folder.id());
  detached::JobFolder::Describe(standing, *lock);
  return std::unique_ptr<JobRecords>(new JobRecords(
      loop, folder, *std::move(spec), *std::move(lock), *std::move(opened), std::move(standing)));
}

JobRecords::JobRecords(loop::Loop& loop, detached::JobFolder folder, v1::Spec spec,
                       os::FileLock lock,
                       std::pair<detached::JournalFile, journal::Contents> opened,
                       detached::Standing standing)
    : loop_(loop),
      folder_(std::move(folder)),
      spec_(std::move(spec)),
      lock_(std::move(lock)),
      before_(opened.second.state),
      standing_(std::move(standing)),
      journal_(loop, std::move(opened), DTRAIN_VERSION,
               [this](const absl::Status& trouble) { Report(trouble, "the journal"); }) {}

JobRecords::~JobRecords() = default;

void JobRecords::Reached(detached::Standing::Stage stage) {
  standing_.stage = stage;
  detached::JobFolder::Describe(standing_, lock_);
}

std::string JobRecords::name() const {
  return absl::StrCat("process ", self().pid(), " on ", self().host());
}

void JobRecords::Report(const absl::Status& trouble, absl::string_view what) {
  if (trouble.ok()) {
    troubles_.erase(std::string(what));
  } else {
    troubles_.try_emplace(
        std::string(what),
        absl::StrCat(what, " of ", folder_.id(), " cannot be written since ",
                     absl::FormatTime("%H:%M:%S", absl::Now(), absl::LocalTimeZone()), ": ",
                     trouble.message(), "; ", WhatToDo(trouble)));
  }
  if (!told_) return;
  told_(trouble.ok()
            ? absl::StrCat("dtrain: ", what, " of ", folder_.id(), " can be written again")
            : absl::StrCat("dtrain: warning: ", what, " of ", folder_.id(),
                           " cannot be written: ", trouble.message(),
                           "; the job goes on, and nothing more of it is acknowledged until it "
                           "can: ",
                           WhatToDo(trouble)));
}

std::string JobRecords::WhatToDo(const absl::Status& trouble) const {
  const bool full = absl::IsResourceExhausted(trouble);
  return absl::StrCat(full ? "make room in " : "see what is wrong with the disk of ",
                      folder_.path());
}

// What the journal does not take, as a plan that is too long for it, must not hold up a job.
void JobRecords::Append(v1::JournalRecord record, loop::Task then) {
  const auto next = std::make_shared<loop::Task>(std::move(then));
  const auto go_on = [next] {
    if (*next) (*next)();
  };
  const absl::Status taken = journal_.Append(std::move(record), go_on);
  if (taken.ok()) return;
  if (told_) told_(absl::StrCat("dtrain: warning: not written down: ", taken.message()));
  loop_.Post(go_on);
}

void JobRecords::Begin(loop::Task then) {
  v1::JournalRecord record;
  *record.mutable_generation_taken() = self();
  Append(std::move(record), std::move(then));
}

void JobRecords::AttemptBegins(uint32_t attempt, const std::string& incarnation,
                               const std::vector<std::string>& hosts, loop::Task then) {
  v1::JournalRecord record;
  v1::AttemptBegins& begins = *record.mutable_attempt_begins();
  begins.set_attempt(attempt);
  begins.set_generation(self().generation());
  begins.set_incarnation(incarnation);
  for (const std::string& host : hosts) begins.add_hosts(host);
  begins.set_unix_nanos(absl::GetCurrentTimeNanos());
  Append(std::move(record), std::move(then));
}

void JobRecords::AttemptRuns(v1::AttemptRuns runs, loop::Task then) {
  v1::JournalRecord record;
  *record.mutable_attempt_runs() = std::move(runs);
  record.mutable_attempt_runs()->set_unix_nanos(absl::GetCurrentTimeNanos());
  Append(std::move(record), std::move(then));
}

void JobRecords::Fact(v1::NodeFact fact) {
  v1::JournalRecord record;
  *record.mutable_node_fact() = std::move(fact);
  Append(std::move(record), nullptr);
}

void JobRecords::OutputLost(v1::OutputLost lost) {
  // A disk that hung may say so after the job's end.
  if (journal_.state().phase() == v1::JournalState::PHASE_ENDED) return;
  v1::JournalRecord record;
  *record.mutable_output_lost() = std::move(lost);
  Append(std::move(record), nullptr);
}

void JobRecords::StopAsked(const std::string& by, loop::Task then) {
  v1::JournalRecord record;
  record.mutable_stop_asked()->set_by(by);
  record.mutable_stop_asked()->set_unix_nanos(absl::GetCurrentTimeNanos());
  Append(std::move(record), std::move(then));
}

void JobRecords::RestartDecided(const job::CampaignCore& campaign, const job::AttemptRecord& ended,
                                bool again, Duration wait) {
  v1::JournalRecord record;
  v1::RestartDecided& restart = *record.mutable_restart_decided();
  restart = job::RestartOf(campaign, ended);
  restart.set_again(again);
  restart.set_unix_nanos(absl::GetCurrentTimeNanos());
  restart.set_not_before_unix_nanos(restart.unix_nanos() + std::chrono::nanoseconds(wait).count());
  for (std::string& host : campaign.left_out()) restart.add_left_out(std::move(host));
  Append(std::move(record), nullptr);
}

void JobRecords::ScaleUpDecided(uint32_t attempt, const std::string& why,
                                const std::vector<std::string>& hosts, loop::Task then) {
  v1::JournalRecord record;
  v1::ScaleUpDecided& decided = *record.mutable_scale_up();
  decided.set_attempt(attempt);
  decided.set_why(why);
  for (const std::string& host : hosts) decided.add_hosts(host);
  Append(std::move(record), std::move(then));
}

void JobRecords::Verdict(int exit_code, const std::string& message, loop::Task then) {
  if (before_.has_verdict()) return loop_.Post(std::move(then));
  v1::JournalRecord record;
  record.mutable_verdict()->set_exit_code(exit_code);
  record.mutable_verdict()->set_message(message);
  Append(std::move(record), std::move(then));
}

absl::Status JobRecords::WriteSummary(absl::string_view json) { return folder_.WriteSummary(json); }

void JobRecords::HookBegins(loop::Task then) {
  v1::JournalRecord record;
  record.mutable_hook_begins()->set_unix_nanos(absl::GetCurrentTimeNanos());
  Append(std::move(record), std::move(then));
}

void JobRecords::HookEnds(int exit_code, loop::Task then) {
  v1::JournalRecord record;
  record.mutable_hook_ends()->set_exit_code(exit_code);
  Append(std::move(record), std::move(then));
}

void JobRecords::Ended(loop::Task then) {
  v1::JournalRecord record;
  record.mutable_ended()->set_unix_nanos(absl::GetCurrentTimeNanos());
  Append(std::move(record), std::move(then));
}

absl::Status JobRecords::Settle() { return JobsWith(folder_).Settle(folder_); }

// Not by the configuration with which the job was launched: that may be of long ago.
absl::StatusOr<std::vector<std::string>> JobRecords::PruneOthers() const {
  const auto keep = history::ReadRetention(spec_.working_directory());
  if (!keep.ok()) return keep.status();
  const detached::Jobs jobs = JobsWith(folder_);
  return jobs.PruneSome(*keep, jobs.SureTime(absl::Now(), keep->age));
}

absl::Status JobRecords::OpenLogs(uint64_t limit, detached::LogStore::Callbacks callbacks) {
  logs_.reset();
  detached::LogPlace place{folder_.LogFolder(attempt()), {}, limit};
  for (const uint32_t earlier : story::AttemptsOf(folder_)) {
    if (earlier < attempt()) place.earlier.push_back(folder_.LogFolder(earlier));
  }
  callbacks.on_trouble = [this](const absl::Status& trouble) { Report(trouble, "the output"); };
  logs_ =
      std::make_unique<detached::LogStore>(loop_, journal_, std::move(place), std::move(callbacks));
  return logs_->Open();
}

// Output that is safe already waits for no record: those of how its workers have ended may be
// younger.
void JobRecords::Flush(loop::Task then) {
  logs_->Flush([this, then = std::move(then)]() mutable { journal_.Flush(std::move(then)); });
}

void JobRecords::FlushJournal(loop::Task then) { journal_.Flush(std::move(then)); }

}  // namespace dtrain
