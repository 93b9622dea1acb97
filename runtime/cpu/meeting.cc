// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/meeting.h"

#include <algorithm>
#include <cstring>

namespace dtrain::runtime {
namespace {

// Up to so many nodes, letters to all cost less than waiting in rounds.
constexpr int kDirectNodes = 8;

}  // namespace

Greetings::Greetings(Mesh& mesh, const Places& places)
    : mesh_(mesh), places_(places), in_rounds_(mesh.nodes() > kDirectNodes) {
  const auto nodes = static_cast<size_t>(mesh.nodes());
  letters_.resize(nodes * sizeof(Descriptor) + 2 * kRoom);
  requests_.resize(nodes);
}

char* Greetings::Letter(int node) const {
  const int distance = (node - mesh_.node() + mesh_.nodes()) % mesh_.nodes();
  return const_cast<char*>(letters_.data()) + static_cast<size_t>(distance) * letter_bytes_;
}

void Greetings::Expect(int distance, int letters) {
  const int node = Node(distance);
  mesh_.Receive(node, Letter(node), sizeof(Descriptor), requests_[static_cast<size_t>(node)]);
  mesh_.Receive(node, Letter(node) + sizeof(Descriptor),
                static_cast<size_t>(letters) * letter_bytes_ - sizeof(Descriptor), rest_);
}

void Greetings::Send(const Descriptor& mine, const char* given, size_t bytes) {
  letter_bytes_ = sizeof(mine) + bytes;
  std::memcpy(letters_.data(), &mine, sizeof(mine));
  if (bytes > 0) std::memcpy(letters_.data() + sizeof(mine), given, bytes);
  if (in_rounds_) return;
  for (int distance = 1; distance < mesh_.nodes(); ++distance) {
    Expect(distance, 1);
    mesh_.Send(Node(distance), letters_.data(), letter_bytes_, rest_);
  }
}

MaybeError Greetings::Await(Deadline deadline) {
  const int nodes = mesh_.nodes();
  std::vector<int> all;
  for (int node = 0; node < nodes; ++node) {
    all.push_back(node);
    if (in_rounds_) continue;
    if (MaybeError error = AwaitRequest(node, deadline)) return error;
  }
  if (!in_rounds_) {
    if (MaybeError error = Compare(all)) return error;
    return mesh_.Await(rest_, deadline);
  }
  for (int known = 1; known < nodes; known *= 2) {
    const int letters = std::min(known, nodes - known);
    const int from = Node(known);
    Expect(known, letters);
    mesh_.Send(Node(nodes - known), letters_.data(), static_cast<size_t>(letters) * letter_bytes_,
               rest_);
    if (MaybeError error = AwaitRequest(from, deadline)) return error;
    if (MaybeError error = Compare({mesh_.node(), from})) return error;
    if (MaybeError error = mesh_.Await(rest_, deadline)) return error;
  }
  return std::nullopt;
}

MaybeError Greetings::AwaitRequest(int node, Deadline deadline) {
  MaybeError error = mesh_.Await(requests_[static_cast<size_t>(node)], deadline);
  if (error && error->code == DTRAIN_ERROR_TIMEOUT) {
    // Another node may see which of its ranks is late.
    if (MaybeError notice = mesh_.Notice()) return notice;
    const auto ranks = places_.named(places_.nodes[static_cast<size_t>(node)]);
    error->message = "timed out waiting for " + NameRanks(ranks) + " on another node: " +
                     (ranks.size() == 1 ? "it has not arrived" : "not all of them have arrived");
  }
  return error;
}

MaybeError Greetings::Compare(const std::vector<int>& nodes) const {
  std::vector<int> ranks;
  std::vector<Descriptor> requests;
  bool same = true;
  for (const int node : nodes) {
    Descriptor request;
    std::memcpy(&request, Letter(node), sizeof(request));
    for (const int rank : places_.named(places_.nodes[static_cast<size_t>(node)])) {
      ranks.push_back(rank);
      requests.push_back(request);
    }
    same &= request.what == requests.front().what;
  }
  if (same) return std::nullopt;
  return CompareRequests(ranks, requests);
}

}  // namespace dtrain::runtime
