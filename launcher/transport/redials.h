// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <random>

#include "common/base/clock.h"
#include "common/loop/loop.h"

namespace dtrain::transport {

// Connections that break together, as behind a switch that restarts, must not be made again all at
// once: each costs both ends some milliseconds, and what comes too fast comes too late for all. So
// the connections of one launch wait for a place, and between tries for a pause that grows and is
// never the same. Loop thread.
class Redials {
 public:
  // How many try at a time. One that has no answer after so long costs nothing any more, and does
  // not count: it may be to a machine that is gone.
  static constexpr size_t kMost = 64;
  static constexpr Duration kLongestTry = std::chrono::seconds(1);
  // The pause before the first try after a failed one, and the longest.
  static constexpr Duration kFirstPause = std::chrono::milliseconds(250);
  static constexpr Duration kLongestPause = std::chrono::seconds(2);

  explicit Redials(loop::Loop& loop, uint32_t seed = std::random_device()());
  Redials(const Redials&) = delete;
  Redials& operator=(const Redials&) = delete;

  // Where a try waits, and then is under way. Destroying it makes room for another. May outlive
  // the Redials.
  class Place;
  // Calls `go` once, on the loop and never from inside, when there is room.
  Place Enter(loop::Task go);
  // A place at once; empty: there is no room.
  Place TryEnter();

  // Before the next try, when so many in a row have failed: half to all of a pause that doubles
  // each time, up to `longest` or kLongestPause. 0 tries: none.
  Duration Pause(int failed, Duration longest = kLongestPause);

 private:
  struct Try {
    loop::Task go;
    TimePoint began;
  };
  struct State {
    explicit State(loop::Loop& l) : loop(l), overdue(l) {}
    void LetIn();
    loop::Loop& loop;
    std::list<std::shared_ptr<Try>> under_way;  // those that count, the oldest first
    std::list<std::shared_ptr<Try>> queue;
    loop::Timer overdue;
  };
  const std::shared_ptr<State> state_;
  std::minstd_rand random_;
};

class Redials::Place {
 public:
  Place() = default;
  Place(Place&&) noexcept = default;
  Place& operator=(Place&& other) noexcept;
  ~Place() { Leave(); }
  explicit operator bool() const { return mine_ != nullptr; }

 private:
  friend class Redials;
  void Leave();
  std::shared_ptr<State> state_;
  std::shared_ptr<Try> mine_;
};

}  // namespace dtrain::transport
