// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch_detached.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_code.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/account.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/signals.h"
#include "launcher/cli/recorded.h"
#include "launcher/code.h"
#include "launcher/detached/jobs.h"
#include "launcher/detached/launcher_log.h"
#include "launcher/detached/ourselves.h"
#include "launcher/detached/start.h"
#include "launcher/detached/supervisor.h"
#include "launcher/migrate/depart.h"
#include "launcher/migrate/options.h"
#include "launcher/status/look_watch.h"
#include "launcher/story/care.h"
#include "launcher/story/find.h"

namespace dtrain {
namespace {

// --away, where nothing is started again.
constexpr Duration kUsualAway = std::chrono::hours(1);

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "dtrain: %s\n", std::string(status.message()).c_str());
  if (absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status)) return kExitUsage;
  return kExitState;
}

volatile sig_atomic_t interrupted = 0;
void OnInterrupt(int signal) { interrupted = signal; }

// For the terminal of whoever waits for it.
void Relay(const std::string& text) { (void)fwrite(text.data(), 1, text.size(), stderr); }

// For `id=$(dtrain launch -d ...)`. That of a job that nobody could name is told in any case.
void TellId(const std::string& id) {
  std::printf("%s\n", id.c_str());
  if (std::fflush(stdout) != 0) std::fprintf(stderr, "dtrain: the job is %s\n", id.c_str());
}

// It says who looks after the job from now on.
void SayWhoMinds(const detached::JobFolder& job, status::LookWatch& watch) {
  const detached::Supervision by = watch.Do([&] { return detached::SupervisionOf(job); });
  if (!by.IsThere()) return;
  std::fprintf(stderr,
               "dtrain: supervised by %s: starts the job's launcher again if it is killed\n",
               by.Text().c_str());
}

int WaitUntilItRuns(const detached::JobFolder& job, detached::LauncherStart& start,
                    detached::LauncherLog& log) {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  for (const int signal : os::NotIgnored({SIGINT, SIGTERM, SIGHUP})) {
    sigaction(signal, &action, nullptr);
  }
  const std::string id = job.id();
  status::LookWatch watch(job.path());
  const auto end = watch.Do([&] {
    return start.Wait(detached::Standing::Stage::kRuns, [&] {
      const std::string said = log.Next();
      watch.Pause([&] { Relay(said); });
      return interrupted == 0;
    });
  });
  Relay(watch.Do([&] { return log.Next(/*rest=*/true); }));
  switch (end) {
    case detached::LauncherStart::End::kReached:
      SayWhoMinds(job, watch);
      TellId(id);
      return kExitOk;
    case detached::LauncherStart::End::kGivenUp:
      std::fprintf(stderr, "dtrain: left; %s goes on; `dtrain stop %s` ends it\n", id.c_str(),
                   id.c_str());
      return kExitSignalBase + interrupted;
    case detached::LauncherStart::End::kOver:
      break;
  }
  const auto entry = watch.Do([&] { return job.Entry(); });
  if (entry.ok() && entry->ended_unix_nanos() != 0 && entry->exit_code() >= 0) {
    return entry->exit_code();
  }
  std::fprintf(stderr,
               "dtrain: the launcher of %s ended before its workers ran, without saying why "
               "(%s/launcher.log); `dtrain attach %s` starts another one\n",
               id.c_str(), job.path().c_str(), id.c_str());
  return kExitAgentLost;
}

// By an earlier launch.
bool IsLaunched(const detached::Jobs::AcceptedJob& job, status::LookWatch& watch) {
  if (!job.was_there) return false;
  if (!job.moved_to.empty()) return true;
  return watch.Do([&] {
    const auto holder = job.folder.Holder();
    return job.folder.HasSummary() || (holder.ok() && *holder);
  });
}

// As the launch has ended that made it, or will end.
int TellKnown(const detached::Jobs::AcceptedJob& job, bool no_wait, status::LookWatch& watch) {
  const std::string id = job.folder.id();
  const std::string known =
      absl::StrCat("dtrain: this is ", id, ", which was launched with this key before");
  const bool here = job.moved_to.empty();
  const bool ended = here && watch.Do([&] { return job.folder.HasSummary(); });
  const bool ran =
      watch.Do([&] { return job.folder.LastStanding().stage; }) == detached::Standing::Stage::kRuns;
  if (ended) {
    const auto entry = watch.Do([&] { return job.folder.Entry(); });
    const int code = entry.ok() && entry->exit_code() >= 0 ? entry->exit_code() : kExitAgentLost;
    std::fprintf(stderr, "%s; it has ended with exit code %d%s\n", known.c_str(), code,
                 ran ? ""
                     : absl::StrCat(": `dtrain show ", id, "` tells why, and `dtrain rm ", id,
                                    "` lets the next launch with this key try again")
                           .c_str());
    if (!ran && code != kExitOk) return code;
  } else {
    std::fprintf(stderr, "%s%s\n", known.c_str(),
                 here ? "" : absl::StrCat("; it is on ", Escape(job.moved_to)).c_str());
    if (here && !ran && !no_wait) {
      auto log = watch.Do([&] { return detached::LauncherLog(job.folder); });
      auto start = detached::LauncherStart::Watch(job.folder);
      return WaitUntilItRuns(job.folder, start, log);
    }
  }
  TellId(id);
  return kExitOk;
}

