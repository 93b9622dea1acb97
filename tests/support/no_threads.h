// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace dtrain {

// As long as this lives the process can start no thread, as where a limit of processes is reached:
// a new thread would need a stack larger than the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    EXPECT_EQ(pthread_getattr_default_np(&attributes), 0);
    EXPECT_EQ(pthread_attr_getstacksize(&attributes, &usual_), 0);
    pthread_attr_destroy(&attributes);
    SetStack(size_t{1} << 62);
  }
  ~NoThreads() { SetStack(usual_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  static void SetStack(size_t bytes) {
    pthread_attr_t attributes;
    EXPECT_EQ(pthread_getattr_default_np(&attributes), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }
  size_t usual_ = 0;
};

}  // namespace dtrain
