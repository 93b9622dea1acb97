// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/commands.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/http/client.h"
#include "launcher/status/agent_commands.h"
#include "launcher/status/command_options.h"
#include "launcher/status/detached_commands.h"
#include "launcher/status/ended_job.h"
#include "launcher/status/find_job.h"
#include "launcher/status/kept_logs.h"
#include "launcher/status/log_printer.h"
#include "launcher/status/log_reading.h"
#include "launcher/status/look_watch.h"
#include "launcher/status/page_command.h"
#include "launcher/status/print.h"
#include "launcher/status/runtime_dir.h"
#include "launcher/status/tables.h"
#include "launcher/story/story.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

// A launcher answers within milliseconds, unless it was stopped (SIGSTOP, a debugger).
constexpr Duration kPatience = std::chrono::seconds(3);

// Between two looks at lines that have no end yet, while nothing comes.
constexpr Duration kBetweenLooks = std::chrono::milliseconds(100);

absl::StatusOr<Json> Ask(const LiveJob& job, const std::string& path) {
  absl::StatusOr<http::Answer> answer = http::Get(job.socket, path, kPatience);
  if (!answer.ok()) return answer.status();
  Json json = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  if (answer->status == 200 && !json.is_discarded()) return json;
  const bool told = json.is_object() && json.contains("error") && json["error"].is_string();
  return absl::UnavailableError(
      absl::StrCat("the launcher of ", job.id, " answered with ", answer->status,
                   told ? ": " + Escape(json["error"].get<std::string>()) : std::string()));
}

// The job that was named, or the only one; its launcher listens.
absl::StatusOr<FoundJob> FindWithLauncher(const std::string& name) {
  absl::StatusOr<FoundJob> job = FindJob(name, /*launcher_suffices=*/true);
  if (!job.ok() || job->live) return job;
  if (job->detached->HasSummary()) {
    return absl::UnavailableError(
        absl::StrCat(job->id, " has ended; dtrain show ", job->id, " says how"));
  }
  const auto holder = job->detached->Holder();
  if (holder.ok() && *holder) {
    return absl::UnavailableError(absl::StrCat(
        job->id, " is controlled by ", story::Describe(**holder), ", which does not answer here"));
  }
  return absl::UnavailableError(
      absl::StrCat(job->id, " has no launcher; dtrain attach ", job->id, " starts one"));
}

// Jobs on the hosts that were named, or on this machine, but for those of `known`.
struct OnNodes {
  Json jobs = Json::array();
  std::vector<std::string> silent;
};

absl::StatusOr<OnNodes> AskAgents(const CommandOptions& options, const Json& known) {
  OnNodes out;
  auto agents = AgentCommands::Make(options);
  if (!agents.ok()) return agents.status();
  (*agents)->Ask();
  for (const AgentJob& job : (*agents)->jobs()) {
    const bool told = std::any_of(known.begin(), known.end(),
                                  [&](const Json& each) { return At(each, "id") == Json(job.id); });
    if (!told) out.jobs.push_back(AgentJobView(job));
  }
  out.silent = (*agents)->silent();
  return out;
}

