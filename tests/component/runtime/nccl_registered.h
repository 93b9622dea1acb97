// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tests/component/runtime/nccl_judge.h"

// For tests of registered memory.
namespace dtrain::runtime::registered {

using Ints = std::vector<int32_t>;

inline constexpr size_t kCount = 1000, kBytes = kCount * 4;

// The versions that can register memory.
inline const std::vector<std::string>& Registering() {
  static const auto* const versions =
      new std::vector<std::string>{"fake_nccl_2.21.5", "fake_nccl_2.23.4", "fake_nccl_2.26.2",
                                   "fake_nccl",        "fake_nccl_2.30.3", "fake_nccl_2.30.7"};
  return *versions;
}

// Memory that is registered with all ranks or a group, whatever that answers.
inline char* MakeRegistered(size_t bytes, dtrain_group group = nullptr, int expected = 1) {
  void* memory = nullptr;
  EXPECT_EQ(dtrain_alloc_registrable(bytes, &memory), DTRAIN_OK) << dtrain_last_error();
  int registered = -1;
  EXPECT_EQ(dtrain_register(memory, group, &registered), DTRAIN_OK) << dtrain_last_error();
  EXPECT_EQ(registered, expected);
  return static_cast<char*>(memory);
}

inline bool LastErrorSays(const std::string& part) {
  return std::strstr(dtrain_last_error(), part.c_str()) != nullptr;
}

inline void ExpectSum(const Driver& driver, void* from, void* to, int rank, int step, bool blocks) {
  const Ints mine(kCount, rank + step);
  driver.Put(from, mine.data(), kBytes);
  if (blocks) {
    ASSERT_OK(dtrain_allreduce(from, to, kCount, DTRAIN_INT32, DTRAIN_SUM));
  } else {
    dtrain_handle handle = 0;
    ASSERT_OK(dtrain_allreduce_async(from, to, kCount, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle));
    ASSERT_OK(dtrain_wait(handle));
  }
  Ints all(kCount);
  driver.Get(all.data(), to, kBytes);
  const int n = dtrain_size();
  ASSERT_EQ(all, Ints(kCount, n * (n - 1) / 2 + n * step));
}

}  // namespace dtrain::runtime::registered
