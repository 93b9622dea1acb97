// SPDX-License-Identifier: Apache-2.0
#include "launcher/ended_record.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/os/account.h"
#include "common/os/append_file.h"
#include "common/os/environment.h"
#include "common/os/private_file.h"
#include "launcher/cli/recorded.h"
#include "launcher/detached/jobs.h"
#include "launcher/detached/log_segments.h"
#include "launcher/detached/log_times.h"
#include "launcher/detached/ourselves.h"
#include "launcher/history/retention.h"

namespace dtrain {
namespace {

// Not synced: what a crash of the machine undoes is missed by nobody who waits for it.
absl::Status WriteRecordFile(const std::string& path, absl::string_view bytes) {
  auto file = os::AppendFile::Create(path);
  return file.ok() ? file->Append(bytes) : file.status();
}

}  // namespace

EndedRecord::EndedRecord(const Job& job) : attempt_(job.attempt), summary_(job.summary) {
  spec_.set_job_id(job.options.job.job_id);
  for (const std::string& word : job.options.detach.words) spec_.add_argv(word);
  spec_.set_working_directory(job.options.launched_in);
  spec_.set_build(DTRAIN_VERSION);
  spec_.set_foreground(true);
  cli::RecordFlagVariables(os::OwnEnvironment(), spec_);
  *spec_.mutable_accepted_by() = detached::Ourselves();
  spec_.mutable_accepted_by()->set_unix_nanos(job.begin_unix_nanos);
  if (job.output == nullptr) return;
  std::vector<Rank> ranks = job.output->Ranks();
  // The one that matters is there also when the rest cannot be written.
  if (job.failed) {
    const auto at = std::find(ranks.begin(), ranks.end(), *job.failed);
    if (at != ranks.end()) std::rotate(ranks.begin(), at, at + 1);
  }
  detached::TimesWriter times;
  for (const Rank rank : ranks) {
    for (const status::LogTails::Run& run : job.output->Order(rank)) {
      if (run.unix_nanos == 0) continue;
      times_ += times.Note({rank, run.stream == v1::STREAM_KIND_STDERR}, run.begin, run.unix_nanos);
    }
    for (const v1::StreamKind kind : {v1::STREAM_KIND_STDOUT, v1::STREAM_KIND_STDERR}) {
      const auto range = job.output->range(rank, kind);
      if (range.end == range.begin) continue;
      output_.push_back({{rank, kind == v1::STREAM_KIND_STDERR},
                         range.begin,
                         job.output->Read(rank, kind, range.begin, range.end - range.begin)});
    }
  }
}

absl::Status EndedRecord::Write() const {
  const auto place = detached::Jobs::UsualPlace();
  if (!place.ok()) return place.status();
  const detached::Jobs jobs(*place);
  v1::Spec spec = spec_;
  if (const auto account = os::FindAccount(geteuid()); account.ok()) spec.set_user(account->name);
  const auto fill = [&](const detached::JobFolder& draft) {
    const std::string logs = draft.LogFolder(attempt_);
    absl::Status status = WriteRecordFile(draft.path() + "/spec", spec.SerializeAsString());
    if (status.ok()) status = WriteRecordFile(draft.path() + "/summary.json", summary_);
    if (status.ok()) status = os::MakeOwnDirectory(draft.path() + "/logs", 0700, 0700);
    if (status.ok()) status = os::MakeOwnDirectory(logs, 0700, 0700);
    for (const detached::LogStore::Piece& piece : output_) {
      if (!status.ok()) return status;
      status = WriteRecordFile(
          absl::StrCat(logs, "/", detached::SegmentName(piece.stream, piece.offset)), piece.bytes);
    }
    detached::AddTimes(logs, times_);
    return status;
  };
  if (absl::Status added = jobs.AddEnded(spec_.job_id(), fill); !added.ok()) return added;
  const auto keep = history::ReadRetention(spec_.working_directory());
  if (!keep.ok()) return absl::OkStatus();  // the next detached job that ends says why
  if (absl::Status listed = jobs.List().status(); !listed.ok()) return listed;
  return jobs.PruneSome(*keep, jobs.SureTime(absl::Now(), keep->age)).status();
}

}  // namespace dtrain
