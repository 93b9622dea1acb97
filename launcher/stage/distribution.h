// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/manifest/manifest.h"

namespace dtrain::stage {

// What is sent to which node, and when: each content once, to all nodes together that lack it, and
// as much as they take. Begins when all have said what they lack. Pure.
class Distribution {
 public:
  static constexpr size_t kMostData = 256 << 10;  // of one message
  static constexpr size_t kAhead = 8;             // messages that a node has not taken

  struct Piece {
    uint32_t file = 0;
    uint64_t offset = 0;
    size_t size = 0;
    bool operator==(const Piece&) const = default;
  };
  struct Message {
    std::vector<NodeId> nodes;
    std::vector<Piece> pieces;
  };

  // `files` outlive it.
  Distribution(const std::vector<manifest::File>& files, const std::vector<NodeId>& nodes);

  // INVALID_ARGUMENT: no node of ours says that now; nothing has changed.
  absl::Status OnMissing(NodeId node, const std::vector<uint32_t>& files);
  absl::Status OnTaken(NodeId node, uint32_t messages);
  absl::Status OnStaged(NodeId node);

  // The next that may be sent.
  std::optional<Message> Next();
  bool all_staged() const { return staged_ == nodes_.size(); }
  // For people.
  size_t files_sent() const { return wanted_.size(); }
  size_t nodes_sent_to() const;

 private:
  struct Node {
    bool answered = false;
    bool staged = false;
    bool lacks = false;
    size_t untaken = 0;
  };
  struct Wanted {
    uint32_t file = 0;
    std::vector<NodeId> nodes;
  };
  Node* Find(NodeId node);
  void Answered(Node& node);
  bool MayHave(const std::vector<NodeId>& nodes) const;

  const std::vector<manifest::File>& files_;
  absl::flat_hash_map<uint32_t, Node> nodes_;  // by id
  size_t answered_ = 0;
  size_t staged_ = 0;
  std::vector<Wanted> wanted_;  // sorted by file once all have answered
  size_t next_ = 0;             // of it
  uint64_t offset_ = 0;         // in that file
};

}  // namespace dtrain::stage
