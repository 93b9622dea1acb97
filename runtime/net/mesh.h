// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/result.h"
#include "runtime/net/endpoint.h"
#include "runtime/net/streams.h"

namespace dtrain::runtime {

class Mesh;

// Memory that messages are sent from and received into; outlived by it, outlives neither the mesh
// nor what is on its way.
class MeshBuffer {
 public:
  ~MeshBuffer();

  // Messages of one pair are matched by tag, and tags in flight must differ. Sending and receiving
  // only begin here; a message is as long as the sender says, up to what the receiver has room for.
  MaybeError Send(int peer, uint64_t tag, size_t offset, size_t bytes);
  MaybeError Receive(int peer, uint64_t tag, size_t offset, size_t bytes);
  // Waits for all that has begun.
  MaybeError Await(Deadline deadline);

 private:
  friend class Mesh;
  struct Gloo;
  MeshBuffer(Mesh& mesh, std::unique_ptr<Gloo> gloo);

  Mesh& mesh_;
  std::unique_ptr<Gloo> gloo_;
  int sends_ = 0;
  int receives_ = 0;
};

// Connections between the nodes of a group, one member ("leader") per node. Gloo, whose home this
// is, carries what is small and the reasons of failures, on a thread of its own; its exceptions end
// here. What is large goes over streams. One thread at a time, but where it says otherwise.
class Mesh {
 public:
  using Endpoint = NodeEndpoint;

  // `leaders[n]` is the rank that speaks for node n, for texts. Opens one listening socket per
  // peer.
  static Result<std::unique_ptr<Mesh>> Make(int node, std::vector<int> leaders,
                                            const std::string& ip, Deadline deadline);
  ~Mesh();

  const Endpoint& endpoint() const { return endpoint_; }
  int node() const { return node_; }
  int nodes() const { return static_cast<int>(leaders_.size()); }

  // Fails, naming the rank, when a connection is refused, is not there after a minute, or has not
  // begun at the deadline.
  MaybeError Connect(const std::vector<Endpoint>& endpoints, Deadline deadline);

  std::unique_ptr<MeshBuffer> Register(void* data, size_t bytes);
  // Of large messages, as Streams says.
  void Send(int node, const char* data, size_t bytes, Flight& flight) {
    streams_->Send(node, data, bytes, flight);
  }
  void Receive(int node, char* data, size_t bytes, Flight& flight) {
    streams_->Receive(node, data, bytes, flight);
  }
  MaybeError Await(Flight& flight, Deadline deadline);

  // Tells the others why and closes all connections. Any thread; only the first call counts.
  void Abort(const Error& reason);
  // Tells the others that a rank of this node leaves. Once; any thread.
  void TellLeaving(const Leaver& leaver);
  // Waits until another member gives a reason, or is gone, and returns that; nullopt after
  // StopListening, and after a wait of this process has timed out, which is for others to tell. For
  // a thread of its own: not all of Gloo's waits end when a connection breaks.
  // Meanwhile gives `hear` the leaving ranks of other nodes.
  MaybeError Listen(const std::function<void(const Leaver&)>& hear);
  // Whether another member has given a reason. Any thread.
  bool told() { return Notice().has_value(); }
  void StopListening();  // any thread
  // Closes the connections, after which nothing touches what is registered.
  void Close();
  // Ends the wait that goes on, if any, with `reason`, and all later ones. Any thread.
  void Interrupt(const Error& reason);

 private:
  friend class MeshBuffer;
  class Context;

  Mesh(int node, std::vector<int> leaders);
  template <typename Call>
  MaybeError Attempt(Call call);
  // The reason of what broke, which another member may have told.
  Error Explain(Error error);
  // The buffer that is waited for from now on, or null; the reason why there shall be no wait.
  MaybeError SetAwaited(MeshBuffer* buffer);
  MaybeError Notice();
  std::vector<int> Lost();  // ranks
  std::string NameLost();
  void ExpectNotices();
  bool TakeLeaver(int peer, Leaver& leaver);
  bool TakeNotice(int last);
  size_t LeaverAt(int peer) const;

  const int node_;
  const std::vector<int> leaders_;
  Endpoint endpoint_;
  std::shared_ptr<Context> context_;
  std::unique_ptr<Streams> streams_;
  std::vector<char> notices_;  // one per node, from it, and behind them a LeaverNotice each
  std::vector<bool> leaver_taken_;
  std::unique_ptr<MeshBuffer> incoming_;
  std::atomic<bool> stopping_{false};
  std::mutex wait_mutex_;  // guards the three below
  MaybeError notice_;
  MeshBuffer* awaited_ = nullptr;
  MaybeError interrupted_;
  std::mutex abort_mutex_;    // Abort and TellLeaving against each other and the end of the mesh
  std::vector<char> leaver_;  // on its way to the others
  std::unique_ptr<MeshBuffer> outgoing_;
  std::atomic<bool> aborted_{false};
};

}  // namespace dtrain::runtime
