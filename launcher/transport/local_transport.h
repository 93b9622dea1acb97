// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "launcher/transport/child.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

// An agent on this machine, as a child: `dtrain-agent bridge --socket` with a connected stream
// socket as fd 0, on which it prints its handshake line and then speaks gRPC. Same user, no
// authentication. Targets are not looked at. Loop thread.
class LocalTransport : public Transport {
 public:
  // `agent_path`: AgentBinary::path().
  LocalTransport(loop::Loop& loop, std::string agent_path);
  std::unique_ptr<Connection> Connect(const Target& target, Callbacks callbacks) override;

 private:
  loop::Loop& loop_;
  const std::string agent_path_;
  ChildReaper reaper_;
};

}  // namespace dtrain::transport