// The job is made here, as another machine has neither our files nor our environment, and goes
// there before it has a launcher.
int LaunchElsewhere(const detached::Jobs& jobs, const cli::LaunchOptions& launch,
                    const v1::Spec& spec) {
  migrate::Options there;
  auto target = migrate::ParseTarget(launch.detach.launcher_on);
  if (!target.ok()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("--launcher-on: ", target.status().message(), "\nSee dtrain launch --help")));
  }
  there.to = *std::move(target);
  there.ssh_config = launch.transport.ssh_config;
  there.ssh_port = launch.transport.ssh_port;
  there.connect_timeout = launch.transport.connect_timeout;
  const auto& hosts = launch.hosts.entries;
  if (launch.local || std::any_of(hosts.begin(), hosts.end(), [](const hosts::HostEntry& entry) {
        return story::MeansThisMachine(entry.host);
      })) {
    return Fail(absl::InvalidArgumentError(
        "--launcher-on: name the hosts of the workers, by their real names: localhost, or no host "
        "at all, means another machine there"));
  }
  std::unique_ptr<Code> code;
  if (!launch.stage.directory.empty()) {
    auto taken = TakeCode(launch.stage);
    if (!taken.ok()) return Fail(taken.status());
    code = *std::move(taken);
  }
  status::LookWatch watch(jobs.place());
  const auto beat = [&] { watch.Beat(); };
  const auto keep_code = [&](const detached::JobFolder& draft) {
    return code == nullptr ? absl::OkStatus() : code->Keep(draft, /*with_contents=*/true, beat);
  };
  const auto accepted = watch.Do([&] { return jobs.Accept(spec, keep_code, beat); });
  if (!accepted.ok()) return Fail(accepted.status());
  const std::string id = accepted->folder.id();
  if (IsLaunched(*accepted, watch)) return TellKnown(*accepted, launch.detach.no_wait, watch);
  const auto started = migrate::StartThere(jobs, accepted->folder, there, launch.detach.no_wait);
  if (!started.ok()) {
    std::fprintf(stderr, "dtrain: --launcher-on: %s\n",
                 std::string(started.status().message()).c_str());
    return kExitStartAgents;
  }
  const std::string host = Escape(started->host);
  if (started->signal != 0) {
    std::fprintf(stderr, "dtrain: left; %s goes on; `dtrain stop %s` on %s ends it\n", id.c_str(),
                 id.c_str(), host.c_str());
    return kExitSignalBase + started->signal;
  }
  if (started->exit_code) {
    if (*started->exit_code >= 0) return *started->exit_code;
    std::fprintf(stderr, "dtrain: %s has ended on %s: `dtrain show %s` there shows how\n",
                 id.c_str(), host.c_str(), id.c_str());
    return kExitAgentLost;
  }
  std::fprintf(stderr, "dtrain: its launcher is on %s%s\n", host.c_str(),
               started->supervisor.empty()
                   ? ""
                   : absl::StrCat(", supervised by ", Escape(started->supervisor)).c_str());
  TellId(id);
  return kExitOk;
}

absl::StatusOr<detached::JobFolder> Find(const std::string& job) {
  if (job.find('/') != std::string::npos) return detached::JobFolder(job);
  const auto jobs = story::OpenJobs();
  if (!jobs.ok()) return jobs.status();
  return jobs->Find(job);
}

}  // namespace

void Describe(const cli::LaunchOptions& launch, v1::Spec& spec) {
  const cli::DetachOptions& options = launch.detach;
  spec.set_name(options.name);
  spec.set_key(options.key);
  spec.set_keep(options.keep);
  for (const std::string& word : options.words) spec.add_argv(word);
  for (const std::string& entry : os::OwnEnvironment()) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    v1::EnvVar& variable = *spec.add_environment();
    variable.set_name(entry.substr(0, equals));
    variable.set_value(entry.substr(equals + 1));
  }
  cli::RecordFlagVariables(os::OwnEnvironment(), spec);
  *spec.mutable_inherited() = launch.job.part.inherited();
  spec.set_umask(spec.inherited().umask());
  spec.set_build(DTRAIN_VERSION);
  if (const auto account = os::FindAccount(geteuid()); account.ok()) spec.set_user(account->name);
}

