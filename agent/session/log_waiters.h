// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "common/loop/loop.h"

namespace dtrain::session {

// Who reads a job's output and has all of it. A reader owns its task and takes it back by letting
// go of it; one that has left leaves nothing here, however long the job is silent. Loop thread.
class LogWaiters {
 public:
  void Add(std::weak_ptr<loop::Task> task) {
    std::erase_if(waiting_, [](const auto& each) { return each.expired(); });
    waiting_.push_back(std::move(task));
  }
  // Each is called once, posted: it may ask for the session, which may be about to go.
  void WakeAll(loop::Loop& loop) {
    for (std::weak_ptr<loop::Task>& task : std::exchange(waiting_, {})) Wake(loop, std::move(task));
  }
  static void Wake(loop::Loop& loop, std::weak_ptr<loop::Task> task) {
    loop.Post([task = std::move(task)] {
      const std::shared_ptr<loop::Task> kept = task.lock();
      if (kept != nullptr && *kept) std::exchange(*kept, nullptr)();
    });
  }
  size_t size() const { return waiting_.size(); }

 private:
  std::vector<std::weak_ptr<loop::Task>> waiting_;
};

}  // namespace dtrain::session
