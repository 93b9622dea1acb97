// SPDX-License-Identifier: Apache-2.0
// An asynchronous call sees what its stream had when it was made, and work behind dtrain_wait sees
// its result.
#include "tests/gpu/checks.h"

namespace dtrain::gpu_check {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

int CheckOrdering(const Arguments& arguments) {
  Result result("ordering");
  Gpu gpu(result, OrdinalInEnvironment());
  Begin(result);
  constexpr size_t kCount = 100'000;
  constexpr size_t kBytes = kCount * sizeof(float);
  const Handle stream = gpu.NewStream();
  const Pointer input = gpu.Allocate(kBytes), output = gpu.Allocate(kBytes);
  const Pointer good = gpu.Allocate(kBytes), garbage = gpu.Allocate(kBytes);
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = ValueAt(i, dtrain_rank());
  gpu.Put(good, values.data(), kBytes, stream);
  const std::vector<float> nonsense(kCount, -1e6f);
  gpu.Put(garbage, nonsense.data(), kBytes, stream);

  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.stream = stream;
  double longest = 0;
  const char* busy = "";
  for (int round = 0; round < arguments.Number("--rounds", 10); ++round) {
    gpu.Put(input, nonsense.data(), kBytes, stream);
    gpu.Put(output, nonsense.data(), kBytes, stream);
    busy = gpu.Busy(stream, milliseconds(200));
    gpu.Must(gpu.api().CopyOnDevice(input, good, kBytes, stream), "cuMemcpyDtoDAsync");
    const auto start = steady_clock::now();
    dtrain_handle handle = 0;
    MustDtrain(result,
               dtrain_allreduce_async(Address(input), Address(output), kCount, DTRAIN_FLOAT32,
                                      DTRAIN_SUM, &options, &handle),
               "dtrain_allreduce_async");
    longest = std::max(longest, SecondsSince(start));
    MustDtrain(result, dtrain_wait(handle), "dtrain_wait");
    gpu.Must(gpu.api().CopyOnDevice(input, garbage, kBytes, stream), "cuMemcpyDtoDAsync");
    gpu.Get(values.data(), output, kBytes, stream);
    for (size_t i = 0; i < kCount; ++i) {
      if (values[i] == SumAt(i, dtrain_size())) continue;
      result.Miss("round " + std::to_string(round) + ": element " + std::to_string(i) + " is " +
                  std::to_string(values[i]) + ", not of the write before the call");
      break;
    }
  }
  result.Text("busy_with", busy);
  result.Number("longest_issue_ms", longest * 1e3);
  End(result);
  return result.Print();
}

}  // namespace dtrain::gpu_check
