// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "agent/stores/server.h"
#include "agent/stores/tcp_session.h"
#include "agent/stores/tcp_store.h"

namespace dtrain::stores {

// PyTorch's TCPStore for the ranks of one job. Each node may have so many connections for each of
// its ranks, so that its users cannot keep out the ranks of another; when it has them all, a new
// one takes the place of the oldest that has never said anything. Loop thread.
class TcpServer : public Server {
 public:
  TcpServer(loop::Loop& loop, Reports& reports) : loop_(loop), reports_(reports) {}
  void Serve(StreamSocket client, const Admission::Guest& guest, loop::Task over) override;
  size_t most_sessions() const override { return SIZE_MAX; }

 private:
  struct Client {
    std::shared_ptr<TcpSession> session;
    std::string node, address;
    loop::Task over;
  };
  struct Node {
    size_t sessions = 0;
    std::set<TcpStore::Client> silent;  // those that have not made a request yet
  };
  bool MakeRoom(const Admission::Guest& guest);
  absl::Status OnRequest(TcpStore::Client from, TcpRequest request);
  void OnOver(TcpStore::Client client, const absl::Status& why);

  loop::Loop& loop_;
  Reports& reports_;
  TcpStore store_;
  std::map<TcpStore::Client, Client> clients_;
  std::map<std::string, Node> nodes_;
  TcpStore::Client last_client_ = 0;
  size_t held_ = 0;  // bytes on their way, of all sessions
};

}  // namespace dtrain::stores
