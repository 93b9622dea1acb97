// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/child.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

// --rsh "CMD {host}": any command that, given one more word /bin/sh, runs that on the host with
// its stdin and stdout here. Trust is that command's. Loop thread.
class CommandTransport : public Transport {
 public:
  // The words of the command for a target, without the last.
  using Words = std::function<absl::StatusOr<std::vector<std::string>>(const Target& target)>;
  // `shown`: what messages call the command; empty: the command itself.
  CommandTransport(loop::Loop& loop, Words words, AgentBinary& agent, std::string shown = "");

  // `command`: the template, see words.h. `agent` outlives the transport.
  static absl::StatusOr<std::unique_ptr<CommandTransport>> Make(loop::Loop& loop,
                                                                absl::string_view command,
                                                                AgentBinary& agent);
  std::unique_ptr<Connection> Connect(const Target& target, Callbacks callbacks) override;

 private:
  loop::Loop& loop_;
  const Words words_;
  AgentBinary& agent_;
  const std::string shown_;
  ChildReaper reaper_;
};

}  // namespace dtrain::transport
