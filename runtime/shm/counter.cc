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

}  // namespace

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // `yield` does nothing on most of these processors; this waits for some ten cycles.
  asm volatile("isb" ::: "memory");
#endif
}

void Yield() { sched_yield(); }

void WakeAll(Counter& counter) { Futex(counter.value, FUTEX_WAKE, INT_MAX, nullptr); }

void Add(Counter& counter, uint32_t target) {
  if (counter.value.fetch_add(1) + 1 == target && counter.sleepers.load() != 0) WakeAll(counter);
}

void Set(Counter& counter, uint32_t value) {
  counter.value.store(value);
  if (counter.sleepers.load() != 0) WakeAll(counter);
}

void SleepWhile(Counter& counter, uint32_t value, std::chrono::nanoseconds longest) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec timeout{whole.count(), std::chrono::nanoseconds(longest - whole).count()};
  Futex(counter.value, FUTEX_WAIT, value, &timeout);
}

}  // namespace dtrain::runtime
