// SPDX-License-Identifier: Apache-2.0
#include "launcher/history/commands.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/exit_code.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "launcher/cli/forwarded_env.h"
#include "launcher/cli/recorded.h"
#include "launcher/history/attach.h"
#include "launcher/history/options.h"
#include "launcher/history/rerun.h"
#include "launcher/history/retention.h"
#include "launcher/history/tables.h"
#include "launcher/status/commands.h"
#include "launcher/status/find_job.h"
#include "launcher/status/left_workers.h"
#include "launcher/status/look_watch.h"
#include "launcher/status/print.h"
#include "launcher/status/tables.h"
#include "launcher/story/care.h"
#include "launcher/story/find.h"
#include "launcher/story/story.h"

namespace dtrain::history {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kPollMs = 100;

void Say(const std::string& text) {
  if (!text.empty()) std::fprintf(stderr, "dtrain: %s\n", text.c_str());
}

// Says what went wrong and returns the exit code.
int Fail(const Options& options, const absl::Status& status) {
  Say(absl::StrCat(options.command, ": ", status.message()));
  return story::ExitCodeOf(status);
}

// A job with a folder. Of one that runs where it was launched, which has none yet, says what is
// possible.
absl::StatusOr<detached::JobFolder> FindFolder(const detached::Jobs& jobs, const std::string& name,
                                               status::LookWatch& watch) {
  auto job = watch.Do([&] { return jobs.Find(name); });
  if (!absl::IsNotFound(job.status())) return job;
  const auto found = status::FindJob(name);
  if (!found.ok() || !found->live) return job;
  return absl::NotFoundError(
      absl::StrCat(found->id, " runs where it was launched; `dtrain logs -f ", found->id,
                   "` follows it, `dtrain detach ", found->id, "` makes it a detached job"));
}

int List(const Options& options) {
  const auto jobs = story::OpenJobs();
  if (!jobs.ok()) return Fail(options, jobs.status());
  status::LookWatch watch(jobs->place());
  auto entries = watch.Do([&] { return jobs->List(); });
  if (!entries.ok()) return Fail(options, entries.status());
  std::erase_if(*entries, [](const v1::JobEntry& job) { return job.ended_unix_nanos() == 0; });
  const auto later = [](const v1::JobEntry& a, const v1::JobEntry& b) {
    return std::pair(a.ended_unix_nanos(), a.job_id()) >
           std::pair(b.ended_unix_nanos(), b.job_id());
  };
  const size_t all = entries->size();
  const size_t shown =
      options.limit == 0 ? all : static_cast<size_t>(std::min<uint64_t>(all, options.limit));
  std::partial_sort(entries->begin(), entries->begin() + static_cast<ptrdiff_t>(shown),
                    entries->end(), later);
  Json list = Json::array();
  for (size_t i = 0; i < shown; ++i) {
    const v1::JobEntry& job = (*entries)[i];
    const double seconds =
        static_cast<double>(job.ended_unix_nanos() - job.accepted_unix_nanos()) / 1e9;
    Json one = {{"id", job.job_id()},
                {"name", job.name()},
                {"ended_unix_seconds", static_cast<double>(job.ended_unix_nanos()) / 1e9},
                {"seconds", nullptr},
                {"exit_code", nullptr},
                {"bytes", job.bytes()},
                {"command", Json::array()}};
    if (job.accepted_unix_nanos() != 0) one["seconds"] = std::max(seconds, 0.0);
    if (job.exit_code() >= 0) one["exit_code"] = job.exit_code();
    // Not looked up in List: that would read the files of all jobs.
    const auto spec = watch.Do([&]() -> absl::StatusOr<v1::Spec> {
      const auto folder = jobs->Find(job.job_id());
      return folder.ok() ? folder->ReadSpec() : folder.status();
    });
    if (spec.ok()) one["command"] = story::ShownWordsOf(*spec);
    list.push_back(std::move(one));
  }
  if (options.json) {
    status::PrintJson({{"jobs", std::move(list)}, {"all", all}});
    return kExitOk;
  }
  status::Print(HistoryTable(list));
  if (all > shown) status::Print(absl::StrCat("and ", all - shown, " more; --limit 0 lists all\n"));
  return kExitOk;
}

int Show(const Options& options) {
  const auto jobs = story::OpenJobs();
  if (!jobs.ok()) return Fail(options, jobs.status());
  status::LookWatch watch(jobs->place());
  const auto job = watch.Do([&] { return jobs->Find(options.jobs[0]); });
  // One that runs where it was launched has no folder yet.
  if (absl::IsNotFound(job.status())) {
    const auto found = status::FindJob(options.jobs[0]);
    if (found.ok() && found->live) {
      std::vector<std::string> words = {"status", found->id};
      if (options.json) words.insert(words.begin() + 1, "--json");
      return status::RunCommand(words);
    }
  }
  if (!job.ok()) return Fail(options, job.status());
  const auto told = watch.Do([&] { return story::Tell(*job); });
  if (!told.ok()) return Fail(options, told.status());
  if (options.json) {
    status::PrintJson(*told);
  } else {
    status::Print(status::StoryPage(*told));
  }
  return kExitOk;
}

int Remove(const Options& options) {
  const auto jobs = story::OpenJobs();
  if (!jobs.ok()) return Fail(options, jobs.status());
  int code = kExitOk;
  Json removed = Json::array();
  Json failed = Json::array();
  status::LookWatch watch(jobs->place());
  for (const std::string& name : options.jobs) {
    const auto job = watch.Do([&] { return jobs->Find(name); });
    const absl::Status status = watch.Do([&] {
      return job.ok() ? jobs->Remove(*job, options.force, [&] { watch.Beat(); }) : job.status();
    });
    if (status.ok()) {
      removed.push_back(job->id());
      continue;
    }
    // What has not ended is no fault of the disk.
    const int its = absl::IsFailedPrecondition(status) ? 1 : Fail(options, status);
    if (absl::IsFailedPrecondition(status)) Say(absl::StrCat("rm: ", status.message()));
    if (code == kExitOk) code = its;
    failed.push_back({{"job", name}, {"error", std::string(status.message())}});
  }
  if (options.json) status::PrintJson({{"removed", removed}, {"failed", failed}});
  return code;
}

int Prune(const Options& options) {
  const auto jobs = story::OpenJobs();
  if (!jobs.ok()) return Fail(options, jobs.status());
  status::LookWatch watch(jobs->place());
  // Its file, too, is in the home.
  auto keep = watch.Do([] { return ReadRetention(""); });
  if (!keep.ok()) return Fail(options, keep.status());
  keep->age = options.keep_age.value_or(keep->age);
  keep->jobs = options.keep_jobs.value_or(keep->jobs);
  keep->bytes = options.keep_bytes.value_or(keep->bytes);
  // An age that is typed is meant by the clock of now.
  const absl::Time now = absl::Now();
  const auto gone = watch.Do([&] {
    const absl::Time old = options.keep_age ? now : jobs->SureTime(now, keep->age);
    return jobs->Prune(*keep, old, [&] { watch.Beat(); });
  });
  if (!gone.ok()) return Fail(options, gone.status());
  if (options.json) {
    status::PrintJson({{"removed", gone->size()}});
  } else {
    status::Print(absl::StrCat("removed ", Count(gone->size(), "job"), gone->empty() ? "" : ": ",
                               absl::StrJoin(*gone, ", "), "\n"));
  }
  return kExitOk;
}

// One of the jobs that are waited for.
struct Waited {
  detached::JobFolder job;
  story::Care care;
  std::optional<int> code;  // it has ended
};

// Whether it has ended, or will never be known to have.
void Look(const Options& options, Waited& waited, status::LookWatch& watch) {
  if (waited.job.HasSummary()) {
    const auto entry = waited.job.Entry();
    if (!entry.ok() || entry->exit_code() < 0) {
      Say(absl::StrCat("wait: ", waited.job.id(), " has ended, but its exit code is not known: ",
                       entry.ok() ? "its summary.json is damaged" : entry.status().message()));
      waited.code = kExitState;
      return;
    }
    waited.code = entry->exit_code();
    if (options.json) return;
    Say(absl::StrCat(waited.job.id(), " has ended with exit code ", *waited.code));
    Say(status::LeftWorkersOf(waited.job));
    return;
  }
  const auto note = waited.care.Look(Clock::now(), [&] { watch.Beat(); });
  if (note.ok()) return Say(*note);
  if (waited.job.HasSummary()) return;  // it ended meanwhile
  waited.code = Fail(options, note.status());
}

int Wait(const Options& options) {
  const TimePoint deadline = options.timeout ? Clock::now() + *options.timeout : kNever;
  const auto jobs = story::OpenJobsWithin(options.timeout);
  if (!jobs.ok()) {
    const int code = Fail(options, jobs.status());
    return absl::IsDeadlineExceeded(jobs.status()) ? kExitStillRunning : code;
  }
  std::vector<Waited> all;
  status::LookWatch watch(jobs->place(), status::kLookPatience, {deadline, kExitStillRunning});
  for (const std::string& name : options.jobs) {
    const auto job = FindFolder(*jobs, name, watch);
    if (!job.ok()) return Fail(options, job.status());
    all.push_back({*job, story::Care(*job), std::nullopt});
  }
  std::vector<std::string> running;
  for (;;) {
    running.clear();
    for (Waited& each : all) {
      if (!each.code) watch.Do([&] { Look(options, each, watch); });
      if (!each.code) running.push_back(each.job.id());
    }
    if (running.empty() || Clock::now() >= deadline) break;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - Clock::now() + std::chrono::milliseconds(1));
    poll(nullptr, 0, static_cast<int>(std::clamp<int64_t>(left.count(), 0, kPollMs)));
  }
  int code = kExitOk;
  Json list = Json::array();
  for (const Waited& each : all) {
    if (code == kExitOk && each.code) code = *each.code;
    list.push_back(
        {{"id", each.job.id()}, {"ended", each.code.has_value()}, {"exit_code", nullptr}});
    if (each.code) list.back()["exit_code"] = *each.code;
  }
  if (options.json) status::PrintJson({{"jobs", list}});
  if (running.empty()) return code;
  Say(absl::StrCat("still running: ", absl::StrJoin(running, ", ")));
  return kExitStillRunning;
}

