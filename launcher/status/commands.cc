// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/commands.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/http/client.h"
#include "common/os/pidfd.h"
#include "launcher/status/agent_commands.h"
#include "launcher/status/cells.h"
#include "launcher/status/command_options.h"
#include "launcher/status/log_printer.h"
#include "launcher/status/print.h"
#include "launcher/status/runtime_dir.h"
#include "launcher/status/tables.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

// A launcher answers within milliseconds, unless it was stopped (SIGSTOP, a debugger).
constexpr Duration kPatience = std::chrono::seconds(3);

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

absl::StatusOr<std::vector<LiveJob>> Jobs() {
  absl::StatusOr<std::string> directory = RuntimeDirectory();
  if (!directory.ok()) return directory.status();
  return FindAllJobs();
}

// The job that was named, by its id or the beginning of it, or the only one.
absl::StatusOr<LiveJob> FindJob(const std::string& name) {
  absl::StatusOr<std::vector<LiveJob>> jobs = Jobs();
  if (!jobs.ok()) return jobs.status();
  std::vector<LiveJob> found;
  std::vector<std::string> ids;
  for (const LiveJob& job : *jobs) {
    if (!absl::StartsWith(job.id, name)) continue;
    if (job.id == name) return job;
    found.push_back(job);
    ids.push_back(job.id);
  }
  if (found.size() == 1) return found[0];
  if (found.empty() && name.empty()) {
    return absl::NotFoundError("you have no job running on this machine");
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat("you have no job ", Escape(name, 80),
                                            " on this machine; dtrain ps lists them"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("several jobs are running; name one of them: ", absl::StrJoin(ids, ", ")));
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
  absl::StatusOr<std::vector<LiveJob>> jobs = Jobs();
  if (!jobs.ok()) return jobs.status();
  Json list = Json::array();
  std::vector<std::string> silent;
  for (const LiveJob& job : *jobs) {
    absl::StatusOr<Json> answer = Ask(job, "/v1/jobs/" + job.id);
    if (answer.ok()) list.push_back(*std::move(answer));
    // Any other failure: it has ended since.
    if (absl::IsDeadlineExceeded(answer.status())) silent.push_back(job.id);
  }
  absl::StatusOr<OnNodes> on_nodes = AskAgents(options, list);
  if (!on_nodes.ok()) return on_nodes.status();
  if (options.json) {
    PrintJson({{"jobs", list},
               {"not_answering", silent},
               {"on_nodes", on_nodes->jobs},
               {"unreachable", on_nodes->silent}});
  } else {
    if (!list.empty() || (silent.empty() && on_nodes->jobs.empty())) Print(JobsTable(list));
    for (const std::string& id : silent) Print(absl::StrCat(id, " does not answer\n"));
    if (!list.empty() && !on_nodes->jobs.empty()) Print("\n");
    if (!on_nodes->jobs.empty()) Print(NodeJobsTable(on_nodes->jobs));
  }
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

absl::Status Show(const CommandOptions& options) {
  absl::StatusOr<LiveJob> job = FindJob(options.job);
  if (absl::IsNotFound(job.status()))
    return ElseByAgents(options, &AgentCommands::Show, job.status());
  if (!job.ok()) return job.status();
  absl::StatusOr<Json> all = Everything(*job);
  if (!all.ok()) return all.status();
  if (options.json) {
    PrintJson(*all);
  } else {
    Print(JobPage(*all));
  }
  return absl::OkStatus();
}

// Until the job ends, or Ctrl-C.
absl::Status Top(const CommandOptions& options) {
  absl::StatusOr<LiveJob> job = FindJob(options.job);
  if (absl::IsNotFound(job.status()))
    return ElseByAgents(options, &AgentCommands::Watch, job.status());
  if (!job.ok()) return job.status();
  for (;;) {
    absl::StatusOr<Json> all = Everything(*job);
    if (absl::IsDeadlineExceeded(all.status())) {
      std::fprintf(stderr, "dtrain: %s does not answer\n", job->id.c_str());
      continue;
    }
    if (!all.ok()) {
      std::fprintf(stderr, "dtrain: %s has ended\n", job->id.c_str());
      return absl::OkStatus();
    }
    PrintPageAnew(JobPage(*all));
    poll(nullptr, 0, kRefreshMs);
  }
}

absl::Status Logs(const CommandOptions& options) {
  absl::StatusOr<LiveJob> job = FindJob(options.job);
  if (absl::IsNotFound(job.status()))
    return ElseByAgents(options, &AgentCommands::Logs, job.status());
  if (!job.ok()) return job.status();
  const std::string path = absl::StrCat("/v1/jobs/", job->id, "/ranks/", options.rank,
                                        "/log?limit=4194304&stream=", options.stream,
                                        options.follow ? "&follow=true" : "");
  LogPrinter printer(options);
  absl::StatusOr<http::Answer> answer =
      http::Stream(job->socket, path, [&](absl::string_view piece) { return printer.Add(piece); });
  if (!answer.ok()) return answer.status();
  if (answer->status == 200) return absl::OkStatus();
  const Json json = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  const bool told = json.is_object() && json.contains("error") && json["error"].is_string();
  return absl::NotFoundError(
      absl::StrCat(job->id, ": ",
                   told ? Escape(json["error"].get<std::string>())
                        : absl::StrCat("the launcher answered with ", answer->status)));
}

// As Ctrl-C there would: the launcher ends the job, and itself when nothing is left.
absl::Status Stop(const CommandOptions& options) {
  absl::StatusOr<LiveJob> job = FindJob(options.job);
  if (absl::IsNotFound(job.status()))
    return ElseByAgents(options, &AgentCommands::Stop, job.status());
  if (!job.ok()) return job.status();
  absl::StatusOr<os::UniqueFd> pidfd = os::OpenPidfd(job->launcher);
  if (!pidfd.ok()) return pidfd.status();
  // The number may have become another's before it was opened: who listens tells.
  absl::StatusOr<LiveJob> again = FindJob(job->id);
  if (!again.ok() || again->launcher != job->launcher) {
    return absl::NotFoundError(absl::StrCat(job->id, " has just ended"));
  }
  absl::Status sent = os::SendSignal(pidfd->get(), SIGTERM);
  if (!sent.ok()) return sent;
  pollfd ended{pidfd->get(), POLLIN, 0};
  while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
  PrintEnded(job->id, options.json);
  return absl::OkStatus();
}

// Says what went wrong and returns the exit code.
int Tell(const std::string& command, const absl::Status& status) {
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "dtrain: %s: %s\n", command.c_str(), std::string(status.message()).c_str());
  if (absl::IsInvalidArgument(status)) return kExitUsage;
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
  if (options->command == "top") status = Top(*options);
  return Tell(options->command, status);
}

}  // namespace dtrain::status
