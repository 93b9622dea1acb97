// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/dtrain.h"
#include "tests/component/runtime/nccl_ranks.h"
#include "tests/support/fake_nccl/cuda/fake_cuda.h"

namespace dtrain::runtime {

// Of tests in which it passes: longer than a collective takes on a busy machine.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr char kShortTimeout[] = "20";
#else
constexpr char kShortTimeout[] = "4";
#endif

// The versions that the fake NCCL plays, by the folders of their files. With ThreadSanitizer, where
// a test takes minutes, three: our threads take the same locks with those between them.
inline const std::vector<std::string>& NcclVersions() {
#ifdef __SANITIZE_THREAD__
  static const auto* const versions =
      new std::vector<std::string>{"fake_nccl_old", "fake_nccl_2.21.5", "fake_nccl_2.30.7"};
#else
  static const auto* const versions = new std::vector<std::string>{
      "fake_nccl_old",    "fake_nccl_2.18.6", "fake_nccl_2.21.5", "fake_nccl_2.23.4",
      "fake_nccl_2.26.2", "fake_nccl",        "fake_nccl_2.30.3", "fake_nccl_2.30.7"};
#endif
  return *versions;
}

// What one forked rank asks the fake libraries, which its job has loaded.
template <typename Function>
Function* OfFake(const char* variable, const char* name) {
  void* library = dlopen(std::getenv(variable), RTLD_NOW | RTLD_NOLOAD);
  void* found = library == nullptr ? nullptr : dlsym(library, name);
  EXPECT_NE(found, nullptr) << name;
  return reinterpret_cast<Function*>(found);
}

inline int Seen(const char* name) {
  return OfFake<int(const char*)>("DTRAIN_NCCL_LIBRARY", "fake_nccl_count")(name);
}

// What NCCL forbids, or cannot stand, and nobody has done in this process.
inline void ExpectNoOffence() {
  for (const char* name :
       {"overlaps", "device_overlaps", "threads", "ended_inside", "after_end", "jobs_lost",
        "joined_twice", "full", "freed_registered", "lost_footing", "ended_registered"}) {
    EXPECT_EQ(Seen(name), 0) << name;
  }
  EXPECT_EQ(
      __atomic_load_n(OfFake<int>("DTRAIN_CUDA_LIBRARY", "fake_cuda_faults"), __ATOMIC_SEQ_CST), 0)
      << "memory was used that a kernel must not use";
}

// A kernel that ends when it is told to.
class Gate {
 public:
  explicit Gate(abi::CuStream stream, const Device& device) {
    const Device::Scope scope(device);
    const auto nothing = [](void*) {};
    const auto run = [](void* argument) {
      while (!static_cast<std::atomic<bool>*>(argument)->load()) std::this_thread::yield();
    };
    const fake_cuda_kernel kernel = {nothing, run, nothing, &open_};
    EXPECT_EQ((OfFake<int(void*, const fake_cuda_kernel*)>("DTRAIN_CUDA_LIBRARY",
                                                           "fake_cuda_submit")(stream, &kernel)),
              0);
  }
  ~Gate() { Open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void Open() { open_.store(true); }

 private:
  std::atomic<bool> open_{false};
};

inline std::map<std::string, std::string> OnNcclOf(
    const std::string& version, const std::map<std::string, std::string>& more = {}) {
  auto environment = FakeEnvironment(version);
  environment["DTRAIN_BACKEND"] = "nccl";
  environment["DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"] = "20";
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

inline std::vector<int> RunJobOf(int n, std::map<std::string, std::string> environment,
                                 const std::function<void(int)>& body,
                                 std::map<int, int> ends = {}) {
  RanksOptions options = Ending(std::move(ends));
  options.environment = std::move(environment);
  options.mapping = "(vector,(0,1," + std::to_string(n) + "))";
  return Ranks::Run(n, body, options);
}

#define ASSERT_OK(call) ASSERT_EQ(call, DTRAIN_OK) << dtrain_last_error()

// An all-reduce of one number on the GPU: a blocking one over all ranks.
inline int32_t SumOfOne(int32_t value, dtrain_group group = nullptr) {
  static const auto* const driver = new Driver(dtrain_local_rank());
  static void* const memory = driver->Allocate(4);
  driver->Put(memory, &value, 4);
  if (group == nullptr) {
    EXPECT_EQ(dtrain_allreduce(memory, memory, 1, DTRAIN_INT32, DTRAIN_SUM), DTRAIN_OK)
        << dtrain_last_error();
  } else {
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.group = group;
    dtrain_handle handle = 0;
    EXPECT_EQ(
        dtrain_allreduce_async(memory, memory, 1, DTRAIN_INT32, DTRAIN_SUM, &options, &handle),
        DTRAIN_OK)
        << dtrain_last_error();
    EXPECT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
  }
  driver->Get(&value, memory, 4);
  return value;
}

}  // namespace dtrain::runtime
