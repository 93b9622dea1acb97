// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/result.h"
#include "runtime/net/endpoint.h"
#include "runtime/net/socket.h"

namespace dtrain::runtime {

// Connects the leaders of the nodes with each other: one listening port for each, at which the
// later nodes' leaders come. Both sides of a connection show that they know the other's token, and
// strangers are turned away. One thread.
class Links {
 public:
  // What a connection is for; one of each between every two nodes.
  enum class Use : uint32_t { kData, kControl };
  static constexpr size_t kUses = 2;

  // `leaders[n]` is the rank that speaks for node n, for texts. Listens on `ip`, numeric.
  static Result<std::unique_ptr<Links>> Listen(int node, std::vector<int> leaders,
                                               const std::string& ip);

  const NodeEndpoint& endpoint() const { return endpoint_; }

  // Fails, naming the rank, when a connection is refused or not there at the deadline. Listens no
  // more afterwards.
  MaybeError Connect(const std::vector<NodeEndpoint>& endpoints, Deadline deadline);

  // After Connect, once for each use: by node; none for this one. They do not block.
  std::vector<Socket> Take(Use use) { return std::move(lines_[static_cast<size_t>(use)]); }

 private:
  // On its way to an earlier node.
  struct Outgoing {
    size_t peer;
    Use use;
    Socket socket;
    bool greeted = false;  // it is connected, and our card is sent
    int tries = 0;
    Deadline again{};  // when to try next, while there is no socket
  };
  // Has connected, and has not shown a card yet.
  struct Stranger {
    Socket socket;
    Deadline until;
  };

  Links(int node, std::vector<int> leaders);
  MaybeError Begin(Outgoing& line, const std::vector<NodeEndpoint>& endpoints);
  MaybeError Advance(Outgoing& line, const std::vector<NodeEndpoint>& endpoints);
  MaybeError Turn(const std::vector<NodeEndpoint>& endpoints, Deadline deadline);
  MaybeError Accept();
  // False: it stays a stranger for now.
  bool Welcome(Socket& socket, const std::vector<NodeEndpoint>& endpoints);
  bool Complete() const;
  Error Late(const std::vector<NodeEndpoint>& endpoints) const;
  Error Failed(const Outgoing& line, const std::vector<NodeEndpoint>& endpoints,
               const std::string& why) const;
  Socket& line(Use use, size_t peer) { return lines_[static_cast<size_t>(use)][peer]; }

  const int node_;
  const std::vector<int> leaders_;
  NodeEndpoint endpoint_;
  Socket listener_;
  std::array<std::vector<Socket>, kUses> lines_;  // by use and node
  std::vector<Outgoing> outgoing_;
  std::vector<Stranger> strangers_;  // the oldest first
};

}  // namespace dtrain::runtime
