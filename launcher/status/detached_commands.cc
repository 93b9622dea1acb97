// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/detached_commands.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/http/client.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"
#include "common/view/rank_view.h"
#include "launcher/cli/options.h"
#include "launcher/cli/recorded.h"
#include "launcher/detached/jobs.h"
#include "launcher/detached/ourselves.h"
#include "launcher/status/agent_commands.h"
#include "launcher/status/find_job.h"
#include "launcher/status/left_workers.h"
#include "launcher/status/look_watch.h"
#include "launcher/status/print.h"
#include "launcher/status/tables.h"
#include "launcher/story/care.h"
#include "launcher/story/find.h"
#include "launcher/story/story.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

// As many as are kept by default.
constexpr size_t kMostEnded = 500;
constexpr int kPollMs = 100;
constexpr int kStopTries = 3;
// Of a job's folder, not from its launcher.
constexpr const char* kFromFolder[] = {"held_by", "supervisor", "launcher_restarts"};
// A launcher that has the job listens soon; without a runtime directory it never does.
constexpr Duration kListenPatience = std::chrono::seconds(5);
// Somewhat more than the launcher that hands a job over waits for the next.
// The launcher waits for its folder, too, and says so first.
constexpr Duration kDetachPatience = std::chrono::seconds(15);
constexpr Duration kHandOverPatience = std::chrono::seconds(40);

double SecondsSince(double unix_seconds) {
  return std::max(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) - unix_seconds, 0.0);
}

Json RunningJson(const detached::JobFolder& job) {
  const auto told = story::Tell(job);
  Json json = {{"id", job.id()}, {"name", ""}, {"phase", "unknown"}};
  if (!told.ok()) return json;
  json["name"] = At(*told, "name");
  json["phase"] = At(*told, "state");
  json["nodes"] = At(*told, "hosts").size();
  json["seconds"] = SecondsSince(Number(At(*told, "accepted_unix_seconds")));
  json["command"] = At(*told, "command");
  for (const char* key : kFromFolder) json[key] = At(*told, key);
  const auto journal = job.ReadJournal();
  if (!journal.ok() || !journal->state.has_runs()) return json;
  const auto world = static_cast<size_t>(journal->state.runs().world_size());
  view::RankCounts counts;
  for (const v1::WorkerExit& exit : journal->state.exits()) counts.Ended(exit);
  counts.running = world - std::min(counts.ended, world);
  json["ranks"] = counts.View();
  return json;
}

Json EndedJson(const detached::Jobs& jobs, const v1::JobEntry& job) {
  Json json = {{"id", job.job_id()},
               {"name", job.name()},
               {"phase", "ended"},
               {"seconds", SecondsSince(static_cast<double>(job.accepted_unix_nanos()) / 1e9)},
               {"exit_code", nullptr},
               {"ended_unix_seconds", static_cast<double>(job.ended_unix_nanos()) / 1e9}};
  if (job.exit_code() >= 0) json["exit_code"] = job.exit_code();
  const auto folder = jobs.Find(job.job_id());
  const auto spec = folder.ok() ? folder->ReadSpec() : folder.status();
  if (spec.ok()) json["command"] = story::ShownWordsOf(*spec);
  return json;
}

absl::StatusOr<DetachedJobs> ListIn(const detached::Jobs& jobs, const std::set<std::string>& known,
                                    bool all) {
  auto entries = jobs.List();
  if (!entries.ok()) return entries.status();
  std::sort(entries->begin(), entries->end(), [](const v1::JobEntry& a, const v1::JobEntry& b) {
    return std::pair(a.ended_unix_nanos(), a.job_id()) >
           std::pair(b.ended_unix_nanos(), b.job_id());
  });
  DetachedJobs out;
  for (const v1::JobEntry& job : *entries) {
    if (job.ended_unix_nanos() == 0) {
      const auto folder = jobs.Find(job.job_id());
      if (folder.ok() && known.count(job.job_id()) != 0) {
        const auto told = story::Tell(*folder);
        if (told.ok()) out.told[job.job_id()] = *told;
      }
      if (folder.ok() && known.count(job.job_id()) == 0) {
        out.running.push_back(RunningJson(*folder));
      } else if (!folder.ok() && !absl::IsNotFound(folder.status())) {
        out.running.push_back({{"id", job.job_id()}, {"name", ""}, {"phase", "unknown"}});
      }
    } else if (all && out.ended.size() < kMostEnded) {
      out.ended.push_back(EndedJson(jobs, job));
      const auto folder = jobs.Find(job.job_id());
      std::string left = folder.ok() ? LeftWorkersOf(*folder) : "";
      if (!left.empty()) out.left.push_back(std::move(left));
    } else if (all) {
      ++out.more_ended;
    }
  }
  std::reverse(out.running.begin(), out.running.end());
  return out;
}

