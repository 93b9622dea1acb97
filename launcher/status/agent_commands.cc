// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/agent_commands.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/view/node_view.h"
#include "launcher/cli/options.h"
#include "launcher/status/print.h"
#include "launcher/status/tables.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

// Between two looks at a job that ends, and at output that may have grown.
constexpr int kPauseMs = 200;
constexpr uint32_t kPieceBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<AgentCommands>> AgentCommands::Make(const CommandOptions& options) {
  cli::LaunchOptions launch;
  hosts::HostList hosts;
  // A list of what runs is not to ask all hosts of a configuration file.
  if (options.command != "ps" || options.names_hosts) {
    const cli::Surroundings surroundings = cli::ProcessSurroundings();
    auto parsed = cli::ParseHosts(options.host_words, surroundings);
    if (!parsed.ok()) return parsed.status();
    launch = *std::move(parsed);
    auto read = cli::ReadHosts(launch, surroundings);
    if (!read.ok()) return read.status();
    hosts = *std::move(read);
  }
  for (const std::string& warning : hosts.warnings) {
    std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
  }
  std::unique_ptr<AgentCommands> commands(new AgentCommands(options));
  auto agents = nodes::Agents::Make(hosts, launch.transport);
  if (!agents.ok()) return agents.status();
  commands->agents_ = *std::move(agents);
  commands->here_ = hosts.entries.empty();
  return commands;
}

void AgentCommands::Ask() {
  answers_ = agents_->AskAll();
  told_.clear();
  silent_.clear();
  for (size_t i = 0; i < answers_.size(); ++i) {
    if (!answers_[i].ok()) {
      silent_.push_back(
          absl::StrCat(agents_->host(i), ": ", Escape(answers_[i].status().message(), 1000)));
    } else if (nodes::Agents::IsResident(*answers_[i])) {
      told_.push_back({i, agents_->host(i), *answers_[i]});
    }
  }
}

void AgentCommands::TellSilent() const {
  if (here_) return;  // nobody has asked for an agent of this machine
  for (const std::string& line : silent_) std::fprintf(stderr, "dtrain: %s\n", line.c_str());
}

int AgentCommands::Nodes() {
  Ask();
  Json list = Json::array();
  for (size_t i = 0; i < answers_.size(); ++i) {
    Json node = {{"host", agents_->host(i)}};
    if (!answers_[i].ok()) {
      node["state"] = "unreachable";
      node["why"] = std::string(answers_[i].status().message());
    } else {
      const bool resident = nodes::Agents::IsResident(*answers_[i]);
      node["state"] = resident ? "ok" : "no agent";
      if (!resident) {
        node["why"] = "no resident agent of this build runs there; what it has was read without";
      }
      node.update(view::NodeView(*answers_[i], agents_->host(i)));
    }
    list.push_back(std::move(node));
  }
  if (options_.json) {
    PrintJson({{"nodes", list}});
  } else {
    Print(NodesPage(list));
  }
  return silent_.empty() ? kExitOk : kExitStartAgents;
}

absl::StatusOr<AgentJob> AgentCommands::Find() {
  Ask();
  const std::string& name = options_.job;
  std::vector<AgentJob> found;
  std::vector<std::string> ids;
  for (AgentJob& job : jobs()) {
    if (!absl::StartsWith(job.id, name)) continue;
    if (job.id == name) return std::move(job);
    ids.push_back(job.id);
    found.push_back(std::move(job));
  }
  if (found.size() == 1) return std::move(found[0]);
  if (found.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("several jobs run, say which one: ", absl::StrJoin(ids, ", ")));
  }
  TellSilent();
  std::vector<std::string> asked;
  for (const Told& one : told_) asked.push_back(one.host);
  return absl::NotFoundError(absl::StrCat(
      name.empty() ? "no job runs" : absl::StrCat("no job ", Escape(name, 80), " runs"),
      asked.empty() ? ": no resident agent has answered"
                    : absl::StrCat(" on ", absl::StrJoin(asked, ", "))));
}

absl::Status AgentCommands::Show(const AgentJob& job) {
  TellSilent();
  const Json page = AgentJobPage(job);
  if (options_.json) {
    PrintJson(page);
  } else {
    Print(JobPage(page));
  }
  return absl::OkStatus();
}

absl::Status AgentCommands::Logs(const AgentJob& job) {
  // Who may not see the ranks is refused by the first agent that he asks.
  const JobPart* part = &job.parts[0];
  bool known = part->job.world_size() == 0;
  for (const JobPart& each : job.parts) {
    for (const v1::RankOnNode& rank : each.job.ranks()) {
      if (rank.rank() != options_.rank) continue;
      part = &each;
      known = true;
    }
  }
  if (!known) {
    return absl::NotFoundError(
        absl::StrCat(job.id, ": rank ", options_.rank, " is on none of the hosts that were asked"));
  }
  v1::ReadLogRequest request;
  request.set_job_id(job.id);
  request.set_attempt(job.attempt);
  request.set_rank(options_.rank);
  request.set_stream(options_.stream == "stdout" ? v1::STREAM_KIND_STDOUT : v1::STREAM_KIND_STDERR);
  request.set_limit(kPieceBytes);
  for (bool first = true;; first = false) {
    auto piece = agents_->ReadLog(part->node, request);
    // The session of a job that has ended is over when its launcher has all.
    if (!first && absl::IsNotFound(piece.status())) return absl::OkStatus();
    if (!piece.ok()) return piece.status();
    if (!first && piece->offset() > request.offset()) {
      Print(absl::StrCat("[dtrain: ", piece->offset() - request.offset(),
                         " bytes are not kept any more]\n"));
    }
    Print(piece->data());
    std::fflush(stdout);
    request.set_offset(piece->offset() + piece->data().size());
    if (request.offset() < piece->size()) continue;
    if (!options_.follow || piece->ended()) return absl::OkStatus();
    poll(nullptr, 0, kPauseMs);
  }
}

absl::Status AgentCommands::Stop(const AgentJob& job) {
  TellSilent();
  std::vector<std::pair<size_t, v1::StopJobRequest>> requests;
  for (const JobPart& part : job.parts) {
    v1::StopJobRequest request;
    request.set_job_id(job.id);
    request.set_attempt(job.attempt);
    requests.emplace_back(part.node, std::move(request));
  }
  const auto replies = agents_->Stop(requests);
  for (size_t i = 0; i < replies.size(); ++i) {
    // It may have ended meanwhile.
    if (replies[i].ok() || absl::IsNotFound(replies[i].status())) continue;
    return absl::Status(
        replies[i].status().code(),
        absl::StrCat(agents_->host(requests[i].first), ": ", replies[i].status().message()));
  }
  return WaitForEnd(job);
}

absl::Status AgentCommands::WaitForEnd(const AgentJob& job) {
  for (;;) {
    Ask();
    for (const JobPart& part : job.parts) {
      const auto& answer = answers_[part.node];
      if (answer.ok()) continue;
      return absl::Status(answer.status().code(),
                          absl::StrCat(part.host, ": ", answer.status().message()));
    }
    const std::vector<AgentJob> left = jobs();
    if (std::none_of(left.begin(), left.end(), [&](const AgentJob& each) {
          return each.id == job.id && each.attempt == job.attempt && each.lives();
        })) {
      std::fprintf(stderr, "dtrain: %s has ended\n", job.id.c_str());
      return absl::OkStatus();
    }
    poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace dtrain::status
