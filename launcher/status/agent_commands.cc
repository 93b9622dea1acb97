// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/agent_commands.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/os/account.h"
#include "launcher/cli/options.h"
#include "launcher/status/log_printer.h"
#include "launcher/status/log_reading.h"
#include "launcher/status/node_json.h"
#include "launcher/status/print.h"
#include "launcher/status/tables.h"

namespace dtrain::status {
namespace {

using Json = nlohmann::ordered_json;

// Between two looks at a job that ends, and at output that may have grown.
constexpr int kPauseMs = 200;
constexpr uint32_t kPieceBytes = 1 << 20;
// Of a job that was to be ended.
constexpr char kNotKnown[] = "; whether the job has ended there is not known: repeat `dtrain stop`";

absl::Status OnHost(const std::string& host, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(host, ": ", Escape(why.message(), 1000)));
}

bool IsSame(const AgentJob& a, const AgentJob& b) { return a.id == b.id && a.owner == b.owner; }

absl::Status HasGone(const std::string& host) {
  return absl::UnavailableError(absl::StrCat(host, ": the resident agent there no longer answers"));
}

absl::Status ReadHosts(const CommandOptions& options, cli::LaunchOptions& launch,
                       hosts::HostList& hosts) {
  const cli::Surroundings surroundings = cli::ProcessSurroundings();
  auto parsed = cli::ParseHosts(options.host_words, surroundings);
  if (!parsed.ok()) return parsed.status();
  launch = *std::move(parsed);
  auto read = cli::ReadHosts(launch, surroundings);
  if (!read.ok()) return read.status();
  hosts = *std::move(read);
  for (const std::string& warning : hosts.warnings) {
    std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
  }
  return absl::OkStatus();
}

// Of `hosts`, which may be all of a configuration file, the one that is `name`, else `name` itself;
// without a name the only one. Nothing: this machine.
absl::StatusOr<std::vector<hosts::HostEntry>> ChooseHost(const std::vector<hosts::HostEntry>& hosts,
                                                         const CommandOptions& options) {
  const std::string& name = options.job;
  if (name.empty()) {
    if (hosts.size() <= 1) return hosts;
    return absl::InvalidArgumentError(absl::StrCat(
        "a page shows one node, and ", hosts.size(),
        " hosts are named or configured; name one: dtrain page --node ", hosts[0].host));
  }
  auto named = hosts::ParseHostList(name, "--node");
  if (!named.ok()) return named.status();
  if (named->entries.size() != 1) {
    return absl::InvalidArgumentError("a page shows one node; name one host");
  }
  for (const hosts::HostEntry& entry : hosts) {
    if (entry.host != named->entries[0].host) continue;
    // What was typed counts more.
    hosts::HostEntry chosen = entry;
    if (!named->entries[0].user.empty()) chosen.user = named->entries[0].user;
    if (named->entries[0].port != 0) chosen.port = named->entries[0].port;
    return std::vector{chosen};
  }
  if (options.names_hosts) {
    return absl::NotFoundError(
        absl::StrCat(Escape(name, 80), " is not among the hosts that were named"));
  }
  return named->entries;
}

}  // namespace

absl::StatusOr<std::unique_ptr<nodes::Agents>> AgentCommands::OfOneHost(
    const CommandOptions& options) {
  cli::LaunchOptions launch;
  hosts::HostList hosts;
  if (absl::Status read = ReadHosts(options, launch, hosts); !read.ok()) return read;
  auto chosen = ChooseHost(hosts.entries, options);
  if (!chosen.ok()) return chosen.status();
  hosts.entries = *std::move(chosen);
  return nodes::Agents::Make(hosts, launch.transport);
}

absl::StatusOr<std::unique_ptr<AgentCommands>> AgentCommands::Make(const CommandOptions& options) {
  cli::LaunchOptions launch;
  hosts::HostList hosts;
  // A list of what runs is not to ask all hosts of a configuration file.
  if (options.command != "ps" || options.names_hosts) {
    if (absl::Status read = ReadHosts(options, launch, hosts); !read.ok()) return read;
  }
  return Of(hosts, launch.transport, options);
}