absl::StatusOr<std::optional<LiveJob>> Listening(const std::string& id) {
  const auto live = LiveJobs();
  if (!live.ok()) return live.status();
  for (const LiveJob& job : *live) {
    if (job.id == id) return job;
  }
  return std::nullopt;
}

// The process that has the job, once there is one on this machine; nothing: it has ended.
absl::StatusOr<std::optional<pid_t>> LauncherOf(const detached::JobFolder& job, LookWatch& watch) {
  const TimePoint deadline = Clock::now() + kListenPatience;
  for (;;) {
    if (watch.Do([&] { return job.HasSummary(); })) return std::nullopt;
    const auto live = Listening(job.id());
    if (live.ok() && *live) return (*live)->launcher;
    if (Clock::now() >= deadline) break;
    poll(nullptr, 0, kPollMs);
  }
  const auto holder = watch.Do([&] { return job.Holder(); });
  if (!holder.ok()) return holder.status();
  if (*holder && detached::IsHere(**holder)) return static_cast<pid_t>((*holder)->pid());
  if (*holder && !(*holder)->host().empty()) {
    return absl::UnavailableError(absl::StrCat(job.id(), " is controlled by ",
                                               story::Describe(**holder), ": run dtrain stop ",
                                               job.id(), " there"));
  }
  return absl::UnavailableError(absl::StrCat("the launcher of ", job.id(), " is gone again: see ",
                                             job.path(), "/launcher.log"));
}

}  // namespace

void AddFromFolder(const Json& told, Json& job) {
  job["name"] = At(told, "name");
  for (const char* key : kFromFolder) job[key] = At(told, key);
}

absl::StatusOr<DetachedJobs> ListDetached(const std::set<std::string>& known, bool all) {
  const auto jobs = story::OpenJobsThatAnswer();
  if (absl::IsNotFound(jobs.status())) return DetachedJobs();
  if (!jobs.ok()) {
    return absl::Status(
        jobs.status().code(),
        absl::StrCat(jobs.status().message(), "; this lists only jobs whose launchers answer"));
  }
  LookWatch watch(jobs->place());
  return watch.Do([&] { return ListIn(*jobs, known, all); });
}

absl::Status DetachLive(const LiveJob& job, bool json) {
  const auto pidfd = os::OpenPidfd(job.launcher);
  if (!pidfd.ok()) return absl::NotFoundError(absl::StrCat(job.id, " has just ended"));
  // It may have been paused, as by Ctrl-Z.
  (void)os::SendSignal(pidfd->get(), SIGCONT);
  const auto answer =
      http::Post(job.socket, absl::StrCat("/v1/jobs/", job.id, "/detach"), kDetachPatience);
  if (!answer.ok()) return answer.status();
  if (answer->status == 405) {
    return absl::UnavailableError(
        absl::StrCat("the launcher of ", job.id, ", process ", job.launcher,
                     ", is of an older version, which cannot detach jobs"));
  }
  if (answer->status != 202) {
    const Json told = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
    const Json error = At(told, "error");
    return absl::UnavailableError(absl::StrCat(
        job.id, ": ", error.is_string() ? Escape(error.get<std::string>(), 1000) : "no reason"));
  }
  // Who had it says on its terminal what becomes of it, too.
  const auto jobs = story::OpenJobs();
  const auto has_it = [&] {
    const auto folder = jobs.ok() ? jobs->Find(job.id) : jobs.status();
    if (!folder.ok()) return false;
    const detached::Standing standing = folder->LastStanding();
    return folder->HasSummary() || (standing.stage == detached::Standing::Stage::kRuns &&
                                    standing.launcher.generation() > 1);
  };
  LookWatch watch(jobs.ok() ? jobs->place() : "");
  const TimePoint deadline = Clock::now() + kHandOverPatience;
  pollfd ended{pidfd->get(), POLLIN, 0};
  for (;;) {
    const bool is_gone = poll(&ended, 1, kPollMs) > 0;
    if (watch.Do(has_it)) break;
    if (is_gone || Clock::now() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat(job.id, " was not detached: see what its launcher, process ", job.launcher,
                       ", said on its terminal"));
    }
  }
  if (json) {
    PrintJson({{"id", job.id}, {"detached", true}});
  } else {
    Print(absl::StrCat(job.id, " goes on without its terminal\n"));
  }
  return absl::OkStatus();
}

