// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/worker_exit.h"
#include "dtrain/v1/job.pb.h"
#include "launcher/job/job_core.h"

// How ends are judged and told. Pure functions and values of JobCore.

namespace dtrain::job {

// What `dtrain launch` exits with when this worker was the first to fail; never 0.
int WorkerExitCode(const v1::WorkerExit& exit);

// The failure's own code when it makes sense, else the one of its kind.
int FailureExitCode(const v1::NodeFailure& failure);

// "SIGTERM", or "signal 40".
std::string SignalName(int signal);

// Why a job was ended by a signal: "ended by SIGTERM", "ended by SIGTERM, sent by bash (pid 17,
// root)", "stopped by dtrain stop (root, node0)". `from` is who it came from, empty if nobody
// knows.
std::string EndedBy(int signal, absl::string_view from);
// How `from` begins if it was that command.
inline constexpr absl::string_view kStopCommand = "dtrain stop (";

// "15 s", "0.5 s"
std::string FormatSeconds(std::chrono::nanoseconds duration);

// A message of a node or a connection, made safe for a terminal. Unlike Escape it leaves
// backslashes alone, as such messages hold text that is escaped already, and keeps line ends, with
// an indentation that no line of ours has.
std::string Printable(absl::string_view text);

// How far a node's clock is ahead of ours, from when its messages were sent and received. The true
// offset is the largest seen: a message is never received before it is sent. Only the last few
// count, and none from before the clock was set.
class NodeClock {
 public:
  void Add(int64_t node_unix_nanos, int64_t our_unix_nanos);

  // Of the present estimate, 0 when there is none.
  int64_t ahead_nanos() const;
  // As if that clock had never been set since the first: for times that its programs count from
  // then on by a clock that nobody sets.
  int64_t ahead_at_start_nanos() const;
  // A time of that node's clock on ours, not after `received` (0: unknown), when we heard of it.
  int64_t ToOurs(int64_t node_unix_nanos, int64_t received) const;

 private:
  std::array<int64_t, 8> offsets_{};
  size_t count_ = 0;
  int64_t stepped_ = 0;  // by how much it was set, in all
};

// What the phases want done, until JobCore hands it out.
class Out {
 public:
  void Add(Action action) { actions_.push_back(std::move(action)); }
  // To be filled in before anything else is asked for.
  v1::SessionRequest& ToAgent(NodeId node);
  v1::JobRequest& ToShepherd(NodeId node, std::shared_ptr<const v1::JobPart> common = nullptr);
  // To none: nothing.
  void ToAgents(std::vector<NodeId> nodes, v1::SessionRequest request);
  void ToShepherds(std::vector<NodeId> nodes, v1::JobRequest request);
  void Warn(std::string text, bool detail = false);

  std::vector<Action> Take() { return std::exchange(actions_, {}); }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  std::vector<Action> actions_;
  std::vector<std::string> warnings_;
};

}  // namespace dtrain::job