int LaunchDetached(const cli::LaunchOptions& launch, v1::Spec spec) {
  const cli::DetachOptions& options = launch.detach;
  // Nothing, which /dev/full and what was opened for reading do not take either.
  if (write(STDOUT_FILENO, "", 0) < 0)
    return Fail(PosixError(errno, "write the job's id to stdout"));
  spec.set_job_id(absl::StrCat("dtrain-", os::RandomHex(6)));
  Describe(launch, spec);
  *spec.mutable_accepted_by() = detached::Ourselves();

  auto place = story::AwaitPlace();
  if (!place.ok()) return Fail(place.status());
  if (const std::string& reads = launch.job.stdin_rank;
      !launch.quiet && reads != "0" && reads != "none") {
    std::fprintf(stderr,
                 "dtrain: warning: --stdin %s has no effect with -d: no rank has any input\n",
                 Escape(reads).c_str());
  }
  if (!options.launcher_on.empty()) {
    return LaunchElsewhere(detached::Jobs(*std::move(place)), launch, spec);
  }
  status::LookWatch watch(*place);
  const auto beat = [&] { watch.Beat(); };
  const auto supervisor =
      watch.Do([&] { return detached::ChooseSupervisor(detached::ReadSupervisorFacts(*place)); });
  if (!supervisor.ok()) {
    std::fprintf(stderr, "dtrain: %s\n", std::string(supervisor.status().message()).c_str());
    return kExitStartAgents;
  }
  const detached::Jobs jobs(*std::move(place));
  const auto accepted = watch.Do([&] { return jobs.Accept(spec, nullptr, beat); });
  if (!accepted.ok()) return Fail(accepted.status());
  const detached::JobFolder& job = accepted->folder;
  const std::string id = job.id();
  if (IsLaunched(*accepted, watch)) return TellKnown(*accepted, options.no_wait, watch);
  auto log = watch.Do([&] { return detached::LauncherLog(job); });
  auto start = watch.Do([&] { return detached::LauncherStart::Begin(job, *supervisor, beat); });
  if (!start.ok()) return Fail(start.status());
  if (options.no_wait) {
    TellId(id);
    return kExitOk;
  }
  return WaitUntilItRuns(job, *start, log);
}

void AddToEnvironment(const v1::Spec& spec) {
  for (const v1::EnvVar& variable : spec.environment()) {
    (void)setenv(variable.name().c_str(), variable.value().c_str(), /*overwrite=*/0);
  }
}

absl::StatusOr<std::unique_ptr<JobRecords>> TakeJob(loop::Loop& loop,
                                                    const std::vector<std::string>& args) {
  std::string name;
  for (size_t i = 1; i < args.size(); ++i) {
    if (!name.empty() || args[i].empty() || args[i][0] == '-') {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected ", Escape(args[i]), "\nSee dtrain resume --help"));
    }
    name = args[i];
  }
  if (name.empty()) {
    return absl::InvalidArgumentError("name a job\nSee dtrain resume --help");
  }
  auto job = Find(name);
  if (!job.ok()) return job.status();
  auto records = JobRecords::Take(loop, *job);
  if (!records.ok()) return records.status();
  umask(static_cast<mode_t>((*records)->spec().umask()));
  return records;
}

cli::LaunchOptions OptionsOf(const JobRecords& records, cli::LaunchOptions asked) {
  cli::LaunchOptions options = std::move(asked);
  cli::NameFilesFully(options);
  options.job.job_id = records.spec().job_id();
  options.job.generation = records.self().generation();
  // Not ours: we have what systemd's manager or a minder has.
  v1::Inherited& inherited = *options.job.part.mutable_inherited();
  inherited = records.spec().inherited();
  if (!records.spec().has_inherited()) inherited.set_umask(records.spec().umask());
  options.job.launcher = records.name();
  options.job.stdin_rank = "none";
  const bool restarts = options.restarts.max_restarts > 0 || options.spares > 0;
  options.job.away = options.detach.away.value_or(restarts ? options.job.lease : kUsualAway);
  options.output.shown = {};
  options.output.shown.streams = output::Streams::kNone;
  options.output.fold = false;
  options.output.goes_on = records.before().phase() != v1::JournalState::PHASE_ACCEPTED;
  return options;
}

int TellWhyNot(const absl::Status& why) {
  std::fprintf(stderr, "dtrain: resume: %s\n", std::string(why.message()).c_str());
  if (absl::IsInvalidArgument(why)) return kExitUsage;
  return absl::IsNotFound(why) ? 1 : kExitState;
}

}  // namespace dtrain
