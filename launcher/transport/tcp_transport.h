// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "common/tls/context.h"
#include "launcher/transport/transport.h"

namespace dtrain::transport {

// Where resident agents listen when nobody says otherwise.
inline constexpr uint16_t kAgentPort = 9797;

struct TcpOptions {
  tls::Files tls;
  uint16_t port = kAgentPort;  // for hosts that name none
  Duration connect_timeout = std::chrono::seconds(10);
};

// What a user has: the files that `dtrain-pki bundle` makes, in `directory` or, when that is empty,
// ~/.config/dtrain/tls. UNAUTHENTICATED when they are not there. Port 0: the usual one.
absl::StatusOr<TcpOptions> UserTcpOptions(std::string directory, uint16_t port);

// Resident agents, over TCP with mutual TLS: the host must prove that it is the node of that name,
// and we who we are. Loop thread.
class TcpTransport : public Transport {
 public:
  // Fails for certificates that cannot be used, with what to do.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Make(loop::Loop& loop,
                                                            const TcpOptions& options);
  std::unique_ptr<Connection> Connect(const Target& target, Callbacks callbacks) override;

 private:
  class Link;
  TcpTransport(loop::Loop& loop, const TcpOptions& options,
               std::shared_ptr<const tls::Context> context);

  loop::Loop& loop_;
  const TcpOptions options_;
  const std::shared_ptr<const tls::Context> context_;
  loop::BlockingPool pool_;  // names are looked up and connections made there
};

}  // namespace dtrain::transport
