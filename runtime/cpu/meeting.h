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

// The first message of a collective between leaders: what each node's ranks ask for, and, where it
// is small, what they give.
class Greetings {
 public:
  static constexpr size_t kRoom = size_t{64} << 10;

  Greetings(Mesh& mesh, const Places& places);

  // Sends `mine` and `bytes` (up to kRoom) of `given` to all, who give as much.
  void Send(const Descriptor& mine, const char* given, size_t bytes);
  // Waits for all others'. Fails when they ask for something else.
  MaybeError Await(Deadline deadline);
  // What another node has given, until the next Send.
  const char* given(int node) const;

 private:
  char* Inbox(int node) const;
  MaybeError Compare() const;

  Mesh& mesh_;
  const Places& places_;
  std::vector<char> outbox_;
  std::vector<char> inboxes_;
  std::vector<Flight> requests_;  // by node, that must be the same before
  Flight rest_;                   // is waited for
};

}  // namespace dtrain::runtime
