// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/tcp_server.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::stores {
namespace {

// Connections of a node: a rank has two for each store that it opens (torch up to 2.0; later one),
// and few ranks open a second. Not only ranks may ask for something.
constexpr size_t kMostPerRank = 64;
constexpr size_t kMostBesides = 64;
// Of all connections, of requests that are not whole and answers that are not read.
constexpr size_t kMostHeld = 256 << 20;

}  // namespace

bool TcpServer::MakeRoom(const Admission::Guest& guest) {
  Node& node = nodes_[guest.node];
  const size_t most = guest.ranks * kMostPerRank + kMostBesides;
  if (node.sessions < most) return true;
  reports_.refused(absl::StrCat("some connections from ", guest.address, ", which has ", most,
                                " already; those that never said anything go first"));
  if (node.silent.empty()) return false;
  const std::shared_ptr<TcpSession> oldest = clients_.at(*node.silent.begin()).session;
  oldest->Close();
  return true;
}

void TcpServer::Serve(StreamSocket socket, const Admission::Guest& guest, loop::Task over) {
  if (!MakeRoom(guest)) return over();
  const TcpStore::Client id = ++last_client_;
  TcpSession::Hooks hooks;
  hooks.on_request = [this, id](TcpRequest request) { return OnRequest(id, std::move(request)); };
  hooks.on_held = [this](ptrdiff_t change) {
    held_ += static_cast<size_t>(change);
    return change <= 0 || held_ <= kMostHeld;
  };
  hooks.on_over = [this, id](const absl::Status& why) { OnOver(id, why); };
  auto session = std::make_shared<TcpSession>(loop_, std::move(socket), std::move(hooks));
  clients_[id] = {session, guest.node, guest.address, std::move(over)};
  ++nodes_[guest.node].sessions;
  nodes_[guest.node].silent.insert(id);
  session->Start();
}

absl::Status TcpServer::OnRequest(TcpStore::Client from, TcpRequest request) {
  // A client that has only greeted connects again, if this process dies.
  if (request.op != TcpOp::kValidate && request.op != TcpOp::kPing) reports_.used();
  nodes_[clients_.at(from).node].silent.erase(from);
  TcpStore::Outcome outcome = store_.Handle(from, std::move(request));
  for (const TcpStore::Reply& reply : outcome.replies) {
    const auto client = clients_.find(reply.to);
    if (client == clients_.end()) continue;  // closed over an answer before
    const std::shared_ptr<TcpSession> session = client->second.session;
    session->Send(*reply.bytes);
  }
  return std::move(outcome.refused);
}

void TcpServer::OnOver(TcpStore::Client id, const absl::Status& why) {
  auto client = clients_.extract(id);
  store_.Leave(id);
  Node& node = nodes_[client.mapped().node];
  --node.sessions;
  node.silent.erase(id);
  if (!why.ok()) {
    reports_.refused(absl::StrCat("a client at ", client.mapped().address,
                                  " and closed its connection: ", std::string(why.message())));
  }
  client.mapped().over();
}

}  // namespace dtrain::stores
