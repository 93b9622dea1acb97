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

// Decides which bytes of each stream readers get: whole lines at once, and an unfinished line at
// most ten times a second, at the same moment in all streams. A progress bar is an unfinished line,
// and each of its states would cost a reader as much as many lines. Pure.
class UnfinishedLines {
 public:
  using Key = std::pair<uint32_t, v1::StreamKind>;  // of a stream: rank and kind

  // A longer line goes at once: it is no bar. Spools keep more than this of delivered bytes.
  static constexpr uint64_t kMostHeld = 16 << 10;
  static constexpr Duration kPause = std::chrono::milliseconds(100);

  // The stream has `size` bytes now. `lines`: the offset behind the last newline in the new bytes,
  // or 0.
  void OnGrown(TimePoint now, const Key& key, uint64_t lines, uint64_t size);
  // Its writer has ended: the stream's unfinished line goes on.
  void LetGo(const Key& key);
  // The streams whose unfinished lines go on now, if they are due.
  std::vector<Key> OnTime(TimePoint now);
  TimePoint NextDeadline() const { return held_.empty() ? kNever : next_; }

  // The stream's bytes that OnGrown was told, and how many of them readers may have.
  uint64_t size(const Key& key) const { return Find(key).size; }
  uint64_t passed(const Key& key) const { return Find(key).passed; }

 private:
  struct Stream {
    uint64_t size = 0;
    uint64_t passed = 0;
  };
  Stream Find(const Key& key) const;

  std::map<Key, Stream> streams_;
  std::set<Key> held_;  // streams with an unfinished line that waits
  TimePoint next_{};    // before it no unfinished line goes on
};

}  // namespace dtrain::shepherd
