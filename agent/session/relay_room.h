// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace dtrain::session {

// The memory that the relays of one user's jobs may take, each way. Each job counts its own. Pure.
class RelayRoom {
 public:
  // Of some 16 jobs whose launchers do not read. Their shepherds then wait.
  static constexpr size_t kMostBack = 64 << 20;
  // Of 128 jobs whose shepherds do not read, as many as may begin at a time: beyond it one is off.
  static constexpr size_t kMostForth = 512 << 20;

  // Frames that wait for launchers, and for shepherds.
  struct Held {
    size_t back = 0;
    size_t forth = 0;
  };

  explicit RelayRoom(size_t most_back = kMostBack, size_t most_forth = kMostForth)
      : most_{most_back, most_forth} {}
  // What one job holds has become another.
  void Replace(const Held& before, const Held& now) {
    held_.back = held_.back - before.back + now.back;
    held_.forth = held_.forth - before.forth + now.forth;
  }
  bool fits_back() const { return held_.back <= most_.back; }
  bool fits_forth() const { return held_.forth <= most_.forth; }
  const Held& held() const { return held_; }
  const Held& most() const { return most_; }

 private:
  const Held most_;
  Held held_;
};

}  // namespace dtrain::session
