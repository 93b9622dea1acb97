// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/result.h"
#include "runtime/net/control.h"
#include "runtime/net/endpoint.h"
#include "runtime/net/links.h"
#include "runtime/net/streams.h"

namespace dtrain::runtime {

// The connections between the nodes of a group, one member ("leader") per node: to each other node
// one for data and one for the reasons of failures. One thread at a time, but where it says
// otherwise.
class Mesh {
 public:
  // `leaders[n]` is the rank that speaks for node n, for texts. Listens on `ip`, numeric.
  static Result<std::unique_ptr<Mesh>> Make(int node, std::vector<int> leaders,
                                            const std::string& ip);

  const NodeEndpoint& endpoint() const { return endpoint_; }
  int node() const { return node_; }
  int nodes() const { return static_cast<int>(leaders_.size()); }

  // Fails, naming the rank, when a connection is refused, or is not there after a minute or at the
  // deadline. All that follows is for a mesh that is connected.
  MaybeError Connect(const std::vector<NodeEndpoint>& endpoints, Deadline deadline);

  // As Streams says.
  void SetCrowded(bool crowded) { streams_->SetCrowded(crowded); }
  void Send(int node, const char* data, size_t bytes, Flight& flight) {
    streams_->Send(node, data, bytes, flight);
  }
  void Receive(int node, char* data, size_t bytes, Flight& flight) {
    streams_->Receive(node, data, bytes, flight);
  }
  MaybeError Await(Flight& flight, Deadline deadline);

  // Tells the others why, and from which collective on, and closes all connections. Any thread;
  // only the first call counts.
  void Abort(const Error& reason, uint32_t number);
  // Tells the others that a rank of this node leaves. Once; any thread.
  void TellLeaving(const Leaver& leaver);
  // Waits until another member gives a reason, or is gone, and returns that; nullopt when neither
  // has happened by then, and after StopListening. Each member is gone once. For a thread of its
  // own. Meanwhile gives `hear` the leaving ranks of other nodes.
  MaybeError Listen(const std::function<void(const Leaver&)>& hear, Deadline deadline);
  // The reason that another member has given. Any thread.
  MaybeError Notice();
  bool told() { return Notice().has_value(); }
  // Once told: the collective in which that member has failed. It needs no earlier one any more.
  uint32_t told_number() const { return told_number_.load(); }
  void StopListening();  // any thread
  // Closes the connections.
  void Close();
  // Ends the wait that goes on, if any, with `reason`, and all later ones, unless what they wait
  // for has come already. Any thread.
  void Interrupt(const Error& reason);

 private:
  Mesh(int node, std::vector<int> leaders) : node_(node), leaders_(std::move(leaders)) {}
  // The reason of what broke, which another member may have told.
  Error Explain(Error error);
  MaybeError Interrupted();

  const int node_;
  const std::vector<int> leaders_;
  NodeEndpoint endpoint_;
  std::unique_ptr<Links> links_;  // until it is connected; then the two below
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<Control> control_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<uint32_t> told_number_{0};
  std::mutex mutex_;  // guards the two below
  MaybeError notice_;
  MaybeError interrupted_;
};

}  // namespace dtrain::runtime
