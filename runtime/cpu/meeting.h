// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/boot/topology.h"
#include "runtime/cpu/work.h"
#include "runtime/net/mesh.h"

namespace dtrain::runtime {

// The first messages of a collective between leaders: what each node's ranks ask for, and, where it
// is small, what they give. Few nodes tell each other; many pass on what they have heard, twice as
// much in every round, so that each sends to few.
class Greetings {
 public:
  static constexpr size_t kRoom = size_t{64} << 10;

  Greetings(Mesh& mesh, const Places& places);

  // Whether there are several rounds, between which no other messages may be sent.
  bool in_rounds() const { return in_rounds_; }
  // Sends `mine` and `bytes` of `given`, kRoom from all others together at most.
  void Send(const Descriptor& mine, const char* given, size_t bytes);
  // Waits for all others'. Fails when they ask for something else.
  MaybeError Await(Deadline deadline);
  // What another node has given, until the next Send.
  const char* given(int node) const { return Letter(node) + sizeof(Descriptor); }

 private:
  // Of the node that is so many after this one, wrapping around.
  int Node(int distance) const { return (mesh_.node() + distance) % mesh_.nodes(); }
  char* Letter(int node) const;
  // Receives from the node so many after this one its letter and those behind it.
  void Expect(int distance, int letters);
  MaybeError AwaitRequest(int node, Deadline deadline);
  MaybeError Compare(const std::vector<int>& nodes) const;

  Mesh& mesh_;
  const Places& places_;
  const bool in_rounds_;
  size_t letter_bytes_ = sizeof(Descriptor);
  std::vector<char> letters_;     // this node's first, then those of the nodes after it
  std::vector<Flight> requests_;  // by node, that must be the same before
  Flight rest_;                   // is waited for
};

}  // namespace dtrain::runtime
