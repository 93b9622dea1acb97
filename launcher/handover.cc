// SPDX-License-Identifier: Apache-2.0
#include "launcher/handover.h"

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_code.h"
#include "launcher/detached/jobs.h"
#include "launcher/detached/log_segments.h"
#include "launcher/detached/ourselves.h"
#include "launcher/detached/start.h"
#include "launcher/journal/records.h"

namespace dtrain {
namespace {

// It has to connect to all nodes.
constexpr Duration kPatience = std::chrono::seconds(30);

absl::StatusOr<detached::Supervisor> ChooseSupervisor(const std::string& place) {
  return detached::ChooseSupervisor(detached::ReadSupervisorFacts(place));
}

absl::Status WriteOutput(const Handover::Job& job, const detached::JobFolder& draft) {
  detached::LogPlace place;
  place.folder = draft.LogFolder(job.state.attempt().attempt());
  detached::LogSegments segments(std::move(place), detached::SegmentBytes(0, 0));
  absl::Status status = segments.Open({});
  for (const detached::LogStore::Piece& piece : job.output) {
    if (status.ok()) status = segments.Write(piece.stream, piece.offset, piece.bytes);
  }
  return status.ok() ? segments.Sync() : status;
}

absl::Status WriteLost(const detached::JobFolder& folder, const v1::OutputLost& lost) {
  if (lost.files().empty()) return absl::OkStatus();
  v1::JournalRecord record;
  *record.mutable_output_lost() = lost;
  std::string frames;
  absl::Status status = journal::AppendRecord(record, /*begins_batch=*/true, &frames);
  if (!status.ok()) return status;
  auto opened = folder.OpenJournal();
  return opened.ok() ? opened->first.Commit(frames) : opened.status();
}

}  // namespace

absl::Status Handover::Check() {
  const auto place = detached::Jobs::UsualPlace();
  if (!place.ok()) return place.status();
  if (absl::Status tried = detached::Jobs(*place).Try(); !tried.ok()) return tried;
  return ChooseSupervisor(*place).status();
}

absl::StatusOr<std::unique_ptr<Handover>> Handover::Make(Job job) {
  auto place = detached::Jobs::UsualPlace();
  if (!place.ok()) return place.status();
  const auto supervisor = ChooseSupervisor(*place);
  if (!supervisor.ok()) return supervisor.status();
  detached::Standing standing;
  standing.launcher = detached::Ourselves();
  standing.launcher.set_generation(1);
  standing.stage = detached::Standing::Stage::kHasJob;
  *job.state.mutable_launcher() = standing.launcher;
  job.state.mutable_attempt()->set_generation(1);
  std::optional<os::FileLock> lock;
  // It must not be found before its journal says that it runs: a launcher would start it again.
  const auto fill = [&](const detached::JobFolder& draft) {
    absl::Status status;
    if (job.code != nullptr) status = job.code->Keep(draft, /*with_contents=*/job.may_restart);
    if (status.ok()) status = WriteOutput(job, draft);
    if (status.ok()) status = draft.BeginJournal(job.spec, job.state);
    if (!status.ok()) return status;
    auto taken = draft.Lock(standing.launcher);
    if (!taken.ok()) return taken.status();
    detached::JobFolder::Describe(standing, *taken);
    lock = *std::move(taken);
    return absl::OkStatus();
  };
  auto accepted = detached::Jobs(*std::move(place)).Accept(job.spec, fill);
  if (!accepted.ok()) return accepted.status();
  if (accepted->was_there || !lock) {
    return absl::AlreadyExistsError(absl::StrCat("there is a job ", job.spec.job_id(), " in ",
                                                 accepted->folder.path(), " already"));
  }
  return std::unique_ptr<Handover>(
      new Handover(*supervisor, *std::move(lock), std::move(accepted->folder)));
}

int Handover::Finish(const v1::OutputLost& lost) && {
  const std::string id = folder_.id();
  if (const absl::Status written = WriteLost(folder_, lost); !written.ok()) {
    std::fprintf(stderr,
                 "dtrain: warning: output is missing in the log files, and %s will not report "
                 "it at its end: %s\n",
                 id.c_str(), std::string(written.message()).c_str());
  }
  lock_.reset();
  auto start = detached::LauncherStart::Begin(folder_, supervisor_);
  const TimePoint deadline = Clock::now() + kPatience;
  using End = detached::LauncherStart::End;
  if (start.ok() && start->Wait(detached::Standing::Stage::kRuns,
                                [&] { return Clock::now() < deadline; }) == End::kReached) {
    const detached::Supervision by = detached::SupervisionOf(folder_);
    std::fprintf(stderr,
                 "dtrain: detached%s: %s goes on; `dtrain attach %s` shows it, "
                 "`dtrain stop %s` ends it\n",
                 by.IsThere() ? absl::StrCat(", and supervised by ", by.Text()).c_str() : "",
                 id.c_str(), id.c_str(), id.c_str());
    return kExitStillRunning;
  }
  std::fprintf(
      stderr,
      "dtrain: detached, but no launcher has taken %s over%s (%s/launcher.log): its workers "
      "end soon unless one does; `dtrain attach %s` starts one\n",
      id.c_str(), start.ok() ? "" : absl::StrCat(": ", start.status().message()).c_str(),
      folder_.path().c_str(), id.c_str());
  return kExitAgentLost;
}

}  // namespace dtrain
