// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

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

}  // namespace dtrain::shepherd
