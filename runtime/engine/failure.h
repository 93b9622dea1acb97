// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>

#include "runtime/base/result.h"

namespace dtrain::runtime {

// The first failure of a job's collectives: after it there are none. Any thread.
class Failure {
 public:
  MaybeError get() const {
    if (!is_set_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

  // Whether it is the first.
  bool Set(const Error& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_) return false;
    error_ = error;
    is_set_.store(true, std::memory_order_release);
    return true;
  }

 private:
  std::atomic<bool> is_set_{false};
  mutable std::mutex mutex_;
  MaybeError error_;
};

}  // namespace dtrain::runtime