absl::Status Ps(const CommandOptions& options) {
  const LiveNow live = ListLiveJobs();
  Json list = Json::array();
  std::vector<std::string> silent;
  std::set<std::string> known;
  for (const LiveJob& job : live.jobs) {
    absl::StatusOr<Json> answer = Ask(job, "/v1/jobs/" + job.id);
    if (answer.ok()) list.push_back(std::move(*answer));
    // Any other failure: it has ended since.
    if (absl::IsDeadlineExceeded(answer.status())) silent.push_back(job.id);
    if (answer.ok() || absl::IsDeadlineExceeded(answer.status())) known.insert(job.id);
  }
  const absl::StatusOr<DetachedJobs> detached = ListDetached(known, options.all);
  Json ended = Json::array();
  if (detached.ok()) {
    for (Json& job : list) {
      const auto told = detached->told.find(Text(At(job, "id")));
      if (told != detached->told.end()) AddFromFolder(told->second, job);
    }
    for (const Json& job : detached->running) list.push_back(job);
    for (const Json& job : detached->ended) ended.push_back(job);
  }
  // This machine's agents may have their sockets there.
  const bool asks = live.home_answers || options.names_hosts;
  absl::StatusOr<OnNodes> on_nodes =
      asks ? AskAgents(options, list) : absl::StatusOr<OnNodes>(OnNodes());
  if (!on_nodes.ok()) return on_nodes.status();
  if (options.json) {
    Json all = {{"jobs", list},
                {"not_answering", silent},
                {"on_nodes", on_nodes->jobs},
                {"unreachable", on_nodes->silent}};
    if (options.all) all["ended"] = ended;
    PrintJson(all);
  } else {
    for (const Json& job : ended) list.push_back(job);
    // "no jobs" only if that is known.
    const bool all_known = detached.ok() && live.unread.ok();
    if (!list.empty() || (silent.empty() && on_nodes->jobs.empty() && all_known)) {
      Print(JobsTable(list, options.all));
    }
    for (const std::string& id : silent) Print(absl::StrCat(id, " does not answer\n"));
    if (detached.ok()) {
      for (const std::string& left : detached->left) Print(absl::StrCat(left, "\n"));
    }
    if (detached.ok() && detached->more_ended > 0) {
      Print(absl::StrCat("and ", detached->more_ended,
                         " more that have ended; dtrain history --limit 0 lists all\n"));
    }
    if (!list.empty() && !on_nodes->jobs.empty()) Print("\n");
    if (!on_nodes->jobs.empty()) Print(NodeJobsTable(on_nodes->jobs));
  }
  if (!detached.ok()) return detached.status();
  if (!live.unread.ok()) return live.unread;
  if (on_nodes->silent.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrJoin(on_nodes->silent, "\ndtrain: ps: "));
}

// For a job of which no launcher is here; `none` says so.
absl::Status ElseByAgents(const CommandOptions& options,
                          absl::Status (AgentCommands::*command)(const AgentJob&),
                          const absl::Status& none) {
  auto agents = AgentCommands::Make(options);
  if (!agents.ok()) return agents.status();
  const auto job = (*agents)->Find();
  if (job.ok()) return ((**agents).*command)(*job);
  // Where hosts were not named nobody thinks of agents.
  return absl::IsNotFound(job.status()) && (*agents)->here() ? none : job.status();
}

absl::StatusOr<Json> Everything(const LiveJob& job) {
  absl::StatusOr<Json> view = Ask(job, "/v1/jobs/" + job.id);
  if (!view.ok()) return view;
  absl::StatusOr<Json> ranks = Ask(job, absl::StrCat("/v1/jobs/", job.id, "/ranks"));
  if (!ranks.ok()) return ranks;
  absl::StatusOr<Json> nodes = Ask(job, "/v1/nodes");
  if (!nodes.ok()) return nodes;
  return Json{{"job", *view}, {"ranks", (*ranks)["ranks"]}, {"nodes", (*nodes)["nodes"]}};
}

absl::StatusOr<Json> ReadStory(const detached::JobFolder& job) {
  return LookWatch(job.path()).Do([&] { return story::Tell(job); });
}

void AddFolder(const FoundJob& job, Json& all) {
  if (!job.detached) return;
  const auto told = ReadStory(*job.detached);
  if (told.ok()) AddFromFolder(*told, all["job"]);
}

absl::Status ShowFolder(const detached::JobFolder& job, bool json) {
  const auto told = ReadStory(job);
  if (!told.ok()) return told.status();
  if (json) {
    PrintJson(*told);
  } else {
    Print(StoryPage(*told));
  }
  return absl::OkStatus();
}

absl::Status Show(const CommandOptions& options) {
  absl::StatusOr<FoundJob> job = FindJob(options.job, /*launcher_suffices=*/true);
  if (absl::IsNotFound(job.status()))
    return ElseByAgents(options, &AgentCommands::Show, job.status());
  if (!job.ok()) return job.status();
  if (!job->live) return ShowFolder(*job->detached, options.json);
  absl::StatusOr<Json> all = Everything(*job->live);
  if (!all.ok()) return all.status();
  AddFolder(*job, *all);
  if (options.json) {
    PrintJson(*all);
  } else {
    Print(JobPage(*all));
  }
  return absl::OkStatus();
}

