// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace dtrain::runtime {

// A number in shared memory that only grows (and wraps around), and on which processes sleep.
struct alignas(64) Counter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};

inline bool Reached(uint32_t value, uint32_t target) {
  return static_cast<int32_t>(value - target) >= 0;
}

// Adds one. The one who brings it to `target` wakes all that sleep.
void Add(Counter& counter, uint32_t target);
void Set(Counter& counter, uint32_t value);
void WakeAll(Counter& counter);

// How to pass the time before sleeping. Sleeping and waking costs many times more than what most
// waits last, but a processor that others need must not be held.
struct Patience {
  std::chrono::nanoseconds spin{0};
  int yields = 0;
};

// One look after another, for `limit`; true when `ready` was.
template <typename Ready>
bool Spin(Ready ready, std::chrono::nanoseconds limit);

// Sleeps until anybody wakes the counter's sleepers, unless `ready`, which whoever changes
// something about it makes known by a change of the counter and WakeAll; at most `longest`, and at
// times for no reason.
template <typename Ready>
void SleepOn(Counter& counter, Ready ready, std::chrono::nanoseconds longest);

// True when `ready`; false after `patience` and at most `sleep`.
template <typename Ready>
bool Await(Counter& counter, Ready ready, const Patience& patience, std::chrono::nanoseconds sleep);

// ---- Implementation ----

// Lets the other thread of a core, and the memory, have a moment.
void Pause();
void Yield();
// Unless the value is another one by now.
void SleepWhile(Counter& counter, uint32_t value, std::chrono::nanoseconds longest);

template <typename Ready>
bool Spin(Ready ready, std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

template <typename Ready>
void SleepOn(Counter& counter, Ready ready, std::chrono::nanoseconds longest) {
  // Announced before anything is looked at again, so that whoever changes it sees a sleeper.
  counter.sleepers.fetch_add(1);
  const uint32_t value = counter.value.load();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!ready()) SleepWhile(counter, value, longest);
  counter.sleepers.fetch_sub(1);
}

template <typename Ready>
bool Await(Counter& counter, Ready ready, const Patience& patience,
           std::chrono::nanoseconds sleep) {
  if (ready()) return true;
  if (patience.spin.count() > 0 && Spin(ready, patience.spin)) return true;
  for (int i = 0; i < patience.yields; ++i) {
    Yield();
    if (ready()) return true;
  }
  const auto end = std::chrono::steady_clock::now() + sleep;
  for (;;) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) return false;
    SleepOn(counter, ready, left);
    if (ready()) return true;
  }
}

}  // namespace dtrain::runtime
