// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace dtrain::view {

// What a rank does, as a letter of the answer.
enum class RankLetter : char {
  kWaiting = 'w',
  kRunning = 'r',
  kInside = 'c',   // in one collective for long
  kHalted = 'h',   // its process does not run
  kDone = 'd',     // exit code 0
  kFailed = 'f',   // by itself
  kStopped = 'k',  // ended after we asked it to
  kLost = 'l',     // its node is lost, and it had not ended
};

enum class NodeLetter : char {
  kConnecting = 'c',
  kJoined = 'j',
  kSilent = 's',
  kLost = 'g',
  kLeft = 'e',  // nothing of the job is there any more
};

struct RankRow {
  RankLetter state = RankLetter::kWaiting;
  uint32_t pid = 0;  // once it was started
  int exit = 0;      // its exit code, or minus the signal
  uint32_t node = 0;
};

struct NodeRow {
  NodeLetter state = NodeLetter::kConnecting;
  std::string host;
};

// Ranks and nodes as columns, of which each reader gets what has changed since its last look. Any
// number of readers: what they have is their own business. Pure.
class Columns {
 public:
  // Versions begin behind `epoch`. What a reader has of another launcher has a version that this
  // one never gave, if each begins with the milliseconds of its start.
  explicit Columns(uint64_t epoch) : epoch_(epoch), version_(epoch) {}

  // As everything is now.
  void Update(absl::Span<const RankRow> ranks, absl::Span<const NodeRow> nodes);

  uint64_t version() const { return version_; }
  // "version", "full", and in "rank" and "node" the columns that have changed since that version:
  // an array or a text with a value for each, or an object with those that changed by their index.
  // All of them ("full") for a version that is not of this object, or older than the last new plan.
  nlohmann::ordered_json Since(uint64_t version) const;

 private:
  // Values and the versions that they are of.
  template <typename T>
  struct Column {
    std::vector<T> values;
    std::vector<uint64_t> changed;
    bool Set(size_t index, const T& value, uint64_t version);
    void Resize(size_t size, uint64_t version);
    size_t ChangedSince(uint64_t version) const;
  };
  static nlohmann::ordered_json List(const Column<uint32_t>& column, uint64_t since);

  const uint64_t epoch_;
  uint64_t version_;
  uint64_t whole_since_ = 0;
  Column<char> state_;
  Column<uint32_t> pid_;
  Column<int> exit_;
  Column<uint32_t> node_;
  Column<std::string> host_;
  Column<char> node_state_;
};

}  // namespace dtrain::view
