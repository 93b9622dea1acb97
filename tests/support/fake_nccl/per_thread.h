// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

// A T for each thread, made at its first use and gone with the thread. Not thread_local: how the C
// library gives back that memory of a library opened at run time looks like a race to
// ThreadSanitizer.
namespace fake_nccl {

template <typename T>
class PerThread {
 public:
  PerThread() {
    pthread_key_create(&key_, [](void* made) { delete static_cast<T*>(made); });
  }
  PerThread(const PerThread&) = delete;
  PerThread& operator=(const PerThread&) = delete;

  T& Get() const {
    auto* made = static_cast<T*>(pthread_getspecific(key_));
    if (made == nullptr) pthread_setspecific(key_, made = new T());
    return *made;
  }

 private:
  pthread_key_t key_{};
};

}  // namespace fake_nccl
