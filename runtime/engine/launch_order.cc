// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/launch_order.h"

#include <algorithm>
#include <utility>

namespace dtrain::runtime {

LaunchOrder::Turn::Turn(LaunchOrder& order, uint32_t group) : order_(order), group_(group) {
  const std::lock_guard<std::mutex> lock(order_.mutex_);
  proposal_ = order_.turns_[group_] = ++order_.clock_;
}

LaunchOrder::Turn::~Turn() {
  const std::lock_guard<std::mutex> lock(order_.mutex_);
  order_.turns_.erase(group_);
  order_.changed_.notify_all();
}

void LaunchOrder::Turn::Await(int64_t time) {
  std::unique_lock<std::mutex> lock(order_.mutex_);
  order_.clock_ = std::max(order_.clock_, time);
  order_.turns_[group_] = time;
  order_.changed_.notify_all();
  // Groups may have chosen the same time.
  const std::pair mine(time, group_);
  order_.changed_.wait(lock, [&] {
    return std::all_of(order_.turns_.begin(), order_.turns_.end(), [&](const auto& other) {
      return mine <= std::pair(other.second, other.first);
    });
  });
}

}  // namespace dtrain::runtime
