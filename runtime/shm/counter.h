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

// True when `counter` has reached `target`; false after `patience` and at most `sleep`.
bool Await(Counter& counter, uint32_t target, const Patience& patience,
           std::chrono::nanoseconds sleep);

// Sleeps until anybody wakes the counter's sleepers, unless it has reached `target`; at most
// `longest`, and at times for no reason.
void SleepOn(Counter& counter, uint32_t target, std::chrono::nanoseconds longest);

}  // namespace dtrain::runtime
