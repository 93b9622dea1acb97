// SPDX-License-Identifier: Apache-2.0
// Collectives in a CUDA graph: captured by all ranks, replayed, and finalised beside it.
#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/gpu/checks.h"

namespace dtrain::gpu_check {
namespace {

using std::chrono::steady_clock;

constexpr int kCalls = 10;
constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(float);
constexpr int kThreadLocal = 1;
constexpr double kLongestFinalize = 15;

bool CanCapture(const Cuda& cuda) {
  return cuda.BeginCapture != nullptr && cuda.EndCapture != nullptr &&
         cuda.GraphInstantiate != nullptr && cuda.GraphLaunch != nullptr &&
         cuda.GraphExecDestroy != nullptr && cuda.GraphDestroy != nullptr;
}

void CheckSums(Result& result, Gpu& gpu, const std::vector<Pointer>& outputs, Handle stream) {
  std::vector<float> values(kCount);
  for (size_t k = 0; k < outputs.size(); ++k) {
    gpu.Get(values.data(), outputs[k], kBytes, stream);
    for (size_t i = 0; i < kCount; ++i) {
      if (values[i] == SumAt(i + k, dtrain_size())) continue;
      result.Miss("call " + std::to_string(k) + " of the graph: element " + std::to_string(i) +
                  " is wrong");
      break;
    }
  }
}

}  // namespace

int CheckGraph(const Arguments& arguments) {
  const bool free_first = arguments.Has("--free-first");
  Result result(arguments.Has("--outstanding") ? "graph-behind"
                : free_first                   ? "graph-freed"
                                               : "graph-alive");
  Gpu gpu(result, OrdinalInEnvironment());
  const Cuda& cuda = gpu.api();
  if (!CanCapture(cuda)) {
    result.CouldNot("CUDA graphs: the driver has no functions for them");
    return result.Print();
  }
  // Nothing starts by itself before the capture.
  const bool outstanding = arguments.Has("--outstanding");
  if (outstanding) setenv("DTRAIN_CYCLE_TIME", "200", 1);
  Begin(result);
  const Handle stream = gpu.NewStream();
  std::vector<Pointer> inputs, outputs;
  std::vector<float> values(kCount);
  for (size_t k = 0; k < kCalls; ++k) {
    inputs.push_back(gpu.Allocate(kBytes));
    outputs.push_back(gpu.Allocate(kBytes));
    for (size_t i = 0; i < kCount; ++i) values[i] = ValueAt(i + k, dtrain_rank());
    gpu.Put(inputs[k], values.data(), kBytes, stream);
  }
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.stream = stream;
  const auto call = [&](size_t k) {
    dtrain_handle handle = 0;
    MustDtrain(result,
               dtrain_allreduce_async(Address(inputs[k]), Address(outputs[k]), kCount,
                                      DTRAIN_FLOAT32, DTRAIN_SUM, &options, &handle),
               "a captured call");
    MustDtrain(result, dtrain_wait(handle), "dtrain_wait while capturing");
  };
  call(0);  // what NCCL sets up once is not captured

  // On another stream, with work before it. Only every second rank waits for it before the capture.
  const bool waits = dtrain_rank() % 2 == 1;
  const Pointer beside = gpu.Allocate(kBytes);
  dtrain_options other = DTRAIN_OPTIONS_INIT;
  other.stream = gpu.NewStream();
  dtrain_handle handle = 0;
  if (outstanding) {
    gpu.Put(beside, values.data(), kBytes, other.stream);
    gpu.Busy(other.stream, std::chrono::milliseconds(200));
    MustDtrain(result,
               dtrain_allreduce_async(Address(beside), Address(beside), kCount, DTRAIN_FLOAT32,
                                      DTRAIN_SUM, &other, &handle),
               "a call before the capture");
    if (waits) MustDtrain(result, dtrain_wait(handle), "dtrain_wait before the capture");
  }

  std::atomic<bool> stop{false};
  std::thread allocates([&] {
    Gpu own(result, OrdinalInEnvironment());
    while (!stop) own.Must(own.api().MemFree(own.Allocate(1 << 20)), "cuMemFree beside a capture");
  });
  Handle graph = nullptr, instance = nullptr;
  gpu.Must(cuda.BeginCapture(stream, kThreadLocal), "cuStreamBeginCapture");
  for (size_t k = 0; k < kCalls; ++k) call(k);
  gpu.Must(cuda.EndCapture(stream, &graph), "cuStreamEndCapture");
  gpu.Must(cuda.GraphInstantiate(&instance, graph, 0), "cuGraphInstantiate");
  for (int i = 0; i < arguments.Number("--replays", 100); ++i) {
    gpu.Must(cuda.GraphLaunch(instance, stream), "cuGraphLaunch");
  }
  gpu.Drain(stream);
  stop = true;
  allocates.join();
  CheckSums(result, gpu, outputs, stream);
  if (outstanding) {
    if (!waits) MustDtrain(result, dtrain_wait(handle), "dtrain_wait behind the capture");
    gpu.Get(values.data(), beside, kBytes, other.stream);
    for (size_t i = 0; i < kCount; ++i) {
      if (values[i] == SumAt(i + kCalls - 1, dtrain_size())) continue;
      result.Miss("the call before the capture: element " + std::to_string(i) + " is wrong");
      break;
    }
  }

  if (free_first) {
    gpu.Must(cuda.GraphExecDestroy(instance), "cuGraphExecDestroy");
    gpu.Must(cuda.GraphDestroy(graph), "cuGraphDestroy");
  }
  const auto start = steady_clock::now();
  End(result);
  if (SecondsSince(start) > kLongestFinalize) result.Miss("dtrain_finalize took longer than 15 s");
  return result.Print();
}

}  // namespace dtrain::gpu_check
