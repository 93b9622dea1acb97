// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

// glibc's since 2.36, where std::random_device takes its numbers from.
uint32_t arc4random(void) {
  uint32_t value;
  // As little as this comes at once or, before the kernel has any randomness, waits.
  while (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value)) {
    if (errno != EINTR) abort();
  }
  return value;
}
