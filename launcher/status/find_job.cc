// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/find_job.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "launcher/detached/job_names.h"
#include "launcher/status/look_watch.h"
#include "launcher/story/find.h"

namespace dtrain::status {
namespace {

const LiveJob* FindLive(const std::vector<LiveJob>& live, const std::string& id) {
  const auto at =
      std::find_if(live.begin(), live.end(), [&](const LiveJob& job) { return job.id == id; });
  return at == live.end() ? nullptr : &*at;
}

// False: it is not. The launcher of a detached job was started as `dtrain resume JOB`.
bool MayBeDetached(const LiveJob& job) {
  const auto words = os::ReadSmallFile(absl::StrCat("/proc/", job.launcher, "/cmdline"));
  return !words.ok() || absl::StrContains(*words, absl::string_view("\0resume\0", 8));
}

// Empty: look into the records, too.
std::optional<FoundJob> FindWithoutRecords(const std::string& id, bool launcher_suffices) {
  const std::vector<LiveJob> live = FindJobsOutsideHome();
  const LiveJob* job = FindLive(live, id);
  if (job == nullptr || (!launcher_suffices && MayBeDetached(*job))) return std::nullopt;
  if (story::RecordsAnswer()) return std::nullopt;
  return FoundJob{id, *job, std::nullopt};
}

// Where launchers may listen, too; null: they do not.
const char* HomeToAsk() { return geteuid() == 0 ? nullptr : getenv("HOME"); }

// A launcher with a terminal stays where it was started.
std::string DirectoryOf(const LiveJob& job) {
  std::error_code error;
  return std::filesystem::read_symlink(absl::StrCat("/proc/", job.launcher, "/cwd"), error);
}

// Where one of the places cannot be used there are the others, and folders tell of more.
std::vector<LiveJob> ThatListen(const absl::StatusOr<std::vector<LiveJob>>& live) {
  return live.ok() ? *live : FindAllJobs();
}

// Those that detached::Jobs knows, and those whose launcher listens. `unread`: why there may be
// more.
std::vector<v1::JobEntry> Known(const absl::StatusOr<std::vector<LiveJob>>& live,
                                const absl::StatusOr<detached::Jobs>& jobs, absl::Status& unread) {
  std::vector<v1::JobEntry> known;
  unread = jobs.status();
  if (jobs.ok()) {
    auto all = LookWatch(jobs->place()).Do([&] { return jobs->Known(); });
    unread = all.status();
    if (all.ok()) known = *std::move(all);
  }
  if (absl::IsNotFound(unread)) unread = absl::OkStatus();
  if (unread.ok()) unread = live.status();
  for (const LiveJob& job : ThatListen(live)) {
    const bool is_there = std::any_of(known.begin(), known.end(), [&](const v1::JobEntry& entry) {
      return entry.job_id() == job.id;
    });
    if (!is_there) known.emplace_back().set_job_id(job.id);
  }
  return known;
}

absl::StatusOr<FoundJob> Found(const std::string& id, const std::vector<LiveJob>& live,
                               const absl::StatusOr<detached::Jobs>& jobs) {
  FoundJob found;
  found.id = id;
  if (const LiveJob* job = FindLive(live, id)) found.live = *job;
  const auto find = [&] { return jobs->Find(id); };
  auto folder = jobs.ok() ? LookWatch(jobs->place()).Do(find) : jobs.status();
  if (!folder.ok() && !found.live) return folder.status();
  if (folder.ok()) found.detached = *std::move(folder);
  return found;
}

absl::StatusOr<FoundJob> OnlyOne(const std::vector<v1::JobEntry>& known,
                                 const std::vector<LiveJob>& live,
                                 const absl::StatusOr<detached::Jobs>& jobs,
                                 const absl::Status& unread) {
  std::set<std::string> running;
  for (const LiveJob& job : live) running.insert(job.id);  // one that is about to end, too
  for (const v1::JobEntry& job : known) {
    if (job.ended_unix_nanos() == 0) running.insert(job.job_id());
  }
  if (running.size() == 1) return Found(*running.begin(), live, jobs);
  if (running.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("several jobs are running; name one of them: ", absl::StrJoin(running, ", ")));
  }
  if (!unread.ok()) return unread;
  return absl::NotFoundError("you have no job running on this machine");
}

}  // namespace

LiveNow ListLiveJobs() {
  if (const char* home = HomeToAsk()) {
    absl::Status answers = story::CheckAnswer(home);
    if (!answers.ok()) return {FindJobsOutsideHome(), std::move(answers), false};
  }
  absl::Status usable = RuntimeDirectory().status();
  return {FindAllJobs(), std::move(usable), true};
}

absl::StatusOr<std::vector<LiveJob>> LiveJobs() {
  if (const char* home = HomeToAsk()) story::AwaitAnswer(home);
  absl::StatusOr<std::string> directory = RuntimeDirectory();
  if (!directory.ok()) return directory.status();
  return FindAllJobs();
}

absl::StatusOr<FoundJob> FindJob(const std::string& text, bool launcher_suffices) {
  if (auto found = FindWithoutRecords(text, launcher_suffices)) return *std::move(found);
  const absl::StatusOr<std::vector<LiveJob>> all_live = LiveJobs();
  const std::vector<LiveJob> live = ThatListen(all_live);
  const absl::StatusOr<detached::Jobs> jobs = story::OpenJobs();
  absl::Status unread;
  const auto known = Known(all_live, jobs, unread);
  if (text.empty()) return OnlyOne(known, live, jobs, unread);
  const auto id = detached::ChooseJob(known, text);
  if (id.ok()) return Found(*id, live, jobs);
  if (!absl::IsNotFound(id.status())) return id.status();
  if (!unread.ok()) return unread;
  return absl::NotFoundError(
      absl::StrCat("you have no job ", Escape(text, 80), " on this machine; dtrain ps lists them"));
}

absl::StatusOr<FoundJob> FindJobToChange(const std::string& text, absl::string_view command) {
  if (!text.empty()) return FindJob(text);
  const absl::StatusOr<std::vector<LiveJob>> all_live = LiveJobs();
  const std::vector<LiveJob> live = ThatListen(all_live);
  const absl::StatusOr<detached::Jobs> jobs = story::OpenJobs();
  std::vector<story::RunningJob> running;
  if (jobs.ok()) {
    auto detached = LookWatch(jobs->place()).Do([&] { return story::Running(*jobs); });
    if (!detached.ok()) return detached.status();
    running = *std::move(detached);
  }
  for (const LiveJob& job : live) {
    auto at = std::find_if(running.begin(), running.end(),
                           [&](const auto& known) { return known.id == job.id; });
    if (at == running.end()) at = running.insert(at, {job.id, ""});
    if (at->directory.empty()) at->directory = DirectoryOf(job);
  }
  const auto id = story::OnlyOneFromHere(running, command);
  if (running.empty() && !jobs.ok() && !absl::IsNotFound(jobs.status())) return jobs.status();
  if (running.empty() && !all_live.ok()) return all_live.status();
  if (!id.ok()) return id.status();
  return Found(*id, live, jobs);
}

}  // namespace dtrain::status
