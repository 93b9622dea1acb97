// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/watchdog.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/signal_guard.h"

namespace dtrain::runtime {
namespace {

constexpr int kPeriodMs = 100;
constexpr auto kLongestLook = std::chrono::seconds(10);

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Watched>> all;
  std::thread thread;
  bool running = false;  // the thread has work or is about to look whether it has
  bool looking = false;
  int wake = -1;  // eventfd; without one, waking takes up to a period
};

// Never destroyed: the thread may run on while the program exits.
State& TheState() {
  static State* const state = new State;
  return *state;
}

void Loop(State& state) {
  for (;;) {
    std::vector<std::shared_ptr<Watched>> all;
    std::vector<pollfd> entries;
    {
      const std::lock_guard lock(state.mutex);
      all = state.all;
      if (all.empty()) {
        state.running = false;
        state.changed.notify_all();
        return;
      }
      state.looking = true;
      entries.push_back({state.wake, POLLIN, 0});
    }
    for (const auto& watched : all) watched->Look();
    for (const auto& watched : all) watched->AddTo(entries);
    all.clear();
    {
      const std::lock_guard lock(state.mutex);
      state.looking = false;
      state.changed.notify_all();
    }
    poll(entries.data(), entries.size(), kPeriodMs);
    uint64_t ignored = 0;
    if (entries[0].revents != 0 && read(entries[0].fd, &ignored, sizeof(ignored)) < 0) continue;
  }
}

}  // namespace

bool Watchdog::Add(std::shared_ptr<Watched> watched) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  state.all.push_back(std::move(watched));
  if (state.running) return true;
  if (state.thread.joinable()) state.thread.join();
  if (state.wake < 0) state.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const AllSignalsBlocked blocked;
  try {
    state.thread = std::thread([&state] { Loop(state); });
  } catch (const std::system_error&) {
    state.all.pop_back();
    return false;
  }
  state.running = true;
  return true;
}

void Watchdog::Remove(const Watched* watched) {
  State& state = TheState();
  std::shared_ptr<Watched> kept;  // destroyed after the lock is gone
  std::unique_lock lock(state.mutex);
  const auto found = std::find_if(state.all.begin(), state.all.end(),
                                  [&](const auto& entry) { return entry.get() == watched; });
  if (found != state.all.end()) {
    kept = std::move(*found);
    state.all.erase(found);
  }
  const bool last = state.all.empty();
  lock.unlock();
  Wake();
  lock.lock();
  const bool done = state.changed.wait_for(lock, kLongestLook,
                                           [&] { return last ? !state.running : !state.looking; });
  if (!last || !done || !state.thread.joinable() || state.running) return;
  state.thread.join();
  close(state.wake);
  state.wake = -1;
}

void Watchdog::Wake() {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  const uint64_t one = 1;
  if (state.wake >= 0 && write(state.wake, &one, sizeof(one)) < 0) return;
}

}  // namespace dtrain::runtime
