// SPDX-License-Identifier: Apache-2.0
// pthread_cond_clockwait of common/portable as it is on glibc 2.28 and 2.29, which have none. Ends
// with 0, or says what is wrong.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define dlsym(library, name) NULL
#define pthread_cond_clockwait ClockWait
#define __libc_single_threaded single_threaded
#include "common/portable/threads.c"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int told = 0;
static int wrong = 0;

static void Expect(int right, const char* what) {
  if (right) return;
  fprintf(stderr, "portable-wait: %s\n", what);
  wrong = 1;
}

static struct timespec In(clockid_t clock, long milliseconds) {
  struct timespec time;
  clock_gettime(clock, &time);
  time.tv_sec += milliseconds / 1000;
  time.tv_nsec += milliseconds % 1000 * 1000000;
  time.tv_sec += time.tv_nsec / kNanos;
  time.tv_nsec %= kNanos;
  return time;
}

static int IsOver(struct timespec end) { return !IsBefore(In(CLOCK_MONOTONIC, 0), end); }

static void* Tell(void* unused) {
  (void)unused;
  pthread_mutex_lock(&mutex);
  told = 1;
  pthread_cond_signal(&condition);
  pthread_mutex_unlock(&mutex);
  return NULL;
}

int main(void) {
  pthread_mutex_lock(&mutex);
  struct timespec end = In(CLOCK_MONOTONIC, 120);
  int error, returns = 0;
  while ((error = ClockWait(&condition, &mutex, CLOCK_MONOTONIC, &end)) == 0) ++returns;
  Expect(error == ETIMEDOUT && IsOver(end), "it times out before its end");
  Expect(returns >= 1, "it does not let its caller look meanwhile");
  Expect(ClockWait(&condition, &mutex, CLOCK_MONOTONIC, &end) == ETIMEDOUT,
         "an end that is over is awaited");

  const struct timespec never = {LONG_MAX, 0};
  Expect(ClockWait(&condition, &mutex, CLOCK_MONOTONIC, &never) == 0, "an end far away is wrong");
  end = In(CLOCK_REALTIME, 1);
  Expect(ClockWait(&condition, &mutex, CLOCK_REALTIME, &end) == ETIMEDOUT,
         "the system's clock is wrong");
  Expect(ClockWait(&condition, &mutex, CLOCK_BOOTTIME, &end) == EINVAL, "any clock is taken");

  pthread_t thread;
  Expect(pthread_create(&thread, NULL, Tell, NULL) == 0, "there is no thread");
  end = In(CLOCK_MONOTONIC, 60 * 1000);
  while (!told && ClockWait(&condition, &mutex, CLOCK_MONOTONIC, &end) == 0) {
  }
  Expect(told && !IsOver(end), "it is not woken");
  pthread_mutex_unlock(&mutex);
  pthread_join(thread, NULL);
  return wrong;
}
