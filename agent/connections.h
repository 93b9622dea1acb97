// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/accounts.h"
#include "agent/answers/node_answers.h"
#include "agent/auth/identity.h"
#include "agent/auth/places.h"
#include "agent/auth/refusal_log.h"
#include "agent/session/agent_service.h"
#include "agent/session/sessions.h"
#include "common/http/server.h"
#include "common/loop/loop.h"
#include "common/loop/stray_descriptors.h"
#include "common/loop/threads.h"
#include "common/os/unique_fd.h"
#include "common/rpc/channel.h"
#include "common/rpc/frame_guard.h"
#include "common/tls/context.h"
#include "common/tls/stream.h"

namespace dtrain::agent {

// Everybody who is connected to a resident agent. Each connection has a gRPC server of its own, so
// that who its peer is holds for all that comes over it. Loop thread.
class Connections {
 public:
  Connections(loop::Loop& loop, session::Sessions& sessions, answers::NodeAnswers& answers);
  ~Connections();

  // For those who come from now on.
  void SetPolicy(auth::Policy policy) { policy_ = std::move(policy); }
  // Ends the connections of those whom it does not believe any more, as their certificates are
  // revoked, or of an authority that is gone. Null: of all who came over TCP.
  void SetTls(std::shared_ptr<const tls::Context> context);

  // A peer on the unix socket: known by the kernel's word.
  void AdmitUnix(loop::StrangersSocket socket);
  // The same, for one who asks over HTTP.
  void AdmitHttp(loop::StrangersSocket socket);
  // One from elsewhere, at `address`: known by the certificate it shows. It speaks gRPC or HTTP.
  void AdmitTcp(os::UniqueFd socket, const std::string& address);
  size_t size() const { return connections_.size(); }
  // Of whoever is connected.
  const Accounts& accounts() const { return accounts_; }

 private:
  struct Connection;
  using Place = std::list<std::unique_ptr<Connection>>::iterator;

  using Pool = auth::Places::Pool;
  using Ticket = auth::Places::Ticket;
  // A place for one of `origin`; none: it was refused.
  std::optional<Ticket> TakePlace(Pool pool, const std::string& origin, auth::Places::Rank rank);
  // Over TCP, before it has said who it is.
  std::optional<Ticket> TakeHandshake(const std::string& address);
  auth::Places::Rank RankOf(const auth::UnixPeer& peer) const;
  auth::Places::Rank RankOf(const tls::Certificate& peer) const;
  // Finds out who sits at the other end of a unix socket, if it is not refused.
  using Identified = absl::AnyInvocable<void(loop::StrangersSocket, auth::Identity, Ticket)>;
  void Identify(Pool pool, loop::StrangersSocket socket, Identified then);
  // Of messages that one of `origin` has begun.
  rpc::FrameGuard GuardFor(const std::string& origin);
  // Of all that gRPC has in memory for connections of `origin`.
  std::shared_ptr<rpc::Quota> QuotaFor(const std::string& origin);
  void OnTlsReady(Place place, tls::Ready ready);
  void OnAccount(Place place, tls::Ready ready, const absl::StatusOr<os::Account>& found);
  // What gRPC is to read instead of a unix socket, looked at before; none when that cannot be had.
  os::UniqueFd Guard(Place place, loop::StrangersSocket socket);
  void Serve(Place place, auth::Identity peer, os::UniqueFd stream);
  // Now or later: it has a place for as long as it has calls.
  void CloseWhenSilent(Place place);
  void Refuse(const std::string& origin, absl::string_view why);
  void Close(Place place);
  void TrimSoon();

  loop::Loop& loop_;
  session::Sessions& sessions_;
  answers::NodeAnswers& answers_;
  Accounts accounts_;
  const std::unique_ptr<http::Server> http_;
  auth::Policy policy_;
  std::shared_ptr<const tls::Context> tls_;
  auth::RefusalLog refusals_;
  auth::Places places_;
  std::map<std::string, std::weak_ptr<rpc::SharedLimit>> unfinished_;
  std::map<std::string, std::weak_ptr<rpc::Quota>> quotas_;
  std::optional<rpc::Library> grpc_;  // until a while after the last connection
  loop::Timer rest_{loop_};
  // How many of whom it has yet to close.
  std::shared_ptr<std::map<std::string, size_t>> closings_ =
      std::make_shared<std::map<std::string, size_t>>();
  loop::BlockingPool closing_{1};
  loop::Timer trim_{loop_};
  int trims_due_ = 0;
  std::list<std::unique_ptr<Connection>> connections_;
};

}  // namespace dtrain::agent
