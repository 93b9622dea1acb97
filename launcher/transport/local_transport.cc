// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/local_transport.h"

#include <utility>

#include "common/base/text.h"
#include "launcher/transport/child_connection.h"

namespace dtrain::transport {
namespace {

// An agent whose launcher is gone gives its workers their grace first.
constexpr EndPolicy kLocalEnd = {std::chrono::seconds(10), std::chrono::seconds(6), false};

}  // namespace

LocalTransport::LocalTransport(loop::Loop& loop, std::string agent_path)
    : loop_(loop), agent_path_(std::move(agent_path)), reaper_(loop) {}

std::unique_ptr<Connection> LocalTransport::Connect(const Target& target, Callbacks callbacks) {
  ChildSpec spec;
  spec.argv = {agent_path_, "bridge", "--socket"};
  if (std::string flag = BridgeFlag(target); !flag.empty()) spec.argv.push_back(std::move(flag));
  spec.shown = Escape(agent_path_);
  spec.end = kLocalEnd;
  return std::make_unique<ChildConnection>(loop_, reaper_, std::move(spec), std::move(callbacks));
}

}  // namespace dtrain::transport
