// SPDX-License-Identifier: Apache-2.0
// Groups: even and odd, nested, a rank in none; made and freed many times, with nothing left.
#include <dirent.h>

#include <atomic>
#include <thread>

#include "tests/gpu/checks.h"

namespace dtrain::gpu_check {
namespace {

constexpr size_t kCount = 1000;

int Entries(const char* folder) {
  DIR* dir = opendir(folder);
  if (dir == nullptr) return -1;
  int entries = 0;
  while (readdir(dir) != nullptr) ++entries;
  closedir(dir);
  return entries;
}

struct Usage {
  int threads = Entries("/proc/self/task");
  int descriptors = Entries("/proc/self/fd");
  double memory = -1;  // in use on the GPU; -1: not known
};

Usage Look(const Gpu& gpu) {
  Usage usage;
  size_t free = 0, total = 0;
  if (gpu.api().MemInfo != nullptr) {
    gpu.Must(gpu.api().MemInfo(&free, &total), "cuMemGetInfo");
    usage.memory = static_cast<double>(total - free);
  }
  return usage;
}

class Summer {
 public:
  Summer(Result& result, Gpu& gpu)
      : result_(result),
        gpu_(gpu),
        stream_(gpu.NewStream()),
        input_(gpu.Allocate(kCount * sizeof(float))),
        output_(gpu.Allocate(kCount * sizeof(float))) {}

  // The sum over the members of `group`, each of which gives its rank in the group.
  void Sum(dtrain_group group, const std::string& name) {
    MustDtrain(result_, TrySum(group, name), name.c_str());
  }
  // The same; a call that fails is the caller's concern.
  dtrain_status TrySum(dtrain_group group, const std::string& name) {
    const int size = dtrain_group_size(group);
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) values[i] = ValueAt(i, dtrain_group_rank(group));
    gpu_.Put(input_, values.data(), kCount * sizeof(float), stream_);
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.group = group;
    options.stream = stream_;
    dtrain_handle handle = 0;
    dtrain_status status = dtrain_allreduce_async(Address(input_), Address(output_), kCount,
                                                  DTRAIN_FLOAT32, DTRAIN_SUM, &options, &handle);
    if (status == DTRAIN_OK) status = dtrain_wait(handle);
    if (status != DTRAIN_OK) return status;
    gpu_.Get(values.data(), output_, kCount * sizeof(float), stream_);
    for (size_t i = 0; i < kCount; ++i) {
      if (values[i] == SumAt(i, size)) continue;
      result_.Miss(name + ": element " + std::to_string(i) + " is wrong");
      break;
    }
    return DTRAIN_OK;
  }

 private:
  Result& result_;
  Gpu& gpu_;
  const Handle stream_;
  const Pointer input_;
  const Pointer output_;
};

// One of each kind, used and freed.
void Round(Result& result, Summer& summer) {
  const int rank = dtrain_rank();
  dtrain_group parity = nullptr, half = nullptr, some = nullptr;
  MustDtrain(result, dtrain_group_create(rank % 2, rank, &parity), "even and odd");
  summer.Sum(parity, "even and odd");
  // Ranks that share the last group share this one too.
  MustDtrain(result, dtrain_group_create(rank % 2 * 2 + rank / 2 % 2, -rank, &half), "nested");
  summer.Sum(half, "nested");
  MustDtrain(result, dtrain_group_create(rank == 0 ? -1 : 0, rank, &some), "rank 0 in none");
  if (some != nullptr) summer.Sum(some, "rank 0 in none");
  summer.Sum(nullptr, "all ranks beside groups");
  for (const dtrain_group group : {some, half, parity}) {
    if (group != nullptr) MustDtrain(result, dtrain_group_free(group), "dtrain_group_free");
  }
}

}  // namespace

int CheckGroups(const Arguments& arguments) {
  Result result("groups");
  Gpu gpu(result, OrdinalInEnvironment());
  Begin(result);
  Summer summer(result, gpu);
  Round(result, summer);  // what is made once and stays
  MustDtrain(result, dtrain_barrier(), "dtrain_barrier");
  const Usage before = Look(gpu);
  for (int i = 0; i < arguments.Number("--rounds", 20); ++i) Round(result, summer);
  MustDtrain(result, dtrain_barrier(), "dtrain_barrier");
  Usage after = Look(gpu);
  // Connections and threads end a moment after the call that frees them.
  for (int i = 0; i < 20 && after.threads > before.threads; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    after = Look(gpu);
  }
  result.Number("threads_before", before.threads);
  result.Number("threads_after", after.threads);
  result.Number("descriptors_before", before.descriptors);
  result.Number("descriptors_after", after.descriptors);
  if (after.threads > before.threads) result.Miss("threads are left of freed groups");
  if (after.descriptors > before.descriptors) result.Miss("descriptors are left of freed groups");
  if (before.memory < 0) {
    result.CouldNot("memory of the GPU: the driver has no cuMemGetInfo");
  } else {
    result.Number("memory_before", before.memory);
    result.Number("memory_after", after.memory);
    if (after.memory > before.memory * 1.05)
      result.Miss("memory of the GPU is left of freed groups");
  }
  End(result);
  return result.Print();
}

// Groups of the same ranks, used by two threads of each rank, in different order on different
// ranks.
int CheckThreads(const Arguments& arguments) {
  Result result("threads");
  Gpu gpu(result, OrdinalInEnvironment());
  dtrain_config config = DTRAIN_CONFIG_INIT;
  const double limit = arguments.Number("--seconds", 10);
  config.collective_timeout_ms = static_cast<int64_t>(limit * 1000);
  Begin(result, &config);
  const int many = arguments.Number("--groups", 20);
  std::vector<dtrain_group> groups(static_cast<size_t>(many));
  for (int i = 0; i < many; ++i) {
    MustDtrain(result, dtrain_group_create(0, dtrain_rank(), &groups[static_cast<size_t>(i)]),
               "dtrain_group_create");
  }
  std::atomic<int> late{0};
  std::atomic<int> failed{0};
  const auto use = [&](int begin) {
    Gpu own(result, OrdinalInEnvironment());
    Summer summer(result, own);
    for (int i = begin; i < many; i += 2) {
      const auto start = std::chrono::steady_clock::now();
      const dtrain_status status = summer.TrySum(groups[static_cast<size_t>(i)], "a thread's");
      // It waits for the calls before it, too.
      if (SecondsSince(start) > 2 * limit + 2) ++late;
      if (status != DTRAIN_OK) ++failed;
      if (status != DTRAIN_OK) return;
    }
  };
  std::thread first(use, dtrain_rank() % 2);
  std::thread second(use, 1 - dtrain_rank() % 2);
  first.join();
  second.join();
  result.Number("failed", failed);
  if (late > 0) result.Miss("a call took longer than its time-out");
  if (failed > 0) result.Miss("a call failed");
  if (failed == 0) End(result);
  return result.Print();
}

}  // namespace dtrain::gpu_check
