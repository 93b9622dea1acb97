// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>

#include "runtime/base/communicator.h"

namespace dtrain::runtime {

// What one thread at a time may have, and others wait for no longer than they like. (A
// std::timed_mutex would do, but ThreadSanitizer of GCC 12 does not know its waits.)
class TimedTurn {
 public:
  class Holder {
   public:
    // Of `turn`; none when it is not free by `deadline`.
    Holder(TimedTurn& turn, Deadline deadline) : turn_(turn.Take(deadline) ? &turn : nullptr) {}
    ~Holder() { GiveBack(); }
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;

    explicit operator bool() const { return turn_ != nullptr; }
    void GiveBack() {
      if (turn_ != nullptr) turn_->Give();
      turn_ = nullptr;
    }

   private:
    TimedTurn* turn_ = nullptr;
  };

 private:
  bool Take(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto free = [this] { return !taken_; };
    if (deadline == Deadline::max()) {
      free_.wait(lock, free);
    } else if (!free_.wait_until(lock, deadline, free)) {
      return false;
    }
    taken_ = true;
    return true;
  }
  void Give() {
    const std::lock_guard lock(mutex_);
    taken_ = false;
    free_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;
};

}  // namespace dtrain::runtime
