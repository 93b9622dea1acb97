// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "common/tls/context.h"
#include "launcher/transport/name_lookup.h"
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
  // Fails for certificates that cannot be used, with what to do. Reading them takes OpenSSL some
  // milliseconds, in which the first of `hosts` are dialed already.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Make(loop::Loop& loop,
                                                            const TcpOptions& options,
                                                            const std::vector<Target>& hosts);
  std::unique_ptr<Connection> Connect(const Target& target, Callbacks callbacks) override;

 private:
  class Call;
  class Link;
  TcpTransport(loop::Loop& loop, const TcpOptions& options);
  uint16_t PortOf(const Target& target) const;

  loop::Loop& loop_;
  const TcpOptions options_;
  std::shared_ptr<const tls::Context> context_;  // once Make is done
  NameAnswers names_;
  loop::BlockingPool pool_;  // names are looked up and connections made there
  // Of hosts and ports that nobody has asked for yet.
  std::map<std::pair<std::string, uint16_t>, std::shared_ptr<Call>> ahead_;
  // Addresses at which hosts and ports were found last.
  std::map<std::pair<std::string, uint16_t>, std::string> reached_;
};

}  // namespace dtrain::transport
