// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/agent_door.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "common/log/log.h"
#include "common/os/credentials.h"

namespace dtrain::shepherd {

AgentDoor::AgentDoor(loop::Loop& loop, os::UniqueFd listening, std::optional<uid_t> agent_uid,
                     OnAgent on_agent)
    : listening_(std::move(listening)),
      agent_uid_(agent_uid),
      on_agent_(std::make_shared<OnAgent>(std::move(on_agent))),
      watch_(loop, listening_.get()) {
  Await();
}

void AgentDoor::Await() {
  watch_.OnReadable([this] { Accept(); });
}

void AgentDoor::Accept() {
  os::UniqueFd socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  Await();
  if (!socket) return;
  const auto peer = os::PeerOf(socket.get());
  if (!peer.ok() || !MayEnter(peer->uid)) {
    return log::Warn("a process of another user tried to pose as the agent");
  }
  const std::shared_ptr<OnAgent> on_agent = on_agent_;
  (*on_agent)(std::move(socket));
}

bool AgentDoor::MayEnter(uid_t uid) const {
  return agent_uid_ ? uid == *agent_uid_ : uid == 0 || uid == geteuid();
}

}  // namespace dtrain::shepherd
