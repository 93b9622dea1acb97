// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/bounded.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/signal_guard.h"

namespace dtrain::runtime {

void RunDetached(std::function<void()> body) {
  const AllSignalsBlocked blocked;
  try {
    std::thread(body).detach();
  } catch (const std::system_error&) {
    body();
  }
}

bool RunBounded(std::function<void()> body, std::chrono::milliseconds limit) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto shared = std::make_shared<Shared>();
  RunDetached([shared, body = std::move(body)] {
    body();
    const std::lock_guard lock(shared->mutex);
    shared->done = true;
    shared->changed.notify_all();
  });
  std::unique_lock lock(shared->mutex);
  return shared->changed.wait_for(lock, limit, [&] { return shared->done; });
}

}  // namespace dtrain::runtime
