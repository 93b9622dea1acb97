// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/meeting.h"

#include <cstring>

namespace dtrain::runtime {
namespace {

constexpr size_t kLetter = sizeof(Descriptor) + Greetings::kRoom;

}  // namespace

Greetings::Greetings(Mesh& mesh, const Places& places) : mesh_(mesh), places_(places) {
  const auto nodes = static_cast<size_t>(mesh.nodes());
  outbox_.resize(kLetter);
  inboxes_.resize(nodes * kLetter);
  requests_.resize(nodes);
}

char* Greetings::Inbox(int node) const {
  return const_cast<char*>(inboxes_.data()) + static_cast<size_t>(node) * kLetter;
}

const char* Greetings::given(int node) const { return Inbox(node) + sizeof(Descriptor); }

void Greetings::Send(const Descriptor& mine, const char* given, size_t bytes) {
  std::memcpy(outbox_.data(), &mine, sizeof(mine));
  if (bytes > 0) std::memcpy(outbox_.data() + sizeof(mine), given, bytes);
  for (int step = 1; step < mesh_.nodes(); ++step) {
    const int node = (mesh_.node() + step) % mesh_.nodes();
    Flight& request = requests_[static_cast<size_t>(node)];
    mesh_.Receive(node, Inbox(node), sizeof(Descriptor), request);
    mesh_.Receive(node, Inbox(node) + sizeof(Descriptor), bytes, rest_);
    mesh_.Send(node, outbox_.data(), sizeof(Descriptor) + bytes, rest_);
  }
}

MaybeError Greetings::Await(Deadline deadline) {
  for (int node = 0; node < mesh_.nodes(); ++node) {
    MaybeError error = mesh_.Await(requests_[static_cast<size_t>(node)], deadline);
    if (!error) continue;
    if (error->code == DTRAIN_ERROR_TIMEOUT) {
      const auto& ranks = places_.nodes[static_cast<size_t>(node)];
      error->message = "timed out waiting for " + NameRanks(ranks) + " on another node: " +
                       (ranks.size() == 1 ? "it has not come" : "not all of them have come");
    }
    return error;
  }
  if (MaybeError error = Compare()) return error;
  return mesh_.Await(rest_, deadline);
}

MaybeError Greetings::Compare() const {
  std::vector<int> ranks;
  std::vector<Descriptor> requests;
  bool same = true;
  for (int node = 0; node < mesh_.nodes(); ++node) {
    Descriptor request;
    const char* letter = node == mesh_.node() ? outbox_.data() : Inbox(node);
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