// A supervisor starts one within a second or so.
constexpr Duration kNextLauncher = std::chrono::seconds(10);

// The launcher of a detached job was killed: the one that follows. Nothing: the job has ended.
absl::StatusOr<std::optional<LiveJob>> NextLauncher(const FoundJob& job) {
  const TimePoint deadline = Clock::now() + kNextLauncher;
  while (Clock::now() < deadline) {
    if (job.detached->HasSummary()) return std::nullopt;
    poll(nullptr, 0, kRefreshMs);
    absl::StatusOr<FoundJob> again = FindJob(job.id);
    if (again.ok() && again->live) return std::move(again->live);
  }
  return absl::NotFoundError(absl::StrCat(job.id, " has no launcher any more; dtrain attach ",
                                          job.id, " starts a new one"));
}

// Until the job ends, or Ctrl-C.
absl::Status Top(const CommandOptions& options) {
  const absl::StatusOr<FoundJob> found = FindWithLauncher(options.job);
  if (absl::IsNotFound(found.status()))
    return ElseByAgents(options, &AgentCommands::Watch, found.status());
  if (!found.ok()) return found.status();
  LiveJob job = *found->live;
  for (;;) {
    absl::StatusOr<Json> all = Everything(job);
    if (absl::IsDeadlineExceeded(all.status())) {
      std::fprintf(stderr, "dtrain: %s does not answer\n", job.id.c_str());
      continue;
    }
    if (!all.ok() && found->detached) {
      auto next = NextLauncher(*found);
      if (!next.ok()) return next.status();
      if (*next) {
        job = **std::move(next);
        continue;
      }
    }
    if (!all.ok()) {
      std::fprintf(stderr, "dtrain: %s has ended\n", job.id.c_str());
      return absl::OkStatus();
    }
    AddFolder(*found, *all);
    PrintPageAnew(JobPage(*all));
    poll(nullptr, 0, kRefreshMs);
  }
}

absl::Status LiveLogs(const LiveJob& job, const CommandOptions& options) {
  std::string path =
      absl::StrCat("/v1/jobs/", job.id, "/log?follow=", options.follow ? "true" : "false");
  if (options.rank) absl::StrAppend(&path, "&rank=", *options.rank);
  if (options.stream) absl::StrAppend(&path, "&stream=", *options.stream);
  LogPrinter printer(options, IsOfAnother(job.socket));
  const auto view = Ask(job, "/v1/jobs/" + job.id);
  if (view.ok() && At(*view, "world_size").is_number_unsigned()) {
    printer.SetRanks(At(*view, "world_size").get<size_t>());
  }
  if (options.follow) printer.ShowUnfinished();
  LogFrames frames;
  absl::StatusOr<http::Answer> answer = http::Stream(
      job.socket, path,
      [&](absl::string_view piece) {
        return frames.Add(piece, [&](const LogFrames::Frame& frame) {
          if (options.since_unix_nanos && frame.unix_nanos < *options.since_unix_nanos) return true;
          return printer.Add(frame.stream, frame.bytes, frame.unix_nanos);
        });
      },
      kBetweenLooks, [&] { (void)printer.Look(Clock::now()); });
  // One that is stopped answers nothing, but its socket is there.
  const absl::Status lives =
      answer.ok() ? absl::OkStatus() : Ask(job, "/v1/jobs/" + job.id).status();
  if (!lives.ok() && !absl::IsDeadlineExceeded(lives)) {
    return absl::UnavailableError(
        absl::StrCat(job.id, ": its launcher, process ", job.launcher,
                     ", was killed; its workers end with it, and this is all that it had of their "
                     "output"));
  }
  if (!answer.ok()) return answer.status();
  if (answer->status == 200) return printer.Finish();
  const Json json = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  const bool told = json.is_object() && json.contains("error") && json["error"].is_string();
  return absl::NotFoundError(
      absl::StrCat(job.id, ": ",
                   told ? Escape(json["error"].get<std::string>())
                        : absl::StrCat("the launcher answered with ", answer->status)));
}

