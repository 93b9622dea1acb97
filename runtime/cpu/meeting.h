// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/cpu/places.h"
#include "runtime/cpu/work.h"
#include "runtime/net/mesh.h"

namespace dtrain::runtime {

// Of message number `round` of the chunk that `key` tells from all others in flight.
uint64_t ChunkTag(uint64_t key, int round);

// What a leader does for one chunk: messages to and from the other leaders, in one or two rounds.
// Memory of a chunk is its lane: this node's part at the beginning, the others' behind `half`.
class Flight {
 public:
  Flight(Mesh& mesh, char* lane, size_t lane_bytes);

  // Nothing happens when `bytes` is 0.
  MaybeError Send(int node, uint64_t key, int round, size_t offset, size_t bytes);
  MaybeError Receive(int node, uint64_t key, int round, size_t offset, size_t bytes);
  MaybeError Await(Deadline deadline) { return buffer_->Await(deadline); }
  MeshBuffer& buffer() { return *buffer_; }

 private:
  std::unique_ptr<MeshBuffer> buffer_;
};

// The first message of a collective between leaders: what each node's ranks ask for, and, where it
// is small, what they give. Receiving has begun before the collective has, so that the message is
// sent at once.
class Greetings {
 public:
  static constexpr size_t kRoom = size_t{64} << 10;

  Greetings(Mesh& mesh, const Places& places);

  // Once, when the connections stand.
  MaybeError Begin() { return Expect(); }
  // Sends `mine` and `bytes` (up to kRoom) of `given` to all.
  MaybeError Send(const Descriptor& mine, const char* given, size_t bytes);
  // Waits for all others'. Fails when they ask for something else.
  MaybeError Await(Deadline deadline);
  // What another node has given, until the next Await.
  const char* given(int node) const;

 private:
  // Two of each: the next collective's may arrive while this one's are read.
  char* Inbox(uint64_t turn, int node) const;
  MeshBuffer& Incoming(uint64_t turn, int node);
  MaybeError Expect();  // those of the turn that comes
  MaybeError Compare() const;

  Mesh& mesh_;
  const Places& places_;
  uint64_t turn_ = 0;
  std::vector<char> outbox_;
  std::vector<char> inboxes_;
  std::unique_ptr<MeshBuffer> outgoing_;
  std::vector<std::unique_ptr<MeshBuffer>> incoming_;
};

}  // namespace dtrain::runtime
