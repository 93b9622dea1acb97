// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "agent/shepherd/agent_absence.h"
#include "agent/shepherd/launcher_line.h"
#include "common/base/clock.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::shepherd {

// Where agents come to a shepherd. Who is not to be its agent is turned away. Loop thread.
class AgentDoor {
 public:
  using OnAgent = absl::AnyInvocable<void(os::UniqueFd socket)>;  // may destroy this

  // `listening` listens; `agent_uid` absent: root, or whoever we are.
  AgentDoor(loop::Loop& loop, os::UniqueFd listening, std::optional<uid_t> agent_uid,
            OnAgent on_agent);
  AgentDoor(const AgentDoor&) = delete;
  AgentDoor& operator=(const AgentDoor&) = delete;

 private:
  void Await();
  void Accept();
  bool MayEnter(uid_t uid) const;

  const os::UniqueFd listening_;
  const std::optional<uid_t> agent_uid_;
  const std::shared_ptr<OnAgent> on_agent_;
  loop::FdWatch watch_;
};

// The shepherd's line to its agent, and through it to the launcher. After KeepRunning it outlives
// agents: when one goes, the next may connect within the launcher's lease or, of a detached job, as
// long as that may be without one; only time counts in which this process runs. Loop thread.
class AgentLine {
 public:
  struct Handlers {
    absl::AnyInvocable<void(v1::JobRequest)> on_request;   // of the launcher
    absl::AnyInvocable<void(Duration silence)> on_silent;  // the launcher is
    absl::AnyInvocable<void(Duration grace)> on_end_job;   // the agent's own word
    absl::AnyInvocable<void(v1::ReadLogs, os::UniqueFd socket)> on_read_logs;
    absl::AnyInvocable<void(uint32_t port, os::UniqueFd socket)> on_held_port;
    absl::AnyInvocable<void()> on_another;   // launcher, which knows nothing of what was said
    absl::AnyInvocable<void()> on_adopted;   // another agent: it knows nothing
    absl::AnyInvocable<void()> on_released;  // the agent has all it wants
    absl::AnyInvocable<void()> on_lost;      // there is no agent, and none will come
    absl::AnyInvocable<void()> on_log;       // our stderr is another now
  };

  // Where agents come to a shepherd that was started by somebody else than its agent.
  struct Door {
    os::UniqueFd listening;
    uid_t agent_uid = 0;  // others are turned away
    Duration lease;       // for the first one
  };

  AgentLine(loop::Loop& loop, os::UniqueFd socket, Handlers handlers);
  AgentLine(loop::Loop& loop, Door door, Handlers handlers);
  ~AgentLine() { *alive_ = false; }
  AgentLine(const AgentLine&) = delete;
  AgentLine& operator=(const AgentLine&) = delete;

  // To the agent; dropped while none is connected.
  void Tell(const v1::ShepherdEvent& event);
  LauncherLine& launcher() { return launcher_; }
  bool has_agent() const { return channel_ != nullptr; }
  // When an agent, or through it the launcher, last said something.
  TimePoint last_heard() const { return std::max(agent_heard_, launcher_.last_heard()); }
  // Bytes that wait for the agent to read them; 0 while there is none.
  size_t queued_bytes() const { return channel_ != nullptr ? channel_->queued_bytes() : 0; }
  // Calls `task` when agent and launcher have been sent all, or there is no agent.
  void WhenSaid(loop::Task task);
  // What KeepRunning said; null: this line ends with its agent.
  const v1::KeepRunning* kept() const { return kept_ ? &*kept_ : nullptr; }
  bool lost() const { return lost_; }
  // Without an agent, from now on or later, the next has so long at most. What was said first
  // holds.
  void WaitAtMost(Duration limit) { absence_.LimitTo(limit); }
  // As if no agent came any more.
  void End() { Lose(); }

 private:
  LauncherLine::Handlers LauncherHandlers();
  void Connect(os::UniqueFd socket);
  void Attach(const v1::Attach& attach, os::UniqueFd socket);
  void AwaitDrained();
  void Drained();
  void CheckSaid();
  void OnFrame(absl::string_view frame, os::UniqueFd fd);
  void Keep(v1::KeepRunning keep, os::UniqueFd bound);
  void Open(os::UniqueFd listening, std::optional<uid_t> agent_uid);
  void Receive(os::UniqueFd socket);
  void OnClosed();
  void Lose();

  loop::Loop& loop_;
  Handlers handlers_;
  std::optional<v1::KeepRunning> kept_;
  std::unique_ptr<AgentDoor> door_;  // null: no other agent can come
  AgentAbsence absence_;
  TimePoint agent_heard_{};  // or its connection has begun or ended
  loop::Task on_said_;
  bool lost_ = false;
  LauncherLine launcher_;
  std::unique_ptr<loop::FrameChannel> channel_;  // null: no agent
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::shepherd
