// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/meeting.h"

#include <cstring>

namespace dtrain::runtime {
namespace {

constexpr size_t kLetter = sizeof(Descriptor) + Greetings::kRoom;
constexpr uint64_t kHighestBit = uint64_t{1} << 63;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15 + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 29);
}

// Collectives' tags have the highest bit clear. Of those, the next bit is set for greetings.
uint64_t GreetingTag(uint64_t turn) { return (kHighestBit >> 1) | (turn & 0xffffffff); }

}  // namespace

uint64_t ChunkTag(uint64_t key, int round) {
  return Mix(key, static_cast<uint64_t>(round)) & ((kHighestBit >> 1) - 1);
}

Flight::Flight(Mesh& mesh, char* lane, size_t lane_bytes)
    : buffer_(mesh.Register(lane, lane_bytes)) {}

MaybeError Flight::Send(int node, uint64_t key, int round, size_t offset, size_t bytes) {
  if (bytes == 0) return std::nullopt;
  return buffer_->Send(node, ChunkTag(key, round), offset, bytes);
}

MaybeError Flight::Receive(int node, uint64_t key, int round, size_t offset, size_t bytes) {
  if (bytes == 0) return std::nullopt;
  return buffer_->Receive(node, ChunkTag(key, round), offset, bytes);
}

Greetings::Greetings(Mesh& mesh, const Places& places) : mesh_(mesh), places_(places) {
  const auto nodes = static_cast<size_t>(mesh.nodes());
  outbox_.resize(kLetter);
  inboxes_.resize(2 * nodes * kLetter);
  outgoing_ = mesh.Register(outbox_.data(), outbox_.size());
  for (size_t i = 0; i < 2 * nodes; ++i) {
    incoming_.push_back(mesh.Register(inboxes_.data() + i * kLetter, kLetter));
  }
}

char* Greetings::Inbox(uint64_t turn, int node) const {
  const size_t index = turn % 2 * static_cast<size_t>(mesh_.nodes()) + static_cast<size_t>(node);
  return const_cast<char*>(inboxes_.data()) + index * kLetter;
}

MeshBuffer& Greetings::Incoming(uint64_t turn, int node) {
  return *incoming_[turn % 2 * static_cast<size_t>(mesh_.nodes()) + static_cast<size_t>(node)];
}

const char* Greetings::given(int node) const { return Inbox(turn_ - 1, node) + sizeof(Descriptor); }

MaybeError Greetings::Expect() {
  for (int node = 0; node < mesh_.nodes(); ++node) {
    if (node == mesh_.node()) continue;
    if (MaybeError error = Incoming(turn_, node).Receive(node, GreetingTag(turn_), 0, kLetter)) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError Greetings::Send(const Descriptor& mine, const char* given, size_t bytes) {
  std::memcpy(outbox_.data(), &mine, sizeof(mine));
  if (bytes > 0) std::memcpy(outbox_.data() + sizeof(mine), given, bytes);
  for (int step = 1; step < mesh_.nodes(); ++step) {
    const int node = (mesh_.node() + step) % mesh_.nodes();
    if (MaybeError error =
            outgoing_->Send(node, GreetingTag(turn_), 0, sizeof(Descriptor) + bytes)) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError Greetings::Await(Deadline deadline) {
  for (int node = 0; node < mesh_.nodes(); ++node) {
    if (node == mesh_.node()) continue;
    MaybeError error = Incoming(turn_, node).Await(deadline);
    if (!error) continue;
    if (error->code == DTRAIN_ERROR_TIMEOUT) {
      const auto& ranks = places_.nodes[static_cast<size_t>(node)];
      error->message = "timed out waiting for " + NameRanks(ranks) + " on another node: " +
                       (ranks.size() == 1 ? "it has not come" : "not all of them have come");
    }
    return error;
  }
  if (MaybeError error = outgoing_->Await(deadline)) return error;
  if (MaybeError error = Compare()) return error;
  ++turn_;
  return Expect();
}

MaybeError Greetings::Compare() const {
  std::vector<int> ranks;
  std::vector<Descriptor> requests;
  bool same = true;
  for (int node = 0; node < mesh_.nodes(); ++node) {
    Descriptor request;
    const char* letter = node == mesh_.node() ? outbox_.data() : Inbox(turn_, node);
    std::memcpy(&request, letter, sizeof(request));
    if (!requests.empty()) same &= SameRequest(request, requests.front());
    requests.push_back(request);
  }
  if (same) return std::nullopt;
  std::vector<Descriptor> by_rank;
  for (size_t node = 0; node < requests.size(); ++node) {
    for (const int rank : places_.nodes[node]) {
      ranks.push_back(rank);
      by_rank.push_back(requests[node]);
    }
  }
  return CompareRequests(ranks, by_rank);
}

}  // namespace dtrain::runtime
