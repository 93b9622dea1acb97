// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/watchdog.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/signal_guard.h"

namespace dtrain::runtime {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestLook{10};

}  // namespace

struct Watchdog::State {
  Look look;
  std::mutex mutex;
  std::condition_variable changed;
  bool woken = false, stopping = false, over = false;
  std::atomic<steady_clock::rep> looked{steady_clock::now().time_since_epoch().count()};
  std::thread thread;

  void Main() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      lock.unlock();
      const std::chrono::milliseconds next = look();
      looked.store(steady_clock::now().time_since_epoch().count());
      lock.lock();
      if (next.count() == 0) break;
      changed.wait_for(lock, next, [this] { return woken || stopping; });
      woken = false;
    }
    look = nullptr;
    over = true;
    changed.notify_all();
  }
};

std::unique_ptr<Watchdog> Watchdog::Start(Look look) {
  const auto state = std::make_shared<State>();
  state->look = std::move(look);
  const AllSignalsBlocked blocked;
  try {
    state->thread = std::thread([state] { state->Main(); });
  } catch (const std::system_error&) {
    return nullptr;
  }
  pthread_setname_np(state->thread.native_handle(), "dtrain-watch");
  return std::unique_ptr<Watchdog>(new Watchdog(state));
}

Watchdog::~Watchdog() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.stopping = true;
  state.changed.notify_all();
  // The last owner of what is looked after may be a look.
  const bool inside = state.thread.get_id() == std::this_thread::get_id();
  const bool over =
      !inside && state.changed.wait_for(lock, kLongestLook, [&] { return state.over; });
  lock.unlock();
  over ? state.thread.join() : state.thread.detach();
}

void Watchdog::Wake() {
  const std::lock_guard lock(state_->mutex);
  state_->woken = true;
  state_->changed.notify_all();
}

bool Watchdog::Hangs() const {
  const steady_clock::time_point last(steady_clock::duration(state_->looked.load()));
  return steady_clock::now() - last > kLongestLook;
}

}  // namespace dtrain::runtime
