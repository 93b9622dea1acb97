// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Decides how much of each stream goes on: whole lines at once, text behind the last of them ten
// times a second at most, that of all streams together. A progress bar is such text, and each piece
// of it would cost its readers as much as many lines. Pure.
class UnfinishedLines {
 public:
  using Key = std::pair<uint32_t, v1::StreamKind>;  // of a stream: rank and kind

  // A longer text goes at once: it is no bar. Less than a spool keeps of what was delivered.
  static constexpr uint64_t kMostHeld = 16 << 10;
  static constexpr Duration kPause = std::chrono::milliseconds(100);

  // The stream has `size` bytes by now. `lines`: behind the last newline among the new ones, or 0.
  void OnGrown(TimePoint now, const Key& key, uint64_t lines, uint64_t size);
  // What is held of it goes on: its writer has ended.
  void LetGo(const Key& key);
  // What is held goes on, if that is due: of these streams.
  std::vector<Key> OnTime(TimePoint now);
  TimePoint NextDeadline() const { return held_.empty() ? kNever : next_; }

  // Of the stream: the bytes that OnGrown has heard of, and those of them that go on.
  uint64_t size(const Key& key) const { return Find(key).size; }
  uint64_t passed(const Key& key) const { return Find(key).passed; }

 private:
  struct Stream {
    uint64_t size = 0;
    uint64_t passed = 0;
  };
  Stream Find(const Key& key) const;

  std::map<Key, Stream> streams_;
  std::set<Key> held_;  // streams of which not all goes on
  TimePoint next_{};    // that text without a line end may go on
};

}  // namespace dtrain::shepherd
