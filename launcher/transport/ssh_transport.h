// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/loop/loop.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/ssh_link.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

struct SshOptions {
  std::string config_file;  // empty: ~/.ssh/config and the system's
  uint16_t port = 0;        // --ssh-port: wins over the configuration, not over a target's own
  Duration connect_timeout = std::chrono::seconds(10);
  Duration silence = std::chrono::seconds(15);        // of a jump host, after which it is lost
  std::function<void(const std::string&)> on_detail;  // told what --verbose shows; may be empty
};

// By host: what its configuration asks for that libssh cannot do.
using BeyondLibssh = std::map<std::string, std::string>;

// ssh by OpenSSH's own client, a process per node. `beyond`: why, if that is the reason.
std::unique_ptr<Transport> MakeOpenSsh(loop::Loop& loop, const SshOptions& options,
                                       AgentBinary& agent,
                                       std::shared_ptr<const BeyondLibssh> beyond = nullptr);

// ssh by libssh, one session and one thread per node; by OpenSSH's client where libssh cannot do
// what the configuration asks for. A failure is NOT_FOUND when the name cannot
// be resolved, UNAUTHENTICATED for a host key, PERMISSION_DENIED for a login, DEADLINE_EXCEEDED
// when nothing answered. Nothing ever asks on the terminal. Loop thread.
class SshTransport : public Transport {
 public:
  SshTransport(loop::Loop& loop, SshOptions options, AgentBinary& agent);
  // Waits a moment for connections that were given up to take leave; a cut cable does not hold it.
  ~SshTransport() override;
  std::unique_ptr<Connection> Connect(const Target& target, Callbacks callbacks) override;

 private:
  class SshConnection;
  struct Crew;  // shared with the tasks that threads post, which may outlive this
  void Start(std::shared_ptr<SshLink> link, Target target);
  static void Leave(const std::shared_ptr<Crew>& crew, const std::shared_ptr<SshLink>& link,
                    bool at_once);

  loop::Loop& loop_;
  const SshOptions options_;
  AgentBinary& agent_;
  const std::shared_ptr<BeyondLibssh> beyond_ = std::make_shared<BeyondLibssh>();
  const std::unique_ptr<Transport> open_ssh_;
  std::shared_ptr<Crew> crew_;
};

}  // namespace dtrain::transport
