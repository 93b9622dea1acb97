// SPDX-License-Identifier: Apache-2.0
#include "runtime/shm/counter.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace dtrain::runtime {
namespace {

// Not FUTEX_PRIVATE: the word is shared between processes.
void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

bool Spin(const Counter& counter, uint32_t target, std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 32; ++i) {
      if (Reached(counter.value.load(std::memory_order_acquire), target)) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

void WakeAll(Counter& counter) { Futex(counter.value, FUTEX_WAKE, INT_MAX, nullptr); }

void Add(Counter& counter, uint32_t target) {
  if (counter.value.fetch_add(1) + 1 == target && counter.sleepers.load() != 0) WakeAll(counter);
}

void Set(Counter& counter, uint32_t value) {
  counter.value.store(value);
  if (counter.sleepers.load() != 0) WakeAll(counter);
}

void SleepOn(Counter& counter, uint32_t target, std::chrono::nanoseconds longest) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec timeout{whole.count(), std::chrono::nanoseconds(longest - whole).count()};
  // Announced before the value is looked at again, so that whoever changes it sees a sleeper.
  counter.sleepers.fetch_add(1);
  const uint32_t value = counter.value.load();
  if (!Reached(value, target)) Futex(counter.value, FUTEX_WAIT, value, &timeout);
  counter.sleepers.fetch_sub(1);
}

bool Await(Counter& counter, uint32_t target, const Patience& patience,
           std::chrono::nanoseconds sleep) {
  if (Reached(counter.value.load(std::memory_order_acquire), target)) return true;
  if (patience.spin.count() > 0 && Spin(counter, target, patience.spin)) return true;
  for (int i = 0; i < patience.yields; ++i) {
    sched_yield();
    if (Reached(counter.value.load(std::memory_order_acquire), target)) return true;
  }
  const auto end = std::chrono::steady_clock::now() + sleep;
  for (;;) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) return false;
    SleepOn(counter, target, left);
    if (Reached(counter.value.load(std::memory_order_acquire), target)) return true;
  }
}

}  // namespace dtrain::runtime
