// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/ways.h"

// Asks the agents of nodes, without being a launcher.
namespace dtrain::nodes {

// The agents of some hosts, all asked at once. A call blocks until each has answered, has failed
// or has taken as long as --connect-timeout: none holds up the others. Connections are made with
// the first question and kept; one that breaks is made anew, and the question asked again, until
// that time is over: whatever is asked here may be asked twice. One thread.
class Agents {
 public:
  // Of `hosts`; where there are none, of this machine. Fails for certificates or a command that
  // cannot be used.
  static absl::StatusOr<std::unique_ptr<Agents>> Make(const hosts::HostList& hosts,
                                                      const transport::WayOptions& options);
  ~Agents();
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  size_t size() const { return nodes_.size(); }
  const std::string& host(size_t node) const;

  // Of each node, in their order. The message of a failure says what was tried and why it failed,
  // but for the host.
  std::vector<absl::StatusOr<v1::NodeReport>> AskAll();
  absl::StatusOr<v1::NodeReport> Ask(size_t node);
  // Likewise without blocking, for a caller that turns loop(): `done` is called there once, never
  // from inside, and not after these Agents are gone. One question of a node at a time. After a
  // failure the next one goes over a new connection.
  void AskLater(size_t node, absl::AnyInvocable<void(absl::StatusOr<v1::NodeReport>)> done);
  loop::Loop& loop() { return loop_; }
  // Of each that is named: (node, request).
  std::vector<absl::StatusOr<v1::StopJobReply>> Stop(
      const std::vector<std::pair<size_t, v1::StopJobRequest>>& requests);
  absl::StatusOr<v1::LogPiece> ReadLog(size_t node, const v1::ReadLogRequest& request);
  // The next question goes over a new connection.
  void Disconnect(size_t node);
  // The agent serves all and stays, unlike one that was started to answer us.
  static bool IsResident(const v1::NodeReport& report) { return report.started_unix_nanos() != 0; }

 private:
  struct Node;
  explicit Agents(const transport::WayOptions& options);
  void Connect(Node& node);
  absl::Status TookTooLong(absl::string_view what) const;
  std::vector<absl::StatusOr<v1::NodeReport>> Ask(const std::vector<size_t>& nodes);
  void Pause(Duration duration);
  template <typename Reply>
  absl::StatusOr<Reply> Explain(Node& node, absl::StatusOr<Reply> answer) const;
  template <typename Reply, typename Request, typename StartCall>
  std::vector<absl::StatusOr<Reply>> Call(const std::vector<std::pair<size_t, Request>>& requests,
                                          StartCall start_call);
  // One question to one node. `done` may be copied, and is called once, never from inside.
  template <typename Reply, typename Request, typename StartCall, typename Done>
  void Start(Node& node, const Request& request, TimePoint until, StartCall start_call, Done done);
  // Of those that `which` names, by their place, once.
  template <typename Reply, typename Request, typename StartCall>
  void CallOnce(const std::vector<std::pair<size_t, Request>>& requests,
                const std::vector<size_t>& which, TimePoint until, StartCall start_call,
                std::vector<absl::StatusOr<Reply>>& answers);

  // Members in start order, so that they stop in reverse.
  loop::Loop& loop_;  // the process's, until it leaves
  const Duration connect_timeout_;
  transport::AgentBinary agent_;
  transport::Ways ways_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace dtrain::nodes
