// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/moved_jobs.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/text.h"
#include "common/os/append_file.h"
#include "common/os/fd.h"
#include "common/os/private_file.h"
#include "launcher/detached/job_names.h"

namespace dtrain::detached {
namespace {

constexpr absl::Duration kMovedIsKept = absl::Hours(24 * 30);

}  // namespace

std::string MovedJobs::Path(absl::string_view job_id) const {
  return absl::StrCat(folder_, "/", job_id);
}

std::vector<v1::MovedJob> MovedJobs::All() const {
  std::vector<v1::MovedJob> jobs;
  const auto names = NamesIn(folder_);
  if (!names.ok()) return jobs;
  for (const std::string& name : *names) {
    const auto bytes = os::ReadSmallFile(Path(name));
    v1::MovedJob job;
    if (!bytes.ok() || !job.ParseFromString(*bytes) || job.job_id() != name) continue;
    if (absl::FromUnixNanos(job.unix_nanos()) > absl::Now() - kMovedIsKept) {
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

absl::Status MovedJobs::Note(const v1::Spec& spec, const std::string& host) const {
  v1::MovedJob moved;
  moved.set_job_id(spec.job_id());
  moved.set_name(spec.name());
  moved.set_key(spec.key());
  moved.set_host(host);
  moved.set_unix_nanos(absl::ToUnixNanos(absl::Now()));
  *moved.mutable_spec() = spec;
  moved.mutable_spec()->clear_environment();
  absl::Status status = os::MakeOwnDirectory(folder_, 0700, 0700);
  if (status.ok()) status = os::ReplaceFile(Path(spec.job_id()), moved.SerializeAsString());
  if (const auto names = NamesIn(folder_); names.ok()) {
    const std::vector<v1::MovedJob> known = All();
    for (const std::string& name : *names) {
      const auto is_it = [&](const v1::MovedJob& one) { return one.job_id() == name; };
      if (std::none_of(known.begin(), known.end(), is_it)) Forget(name);
    }
  }
  return status;
}

void MovedJobs::Forget(const std::string& job_id) const {
  std::error_code error;
  std::filesystem::remove(Path(job_id), error);
}

std::string MovedJobs::WhereItWent(const std::string& job_id) const {
  for (const v1::MovedJob& job : All()) {
    if (job.job_id() == job_id) return WentTo(job);
  }
  return "";
}

std::string WentTo(const v1::MovedJob& job) {
  return absl::StrCat("job ", job.job_id(), " moved to ", Escape(job.host()), " on ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(job.unix_nanos()),
                                       absl::LocalTimeZone()),
                      "; run the command there");
}

}  // namespace dtrain::detached
