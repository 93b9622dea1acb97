// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

// Since glibc 2.32, set while a program has one thread. Here it never is: atomic operations stay
// atomic.
char __libc_single_threaded = 0;

typedef int Wait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                 const struct timespec* end);

enum { kNanos = 1000000000, kSlice = 50000000 };

static int IsBefore(struct timespec a, struct timespec b) {
  return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

// glibc's since 2.30; it is used where there is one. Before, conditions waited on the system's
// clock only, which may be set: so in slices, after each of which the caller sees a spurious
// wake-up.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* end) {
  static _Atomic(Wait*) real;
  static atomic_int looked;
  if (!atomic_load(&looked)) {
    Wait* found = (Wait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    atomic_store(&real, found == pthread_cond_clockwait ? NULL : found);
    atomic_store(&looked, 1);
  }
  Wait* wait = atomic_load(&real);
  if (wait != NULL) return wait(condition, mutex, clock, end);
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, end);
  if (clock != CLOCK_MONOTONIC || end->tv_nsec < 0 || end->tv_nsec >= kNanos) return EINVAL;

  struct timespec now, until;
  clock_gettime(CLOCK_MONOTONIC, &now);
  long slice = kSlice;
  if (end->tv_sec - now.tv_sec <= 1) {
    const long left = (long)(end->tv_sec - now.tv_sec) * kNanos + (end->tv_nsec - now.tv_nsec);
    if (left < slice) slice = left < 0 ? 0 : left;
  }
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (until.tv_nsec + slice) / kNanos;
  until.tv_nsec = (until.tv_nsec + slice) % kNanos;
  const int error = pthread_cond_timedwait(condition, mutex, &until);
  if (error != ETIMEDOUT) return error;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return IsBefore(now, *end) ? 0 : ETIMEDOUT;
}