absl::StatusOr<std::unique_ptr<AgentCommands>> AgentCommands::Of(const hosts::HostList& hosts,
                                                                 const transport::WayOptions& ways,
                                                                 const CommandOptions& options) {
  std::unique_ptr<AgentCommands> commands(new AgentCommands(options));
  auto agents = nodes::Agents::Make(hosts, ways);
  if (!agents.ok()) return agents.status();
  commands->agents_ = *std::move(agents);
  commands->patience_ = ways.connect_timeout;
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
    list.push_back(NodeJson(agents_->host(i), answers_[i]));
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
  auto found = Named(jobs(), name);
  if (!found.ok()) return found.status();
  if (found->has_value()) return **std::move(found);
  TellSilent();
  std::vector<std::string> asked;
  for (const Told& one : told_) asked.push_back(one.host);
  return absl::NotFoundError(absl::StrCat(
      name.empty() ? "no job is running" : absl::StrCat("no job ", Escape(name, 80), " is running"),
      asked.empty() ? ", and no resident agent answered"
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

std::vector<AgentCommands::ReadStream> AgentCommands::StreamsOf(const AgentJob& job) const {
  std::map<uint32_t, const JobPart*> parts;  // by rank
  for (const JobPart& each : job.parts) {
    for (const v1::RankOnNode& rank : each.job.ranks()) parts.try_emplace(rank.rank(), &each);
  }
  // Who may not see the ranks is refused by the first agent that he asks.
  if (job.parts[0].job.world_size() == 0)
    parts.try_emplace(options_.rank.value_or(0), &job.parts[0]);
  std::vector<ReadStream> streams;
  for (const auto& [rank, part] : parts) {
    if (options_.rank && *options_.rank != rank) continue;
    for (const bool is_stderr : {false, true}) {
      if (options_.stream && (*options_.stream == "stderr") != is_stderr) continue;
      v1::ReadLogRequest request;
      request.set_job_id(job.id);
      request.set_owner(job.owner);
      request.set_attempt(part->job.attempt());
      request.set_rank(rank);
      request.set_stream(is_stderr ? v1::STREAM_KIND_STDERR : v1::STREAM_KIND_STDOUT);
      request.set_limit(kPieceBytes);
      streams.push_back({part,
                         {Rank(rank), is_stderr},
                         LogReading(request, options_.follow),
                         Clock::now(),
                         false});
    }
  }
  return streams;
}

absl::Status AgentCommands::Logs(const AgentJob& job) {
  if (options_.timestamps || options_.since_unix_nanos) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.timestamps ? "-t" : "--since",
                     ": agents do not know when output "
                     "came; run dtrain logs where the job was launched"));
  }
  std::vector<ReadStream> streams = StreamsOf(job);
  if (streams.empty()) {
    return absl::NotFoundError(
        options_.rank
            ? absl::StrCat(job.id, ": rank ", *options_.rank, " is not on any of these hosts")
            : absl::StrCat(job.id, " has no rank on any of these hosts"));
  }
  const auto own = os::FindAccount(geteuid());
  LogPrinter printer(options_, !own.ok() || streams[0].part->job.owner() != own->name);
  printer.SetRanks(job.parts[0].job.world_size());
  if (options_.follow) printer.ShowUnfinished();
  bool open = true;
  for (;;) {
    bool all_over = true;
    for (ReadStream& stream : streams) {
      if (absl::Status read = ReadOn(stream, printer, &open); !read.ok()) return read;
      if (!open) return printer.Finish();
      all_over = all_over && stream.over;
    }
    if (all_over || !printer.Look(Clock::now())) return printer.Finish();
    poll(nullptr, 0, kPauseMs);
  }
}

absl::Status AgentCommands::ReadOn(ReadStream& stream, LogPrinter& printer, bool* open) {
  const JobPart& part = *stream.part;
  while (!stream.over) {
    auto piece = agents_->ReadLog(part.node, stream.reading.request());
    if (absl::IsNotFound(piece.status()) && stream.reading.begun()) {
      // The session of a job that has ended is over when its launcher has all. Without its agent
      // nobody on the host knows of the job.
      const auto report = agents_->Ask(part.node);
      stream.over = report.ok() && nodes::Agents::IsResident(*report);
      if (stream.over) break;
      if (Clock::now() - stream.heard > patience_) return HasGone(part.host);
      agents_->Disconnect(part.node);
      break;
    }
    stream.heard = Clock::now();
    auto step = piece.ok() ? stream.reading.OnPiece(*std::move(piece)) : piece.status();
    if (!step.ok()) return OnHost(part.host, step.status());
    *open = printer.Add(stream.stream, step->text);
    if (!*open || step->then == LogReading::Then::kPause) break;
    stream.over = step->then == LogReading::Then::kEnd;
  }
  return absl::OkStatus();
}

