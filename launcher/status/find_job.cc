// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/find_job.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/text.h"
#include "launcher/story/find.h"

namespace dtrain::status {
namespace {

const LiveJob* FindLive(const std::vector<LiveJob>& live, const std::string& id) {
  const auto at =
      std::find_if(live.begin(), live.end(), [&](const LiveJob& job) { return job.id == id; });
  return at == live.end() ? nullptr : &*at;
}

bool Begins(absl::string_view id, absl::string_view text) {
  return absl::StartsWith(id, text) || absl::StartsWith(absl::StripPrefix(id, "dtrain-"), text);
}

FoundJob Found(const std::string& id, const std::vector<LiveJob>& live,
               const absl::StatusOr<detached::Jobs>& jobs) {
  FoundJob found;
  found.id = id;
  if (const LiveJob* job = FindLive(live, id)) found.live = *job;
  auto folder = jobs.ok() ? jobs->Find(id) : jobs.status();
  if (folder.ok() && folder->id() == id) found.detached = *std::move(folder);
  return found;
}

}  // namespace

absl::StatusOr<std::vector<LiveJob>> LiveJobs() {
  absl::StatusOr<std::string> directory = RuntimeDirectory();
  if (!directory.ok()) return directory.status();
  return FindAllJobs();
}

absl::StatusOr<FoundJob> FindJob(const std::string& text) {
  const absl::StatusOr<std::vector<LiveJob>> live = LiveJobs();
  if (!live.ok()) return live.status();
  const absl::StatusOr<detached::Jobs> jobs = story::OpenJobs();
  if (FindLive(*live, text) != nullptr) return Found(text, *live, jobs);
  std::vector<v1::JobEntry> entries;
  if (jobs.ok()) {
    auto list = jobs->List();
    if (list.ok()) entries = *std::move(list);
  }
  std::set<std::string> running;
  for (const LiveJob& job : *live) {
    if (absl::StartsWith(job.id, text)) running.insert(job.id);
  }
  for (const v1::JobEntry& job : entries) {
    if (job.ended_unix_nanos() != 0) continue;
    if (!text.empty() && (job.name() == text || job.job_id() == text)) {
      return Found(job.job_id(), *live, jobs);
    }
    if (Begins(job.job_id(), text)) running.insert(job.job_id());
  }
  if (running.size() == 1) return Found(*running.begin(), *live, jobs);
  if (running.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("several jobs are running; name one of them: ", absl::StrJoin(running, ", ")));
  }
  if (!text.empty() && jobs.ok()) {
    const auto ended = jobs->Find(text);
    if (ended.ok()) return Found(ended->id(), *live, jobs);
    if (!absl::IsNotFound(ended.status())) return ended.status();
    if (std::string went = jobs->WhereItWent(text); !went.empty()) return absl::NotFoundError(went);
  }
  if (absl::IsFailedPrecondition(jobs.status())) return jobs.status();
  if (text.empty()) return absl::NotFoundError("you have no job running on this machine");
  return absl::NotFoundError(
      absl::StrCat("you have no job ", Escape(text, 80), " on this machine; dtrain ps lists them"));
}

}  // namespace dtrain::status