absl::Status StopLauncher(const std::string& id, pid_t launcher, int signal,
                          absl::FunctionRef<bool()> is_its_launcher) {
  absl::StatusOr<os::UniqueFd> pidfd = os::OpenPidfd(launcher);
  if (!pidfd.ok() && !absl::IsNotFound(pidfd.status())) return pidfd.status();
  // The number may have become another's before it was opened.
  if (!pidfd.ok() || !is_its_launcher()) {
    return absl::NotFoundError(absl::StrCat(id, " has just ended"));
  }
  absl::Status sent = os::SendSignal(pidfd->get(), signal);
  if (!sent.ok()) return sent;
  // One that was paused, as by Ctrl-Z, acts on it only then.
  (void)os::SendSignal(pidfd->get(), SIGCONT);
  pollfd ended{pidfd->get(), POLLIN, 0};
  while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

namespace {

// Until the launcher that it has now is gone.
absl::Status StopOnce(const detached::JobFolder& job, LookWatch& watch) {
  const auto note = watch.Do([&] { return story::EnsureLauncher(job, [&] { watch.Beat(); }); });
  if (!note.ok()) return note.status();
  if (!note->empty()) std::fprintf(stderr, "dtrain: %s\n", note->c_str());
  const auto launcher = LauncherOf(job, watch);
  if (!launcher.ok()) return launcher.status();
  if (!*launcher) return absl::OkStatus();
  absl::Status stopped = StopLauncher(job.id(), **launcher, detached::JobFolder::StopSignal(), [&] {
    const auto live = Listening(job.id());
    if (live.ok() && *live) return (*live)->launcher == **launcher;
    const auto holder = watch.Do([&] { return job.Holder(); });
    return holder.ok() && *holder && static_cast<pid_t>((*holder)->pid()) == **launcher &&
           detached::IsHere(**holder);
  });
  return absl::IsNotFound(stopped) ? absl::OkStatus() : stopped;
}

// Of a job that has ended: on hosts that it lost.
absl::Status StopLeftWorkers(const detached::JobFolder& job, CommandOptions options) {
  const absl::Status none = absl::NotFoundError(absl::StrCat(job.id(), " has ended already"));
  auto found = FindLeftWorkers(job);
  if (!found.ok()) return found.status();
  if (!*found) return none;
  LeftWorkers& workers = **found;
  cli::LaunchOptions& launch = workers.launch;
  // Hosts of a scheduler's allocation are no more known.
  if (const auto spec = job.ReadSpec(); spec.ok()) {
    cli::Surroundings then = cli::SurroundingsOf(*spec);
    then.environment = cli::WithFlagVariablesOf(*spec, cli::ProcessSurroundings().environment);
    cli::LoadHosts(launch, then).IgnoreError();
  }
  hosts::HostList hosts;
  for (const std::string& name : workers.hosts) {
    const auto& known = launch.hosts.entries;
    const auto at = std::find_if(known.begin(), known.end(),
                                 [&](const hosts::HostEntry& host) { return host.host == name; });
    hosts.entries.push_back(at != known.end() ? *at : hosts::HostEntry());
    hosts.entries.back().host = name;
  }
  options.job = job.id();
  auto agents = AgentCommands::Of(hosts, launch.transport, options);
  if (!agents.ok()) return agents.status();
  const auto left = (*agents)->Find();
  if (left.ok() && left->lives()) return (*agents)->Stop(*left);
  if (!left.ok() && !absl::IsNotFound(left.status())) return left.status();
  if ((*agents)->AllTold()) return none;
  return absl::UnavailableError(absl::StrCat(
      TextOf(workers), ": ",
      left.ok() ? "not all of these hosts have an agent that answers" : left.status().message(),
      "; repeat `dtrain stop` when its agent answers"));
}

}  // namespace

absl::Status StopDetached(const detached::JobFolder& job, const CommandOptions& options) {
  LookWatch watch(job.path());
  const auto has_ended = [&] { return watch.Do([&] { return job.HasSummary(); }); };
  if (has_ended()) return StopLeftWorkers(job, options);
  absl::Status there;
  // One that was killed at that moment has not heard us, and has a successor.
  for (int tries = 0; tries < kStopTries; ++tries) {
    if (absl::Status stopped = StopOnce(job, watch); !stopped.ok()) return stopped;
    there = watch.Do([&] { return story::CheckThere(job); });
    if (!there.ok() || has_ended()) break;
  }
  if (!there.ok() && !absl::IsNotFound(there)) return there;
  if (there.ok() && !has_ended()) {
    return absl::UnavailableError(absl::StrCat("the launcher of ", job.id(),
                                               " has ended, but the job has not: see ", job.path(),
                                               "/launcher.log, and try again"));
  }
  PrintEnded(job.id(), options.json);
  const std::string left = watch.Do([&] { return LeftWorkersOf(job); });
  if (!left.empty()) std::fprintf(stderr, "dtrain: %s\n", left.c_str());
  return absl::OkStatus();
}

}  // namespace dtrain::status