absl::Status Logs(const CommandOptions& options) {
  absl::StatusOr<FoundJob> found = FindJob(options.job);
  if (absl::IsNotFound(found.status()))
    return ElseByAgents(options, &AgentCommands::Logs, found.status());
  if (!found.ok()) return found.status();
  if (found->detached) return PrintKeptLogs(*found->detached, options);
  if (options.attempt || options.tail) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.attempt ? "--attempt" : "--tail",
                     " is for jobs that were launched with -d: the "
                     "launcher of ",
                     found->id, " has only the last output of the present attempt"));
  }
  return LiveLogs(*found->live, options);
}

// As Ctrl-C there would: the launcher ends the job, and itself when nothing is left.
absl::Status Stop(const CommandOptions& options) {
  absl::StatusOr<FoundJob> job = FindJobToChange(options.job, options.command);
  if (absl::IsNotFound(job.status()))
    return ElseByAgents(options, &AgentCommands::Stop, job.status());
  if (!job.ok()) return job.status();
  if (job->detached) return StopDetached(*job->detached, options);
  const std::string place = std::filesystem::path(job->live->socket).parent_path();
  const absl::Status stopped = StopLauncher(job->id, job->live->launcher, SIGTERM, [&] {
    const std::vector<LiveJob> again = FindJobs(place);
    return std::any_of(again.begin(), again.end(), [&](const LiveJob& each) {
      return each.id == job->id && each.launcher == job->live->launcher;
    });
  });
  if (stopped.ok()) PrintEnded(job->id, options.json);
  return stopped;
}

absl::Status Detach(const CommandOptions& options) {
  const absl::StatusOr<FoundJob> job = FindJobToChange(options.job, options.command);
  if (!job.ok()) return job.status();
  if (job->detached) {
    return absl::NotFoundError(absl::StrCat(job->id, " is a detached job already"));
  }
  return DetachLive(*job->live, options.json);
}

absl::Status ShowNodeInBrowser(const CommandOptions& options) {
  auto agents = AgentCommands::OfOneHost(options);
  if (!agents.ok()) return agents.status();
  NodePage node(*std::move(agents));
  return ServePage(node, options.listen, options.open);
}

absl::Status ShowInBrowser(const CommandOptions& options) {
  if (options.node) return ShowNodeInBrowser(options);
  absl::StatusOr<FoundJob> job = FindJob(options.job, /*launcher_suffices=*/true);
  if (!job.ok()) return job.status();
  if (job->live) return ServePage(*job->live, options.listen, options.open);
  const auto ended =
      LookWatch(job->detached->path()).Do([&] { return EndedJob::Read(*job->detached); });
  if (absl::IsFailedPrecondition(ended.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job->id, " has no launcher now that could answer: dtrain attach ",
                     job->id, " starts a new one"));
  }
  if (!ended.ok()) return ended.status();
  return ServePage(**ended, options.listen, options.open);
}

// Says what went wrong and returns the exit code.
int Tell(const std::string& command, const absl::Status& status) {
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "dtrain: %s: %s\n", command.c_str(), std::string(status.message()).c_str());
  if (absl::IsInvalidArgument(status)) return kExitUsage;
  if (absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) return kExitState;
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status))
    return kExitNotAuthorised;
  return 1;
}

int Nodes(const CommandOptions& options) {
  auto agents = AgentCommands::Make(options);
  return agents.ok() ? (*agents)->Nodes() : Tell(options.command, agents.status());
}

}  // namespace

int RunCommand(const std::vector<std::string>& args) {
  absl::StatusOr<CommandOptions> options = ParseCommand(args);
  if (!options.ok()) {
    std::fprintf(stderr, "dtrain: %s\n", std::string(options.status().message()).c_str());
    return kExitUsage;
  }
  if (!options->help.empty()) {
    Print(options->help);
    return kExitOk;
  }
  if (options->command == "nodes") return Nodes(*options);
  absl::Status status;
  if (options->command == "ps") status = Ps(*options);
  if (options->command == "status") status = Show(*options);
  if (options->command == "logs") status = Logs(*options);
  if (options->command == "stop") status = Stop(*options);
  if (options->command == "detach") status = Detach(*options);
  if (options->command == "top") status = Top(*options);
  if (options->command == "page") status = ShowInBrowser(*options);
  return Tell(options->command, status);
}

}  // namespace dtrain::status
