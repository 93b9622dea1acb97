// SPDX-License-Identifier: Apache-2.0
#include "launcher/story/find.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/os/bounded_look.h"
#include "common/os/fd.h"

namespace dtrain::story {
namespace {

constexpr size_t kMostNamed = 5;
// A file server that is up may take so long.
constexpr Duration kLeastPatience = std::chrono::seconds(1);

// Waits also for another process that makes something in the folder, and stalls.
void LookInto(const std::string& folder) {
  std::error_code ignored;
  const std::filesystem::directory_iterator first(folder, ignored);
}

std::string LateText(const std::string& folder, Duration waited) {
  return absl::StrCat("cannot read ", Escape(folder), ": its file system has not answered for ",
                      std::chrono::round<std::chrono::seconds>(waited).count(),
                      " s (is its file server down?)");
}

void SayLate(absl::string_view what, absl::string_view next) {
  (void)std::fputs(absl::StrCat("dtrain: ", what, "; ", next, "\n").c_str(), stderr);
}

bool AnswersWithin(Duration bound, const std::string& folder) {
  return os::ReturnsWithin(bound, [&folder] { LookInto(folder); });
}

// As AwaitAnswer until `end`, then DEADLINE_EXCEEDED.
absl::Status AwaitAnswerUntil(TimePoint end, const std::string& folder) {
  if (os::AnswersAtOnce(folder)) return absl::OkStatus();
  const TimePoint begin = Clock::now();
  end = std::max(end, begin + kLeastPatience);
  if (AnswersWithin(std::min<Duration>(kFolderPatience, end - begin), folder)) {
    return absl::OkStatus();
  }
  if (Clock::now() < end) {
    SayLate(LateText(folder, Clock::now() - begin), "waiting for it; Ctrl-C leaves");
    if (AnswersWithin(end - Clock::now(), folder)) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(LateText(folder, Clock::now() - begin));
}

std::string JobsIn(const std::string& place) { return absl::StrCat(place, "/jobs"); }

// The usual place, if `check` has no objection to its folder of jobs.
absl::StatusOr<std::string> CheckedPlace(
    absl::FunctionRef<absl::Status(const std::string& folder)> check) {
  absl::Status checked;
  auto place = detached::Jobs::UsualPlace([&](const std::string& asked) {
    checked = check(JobsIn(asked));
    return checked.ok();
  });
  if (!checked.ok()) return checked;
  return place;
}

absl::StatusOr<detached::Jobs> JobsOf(absl::StatusOr<std::string> place) {
  if (!place.ok()) return place.status();
  detached::Jobs jobs(*std::move(place));
  if (absl::Status checked = jobs.Check(); !checked.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("detached jobs cannot be read: ", checked.message()));
  }
  return jobs;
}

}  // namespace

void AwaitAnswer(const std::string& folder) {
  if (os::AnswersAtOnce(folder)) return;
  os::AwaitReturn(
      kFolderPatience, [&folder] { LookInto(folder); },
      [&folder] { SayLate(LateText(folder, kFolderPatience), "waiting for it; Ctrl-C leaves"); });
}

absl::Status CheckAnswer(const std::string& folder, std::chrono::seconds patience) {
  if (os::AnswersAtOnce(folder) || AnswersWithin(patience, folder)) return absl::OkStatus();
  return absl::FailedPreconditionError(LateText(folder, patience));
}

absl::StatusOr<std::string> AwaitPlace() {
  return detached::Jobs::UsualPlace([](const std::string& asked) {
    AwaitAnswer(JobsIn(asked));
    return true;
  });
}

absl::StatusOr<std::string> PlaceThatAnswers(std::chrono::seconds patience) {
  return CheckedPlace([&](const std::string& folder) { return CheckAnswer(folder, patience); });
}

absl::StatusOr<detached::Jobs> OpenJobs() { return JobsOf(AwaitPlace()); }

absl::StatusOr<detached::Jobs> OpenJobsWithin(std::optional<Duration> limit) {
  if (!limit) return OpenJobs();
  const TimePoint end = Clock::now() + *limit;
  return JobsOf(
      CheckedPlace([end](const std::string& folder) { return AwaitAnswerUntil(end, folder); }));
}

absl::StatusOr<detached::Jobs> OpenJobsThatAnswer() { return JobsOf(PlaceThatAnswers()); }

bool RecordsAnswer() {
  const absl::Status answers = PlaceThatAnswers().status();
  // Any other failure: the command finds it, too.
  if (!absl::IsFailedPrecondition(answers)) return true;
  SayLate(answers.message(), "continuing with what the job's launcher knows");
  return false;
}

absl::StatusOr<detached::JobFolder> Find(const detached::Jobs& jobs, absl::string_view text) {
  if (!text.empty()) return jobs.Find(text);
  const auto list = jobs.List();
  if (!list.ok()) return list.status();
  std::vector<std::string> running;
  for (const v1::JobEntry& job : *list) {
    if (job.ended_unix_nanos() == 0) running.push_back(job.job_id());
  }
  if (running.size() == 1) return jobs.Find(running[0]);
  if (running.empty()) {
    return absl::NotFoundError("you have no detached job running; dtrain history lists ended ones");
  }
  std::sort(running.begin(), running.end());
  const bool more = running.size() > kMostNamed;
  running.resize(std::min(running.size(), kMostNamed));
  return absl::InvalidArgumentError(absl::StrCat(
      "several detached jobs are running; name one of them: ", absl::StrJoin(running, ", "),
      more ? " ..." : ""));
}

absl::StatusOr<std::string> OnlyOneFromHere(const std::vector<RunningJob>& running,
                                            absl::string_view command) {
  if (running.empty()) return absl::NotFoundError("you have no job running on this machine");
  std::vector<const RunningJob*> from_here;
  for (const RunningJob& job : running) {
    std::error_code error;
    if (std::filesystem::equivalent(job.directory, ".", error)) from_here.push_back(&job);
  }
  if (from_here.size() == 1) return from_here[0]->id;
  std::string list;
  for (const RunningJob& job : running) {
    absl::StrAppend(&list, "\n  dtrain ", command, " ", job.id, "  # launched from ",
                    Escape(job.directory));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(from_here.empty() ? "no running job was" : "several running jobs were",
                   " launched from this directory; name the one you mean:", list));
}

absl::StatusOr<std::vector<RunningJob>> Running(const detached::Jobs& jobs) {
  const auto list = jobs.List();
  if (!list.ok()) return list.status();
  std::vector<RunningJob> running;
  for (const v1::JobEntry& job : *list) {
    if (job.ended_unix_nanos() != 0) continue;
    const auto folder = jobs.Find(job.job_id());
    const auto spec = folder.ok() ? folder->ReadSpec() : folder.status();
    running.push_back({job.job_id(), spec.ok() ? spec->working_directory() : ""});
  }
  std::sort(running.begin(), running.end(),
            [](const RunningJob& a, const RunningJob& b) { return a.id < b.id; });
  return running;
}

absl::Status CheckThere(const detached::JobFolder& job) {
  const auto there = os::Exists(job.path());
  if (!there.ok()) return there.status();
  if (*there) return absl::OkStatus();
  const std::filesystem::path jobs = std::filesystem::path(job.path()).parent_path();
  std::string went = detached::Jobs(jobs.parent_path().string()).WhereItWent(job.id());
  if (!went.empty()) return absl::NotFoundError(went);
  return absl::NotFoundError(
      absl::StrCat("job ", job.id(), " is gone: its folder ", job.path(), " was removed"));
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
      return kExitState;
    default:
      return 1;
  }
}

std::string ShownTime(int64_t unix_nanos) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(unix_nanos),
                          absl::LocalTimeZone());
}

}  // namespace dtrain::story
