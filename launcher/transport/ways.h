// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/ssh_transport.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

// How agents are reached, where a host's line does not say.
struct WayOptions {
  std::string ssh_config;  // empty: the user's own and the system's
  uint16_t ssh_port = 0;   // 0: as the hostfile or the ssh config says
  Duration connect_timeout = std::chrono::seconds(10);
  Duration silence = std::chrono::seconds(15);  // of a jump host, for the whole of a job
  std::string rsh;            // a command with {host} in it, instead of ssh; empty: ssh
  bool tcp = false;           // --agent tcp: resident agents, with TLS
  uint16_t agent_port = 0;    // 0: the usual one
  std::string tls_directory;  // empty: ~/.config/dtrain/tls
  std::function<void(const std::string&)> on_detail;  // told what --verbose shows; may be empty
};

// The transports of one command, each made when a host needs it. Outlives their connections. Loop
// thread.
class Ways {
 public:
  Ways(loop::Loop& loop, WayOptions options, AgentBinary& agent);

  // Makes what can be refused, and may dial hosts already: Unauthenticated for certificates that
  // cannot be used, InvalidArgument for a command without {host}. `local`: the list stands for this
  // machine.
  absl::Status Prepare(const hosts::HostList& hosts, bool local);
  // Of one of the list.
  Transport& For(const hosts::HostEntry& entry);
  // Its agent is a process of this machine that we start ourselves.
  bool IsOwnChild(const hosts::HostEntry& entry) const;

 private:
  SshOptions Ssh() const;
  bool IsTcp(const hosts::HostEntry& entry) const;
  absl::Status PrepareTcp(const hosts::HostEntry& first, const std::vector<Target>& hosts);

  loop::Loop& loop_;
  const WayOptions options_;
  AgentBinary& agent_;
  bool all_local_ = false;
  std::unique_ptr<Transport> local_;
  std::unique_ptr<Transport> command_;
  std::unique_ptr<Transport> ssh_;
  std::unique_ptr<Transport> tcp_;
};

}  // namespace dtrain::transport
