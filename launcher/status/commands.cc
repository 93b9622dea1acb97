// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/commands.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

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
#include "launcher/status/command_options.h"
#include "launcher/status/runtime_dir.h"
#include "launcher/status/tables.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

// Between two looks of `dtrain top`.
constexpr int kRefreshMs = 1000;
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
  return FindJobs(*directory);
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
    return absl::NotFoundError("this user runs no job on this machine");
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat("this user runs no job ", Escape(name, 80),
                                            " on this machine; dtrain ps lists them"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("several jobs run, say which one: ", absl::StrJoin(ids, ", ")));
}

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void PrintJson(const Json& json) {
  Print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
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
  if (options.json) {
    PrintJson({{"jobs", list}, {"not_answering", silent}});
    return absl::OkStatus();
  }
  if (!list.empty() || silent.empty()) Print(JobsTable(list));
  for (const std::string& id : silent) Print(absl::StrCat(id, " does not answer\n"));
  return absl::OkStatus();
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
  if (!job.ok()) return job.status();
  const bool terminal = isatty(STDOUT_FILENO) != 0;
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
    Print(absl::StrCat(terminal ? "\x1b[H\x1b[2J" : "", JobPage(*all), terminal ? "" : "\n"));
    std::fflush(stdout);
    poll(nullptr, 0, kRefreshMs);
  }
}

absl::Status Logs(const CommandOptions& options) {
  absl::StatusOr<LiveJob> job = FindJob(options.job);
  if (!job.ok()) return job.status();
  const std::string path = absl::StrCat("/v1/jobs/", job->id, "/ranks/", options.rank,
                                        "/log?limit=4194304&stream=", options.stream,
                                        options.follow ? "&follow=true" : "");
  absl::StatusOr<http::Answer> answer =
      http::Stream(job->socket, path, [](absl::string_view piece) {
        Print(std::string(piece));
        return std::fflush(stdout) == 0;
      });
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
  std::fprintf(stderr, "dtrain: %s has ended\n", job->id.c_str());
  return absl::OkStatus();
}

}  // namespace

bool IsCommand(absl::string_view word) {
  return word == "ps" || word == "status" || word == "logs" || word == "stop" || word == "top";
}

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
  absl::Status status;
  if (options->command == "ps") status = Ps(*options);
  if (options->command == "status") status = Show(*options);
  if (options->command == "logs") status = Logs(*options);
  if (options->command == "stop") status = Stop(*options);
  if (options->command == "top") status = Top(*options);
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "dtrain: %s: %s\n", options->command.c_str(),
               std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitUsage : 1;
}

}  // namespace dtrain::status