absl::Status AgentCommands::Stop(const AgentJob& job) {
  TellSilent();
  if (options_.job.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("agents do not know which job you mean; name it: ", job.id, " of ",
                     Escape(job.owner), " runs on ", Escape(job.parts[0].host)));
  }
  if (absl::Status told = AskToStop(job); !told.ok()) return told;
  return WaitForEnd(job);
}

absl::Status AgentCommands::AskToStop(const AgentJob& job) {
  std::vector<std::pair<size_t, v1::StopJobRequest>> requests;
  for (const JobPart& part : job.parts) {
    asked_.emplace(part.node, part.job.attempt());
    v1::StopJobRequest request;
    request.set_job_id(job.id);
    request.set_owner(job.owner);
    request.set_attempt(part.job.attempt());
    requests.emplace_back(part.node, std::move(request));
  }
  const auto replies = agents_->Stop(requests);
  absl::Status failed;
  bool told = false;
  for (size_t i = 0; i < replies.size(); ++i) {
    const std::string& host = agents_->host(requests[i].first);
    absl::Status status = replies[i].status();
    if (absl::IsNotFound(status)) {
      // It has ended meanwhile, if that is said by who must know.
      const auto report = agents_->Ask(requests[i].first);
      const bool knows = report.ok() && nodes::Agents::IsResident(*report);
      status = knows ? absl::OkStatus() : HasGone(host);
    }
    told = told || status.ok();
    if (failed.ok() || absl::IsPermissionDenied(status)) failed = OnHost(host, status);
  }
  if (absl::IsPermissionDenied(failed)) return failed;
  // Who was told ends the job everywhere.
  if (told) return absl::OkStatus();
  return absl::Status(failed.code(), absl::StrCat(failed.message(), kNotKnown));
}

AgentCommands::Left AgentCommands::LookAgain(const AgentJob& job) {
  Ask();
  Left left;
  for (const JobPart& part : job.parts) {
    const auto& answer = answers_[part.node];
    if (answer.ok() && nodes::Agents::IsResident(*answer)) continue;
    left.no_agent = left.no_agent || answer.ok();
    const absl::Status why = answer.ok() ? HasGone(part.host) : OnHost(part.host, answer.status());
    left.missing.emplace_back(why.message());
    agents_->Disconnect(part.node);
  }
  for (const AgentJob& each : jobs()) {
    left.lives |= IsSame(each, job) && each.attempt == job.attempt && each.lives();
  }
  return left;
}

std::optional<AgentJob> AgentCommands::Unasked(const AgentJob& before) const {
  for (AgentJob& job : jobs()) {
    if (!IsSame(job, before) || !job.lives()) continue;
    for (const JobPart& part : job.parts) {
      if (part.job.state() != v1::JobOnNode::STATE_FINISHED &&
          !asked_.contains({part.node, part.job.attempt()})) {
        return std::move(job);
      }
    }
  }
  return std::nullopt;
}

// A session that was over when it was to be asked has told nobody; one of a next attempt, or of a
// host of an elastic job that begins again, is asked in its place.
absl::Status AgentCommands::WaitForEnd(AgentJob job) {
  const TimePoint until = Clock::now() + patience_;
  for (;;) {
    const Left left = LookAgain(job);
    if (std::optional<AgentJob> more = Unasked(job)) {
      job = *std::move(more);
      if (absl::Status told = AskToStop(job); !told.ok()) return told;
      continue;
    }
    if (!left.lives && left.missing.empty()) {
      PrintEnded(job.id, options_.json);
      return absl::OkStatus();
    }
    if (!left.lives && !(left.no_agent && Clock::now() < until)) {
      return absl::UnavailableError(absl::StrCat(absl::StrJoin(left.missing, "; "), kNotKnown));
    }
    poll(nullptr, 0, kPauseMs);
  }
}

absl::Status AgentCommands::Watch(const AgentJob& first) {
  TimePoint heard = Clock::now();
  for (AgentJob job = first;;) {
    PrintPageAnew(JobPage(AgentJobPage(job)));
    poll(nullptr, 0, kRefreshMs);
    const Left left = LookAgain(job);
    TellSilent();
    if (left.lives) {
      heard = Clock::now();
      for (AgentJob& each : jobs()) {
        if (IsSame(each, job) && each.attempt == job.attempt) job = std::move(each);
      }
    } else if (left.missing.empty()) {
      std::fprintf(stderr, "dtrain: %s has ended\n", job.id.c_str());
      return absl::OkStatus();
    } else if (Clock::now() - heard > patience_) {
      return absl::UnavailableError(absl::StrJoin(left.missing, "; "));
    }
  }
}

}  // namespace dtrain::status