int AttachTo(const Options& options) {
  const auto jobs = story::OpenJobs();
  if (!jobs.ok()) return Fail(options, jobs.status());
  status::LookWatch watch(jobs->place());
  const auto job = options.jobs.empty() ? watch.Do([&] { return story::Find(*jobs, ""); })
                                        : FindFolder(*jobs, options.jobs[0], watch);
  if (!job.ok()) return Fail(options, job.status());
  return Attach(*job, options, watch);
}

// Replaces this environment's flags by those that the job was launched with, except the flags that
// WordsToRerun leaves out.
void SetFlagVariables(const v1::Spec& spec) {
  for (const std::string& name : cli::FlagVariableNames()) (void)unsetenv(name.c_str());
  for (const v1::EnvVar& variable : spec.flag_variables()) {
    if (variable.name() == cli::FlagVariable("key")) continue;
    if (variable.name() == cli::FlagVariable("launcher-on")) continue;
    (void)setenv(variable.name().c_str(), variable.value().c_str(), /*overwrite=*/1);
  }
}

int Rerun(const Options& options, Launch launch) {
  const auto jobs = story::OpenJobs();
  if (!jobs.ok()) return Fail(options, jobs.status());
  const auto spec = [&]() -> absl::StatusOr<v1::Spec> {
    status::LookWatch watch(jobs->place());
    const auto job = FindFolder(*jobs, options.jobs[0], watch);
    if (!job.ok()) return job.status();
    return watch.Do([&] { return job->ReadSpec(); });
  }();
  if (!spec.ok()) return Fail(options, spec.status());
  const auto words = WordsToRerun(story::WordsOf(*spec), spec->foreground());
  if (!words.ok()) return Fail(options, words.status());
  SetFlagVariables(*spec);
  if (chdir(spec->working_directory().c_str()) != 0) {
    return Fail(options, PosixError(errno, absl::StrCat("change to the job's working directory ",
                                                        Escape(spec->working_directory()))));
  }
  return launch(*words);
}

}  // namespace

int RunCommand(const std::vector<std::string>& args, Launch launch) {
  const auto options = Parse(args);
  if (!options.ok()) {
    Say(std::string(options.status().message()));
    return kExitUsage;
  }
  if (!options->help.empty()) {
    status::Print(options->help);
    return kExitOk;
  }
  if (options->command == "attach") return AttachTo(*options);
  if (options->command == "wait") return Wait(*options);
  if (options->command == "history") return List(*options);
  if (options->command == "show") return Show(*options);
  if (options->command == "rerun") return Rerun(*options, launch);
  if (options->command == "rm") return Remove(*options);
  return Prune(*options);
}

}  // namespace dtrain::history
