// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "launcher/detached/log_segments.h"
#include "launcher/nodes/agents.h"
#include "launcher/status/agent_jobs.h"
#include "launcher/status/command_options.h"
#include "launcher/status/log_printer.h"
#include "launcher/status/log_reading.h"

// Between two looks of `dtrain top`.
inline constexpr int kRefreshMs = 1000;

// The commands' ways to agents, for jobs whose launcher is elsewhere, and `dtrain nodes`.
namespace dtrain::status {

// The resident agents of the hosts that the command line, the environment or the configuration file
// names, else of this machine. Blocks, prints.
class AgentCommands {
 public:
  static absl::StatusOr<std::unique_ptr<AgentCommands>> Make(const CommandOptions& options);
  // Those of `hosts`, which are some.
  static absl::StatusOr<std::unique_ptr<AgentCommands>> Of(const hosts::HostList& hosts,
                                                           const transport::WayOptions& ways,
                                                           const CommandOptions& options);

  // Those of the one host that `options` names for its page, for the page's server.
  static absl::StatusOr<std::unique_ptr<nodes::Agents>> OfOneHost(const CommandOptions& options);

  // Asks them all.
  void Ask();
  std::vector<AgentJob> jobs() const { return JobsOf(told_); }
  // There is an agent on each host, and it has answered.
  bool AllTold() const { return told_.size() == answers_.size(); }
  // Hosts that have not answered, "HOST: WHY".
  std::vector<std::string> silent() const { return here_ ? std::vector<std::string>() : silent_; }

  // `dtrain nodes`: its exit code.
  int Nodes();
  // Asks, and finds the job that was named, by its id or the beginning of it, or the only one. Of
  // another user's whose id is taken twice: by OWNER/ID.
  absl::StatusOr<AgentJob> Find();
  absl::Status Show(const AgentJob& job);
  // Shows it again and again, until it ends.
  absl::Status Watch(const AgentJob& job);
  absl::Status Logs(const AgentJob& job);
  absl::Status Stop(const AgentJob& job);
  // It is of this machine, as no hosts were named.
  bool here() const { return here_; }

 private:
  explicit AgentCommands(const CommandOptions& options) : options_(options) {}
  // What is left of a job that was seen before.
  struct Left {
    bool lives = false;
    std::vector<std::string> missing;  // why hosts of it have not told
    bool no_agent = false;             // on one of them: it may be restarted just now
  };
  Left LookAgain(const AgentJob& job);
  absl::Status AskToStop(const AgentJob& job);
  // What of that job lives and has not been asked: it began when the others were.
  std::optional<AgentJob> Unasked(const AgentJob& before) const;
  absl::Status WaitForEnd(AgentJob job);
  // One stream that is read from its agent.
  struct ReadStream {
    const JobPart* part = nullptr;
    detached::LogStream stream;
    LogReading reading;
    TimePoint heard;
    bool over = false;
  };
  // What it has now, to the end of what is there.
  absl::Status ReadOn(ReadStream& stream, LogPrinter& printer, bool* open);
  std::vector<ReadStream> StreamsOf(const AgentJob& job) const;
  void TellSilent() const;

  const CommandOptions options_;
  std::unique_ptr<nodes::Agents> agents_;
  Duration patience_{};  // --connect-timeout
  bool here_ = false;
  std::vector<absl::StatusOr<v1::NodeReport>> answers_;
  std::vector<Told> told_;  // by resident agents
  std::vector<std::string> silent_;
  std::set<std::pair<size_t, uint32_t>> asked_;  // nodes, and the numbers of their sessions
};

}  // namespace dtrain::status
