// SPDX-License-Identifier: Apache-2.0
// What libdtrain adds to a small call of NCCL, on one rank, where NCCL only copies; and how fast
// raw NCCL is on several, measured as dtrain bench --pipelined does.
#include <cstdio>

#include "tests/gpu/checks.h"
#include "tests/gpu/nccl.h"

namespace dtrain::gpu_check {
namespace {

using std::chrono::steady_clock;

constexpr size_t kBytes = 4096;
constexpr size_t kCount = kBytes / sizeof(float);
constexpr int kBlock = 100;  // calls of one kind in a row, so that both see the same clocks

double Microseconds(steady_clock::time_point start) { return SecondsSince(start) * 1e6; }

struct Times {
  std::vector<double> raw_issue, raw_blocking, async_issue, blocking, raw_stream, stream;

  void Note(Result& result) {
    const auto note = [&](const char* name, std::vector<double>& values) {
      if (values.empty()) return;
      result.Number(std::string(name) + "_us_p50", Quantile(values, 0.5));
      result.Number(std::string(name) + "_us_p99", Quantile(values, 0.99));
    };
    note("raw_issue", raw_issue);
    note("async_issue", async_issue);
    note("raw_blocking", raw_blocking);
    note("blocking", blocking);
    note("raw_stream", raw_stream);
    note("stream", stream);
  }
};

class Measurement {
 public:
  Measurement(Result& result, Gpu& gpu, const RawComm& raw)
      : result_(result),
        gpu_(gpu),
        raw_(raw),
        stream_(gpu.NewStream()),
        input_(gpu.Allocate(kBytes)),
        output_(gpu.Allocate(kBytes)) {
    gpu.Must(gpu.api().EventCreate(&before_, 0), "cuEventCreate");
    gpu.Must(gpu.api().EventCreate(&after_, 0), "cuEventCreate");
    options_.stream = stream_;
  }

  void Block(Times& times) {
    Issue(times.raw_issue, [&] { Raw(); });
    std::vector<dtrain_handle> handles;
    Issue(times.async_issue, [&] { handles.push_back(Async()); });
    for (const dtrain_handle handle : handles) Wait(handle);
    gpu_.Drain(stream_);
    Issue(times.raw_blocking, [&] {
      Raw();
      gpu_.Drain(stream_);
    });
    Issue(times.blocking, [&] {
      MustDtrain(
          result_,
          dtrain_allreduce(Address(input_), Address(output_), kCount, DTRAIN_FLOAT32, DTRAIN_SUM),
          "dtrain_allreduce");
    });
    if (gpu_.api().EventElapsed == nullptr) return;
    OnStream(times.raw_stream, [&] { Raw(); });
    OnStream(times.stream, [&] { Wait(Async()); });
  }

  // Seconds for 1,000 calls in flight.
  double Throughput(bool ours) {
    const auto start = steady_clock::now();
    std::vector<dtrain_handle> handles;
    for (int i = 0; i < 1000; ++i) {
      if (ours) {
        handles.push_back(Async());
      } else {
        Raw();
      }
    }
    for (const dtrain_handle handle : handles) Wait(handle);
    gpu_.Drain(stream_);
    return SecondsSince(start);
  }

 private:
  void Raw() { raw_.AllReduce(input_, output_, kCount, stream_); }
  dtrain_handle Async() {
    dtrain_handle handle = 0;
    MustDtrain(result_,
               dtrain_allreduce_async(Address(input_), Address(output_), kCount, DTRAIN_FLOAT32,
                                      DTRAIN_SUM, &options_, &handle),
               "dtrain_allreduce_async");
    return handle;
  }
  void Wait(dtrain_handle handle) { MustDtrain(result_, dtrain_wait(handle), "dtrain_wait"); }

  template <typename Call>
  void Issue(std::vector<double>& times, Call call) {
    for (int i = 0; i < kBlock; ++i) {
      const auto start = steady_clock::now();
      call();
      times.push_back(Microseconds(start));
    }
    gpu_.Drain(stream_);
  }

  // By events of the stream, one call in flight.
  template <typename Call>
  void OnStream(std::vector<double>& times, Call call) {
    gpu_.Must(gpu_.api().EventRecord(before_, stream_), "cuEventRecord");
    call();
    gpu_.Must(gpu_.api().EventRecord(after_, stream_), "cuEventRecord");
    gpu_.Drain(stream_);
    float ms = 0;
    gpu_.Must(gpu_.api().EventElapsed(&ms, before_, after_), "cuEventElapsedTime");
    times.push_back(static_cast<double>(ms) * 1e3);
  }

  Result& result_;
  Gpu& gpu_;
  const RawComm& raw_;
  const Handle stream_;
  const Pointer input_;
  const Pointer output_;
  Handle before_ = nullptr;
  Handle after_ = nullptr;
  dtrain_options options_ = DTRAIN_OPTIONS_INIT;
};

void Bar(Result& result, const char* what, double value, double most) {
  if (value <= most) return;
  char text[160];
  std::snprintf(text, sizeof(text), "%s: %.1f us, more than %.1f us", what, value, most);
  result.Miss(text);
}

}  // namespace

int CheckLatency(const Arguments& arguments) {
  Result result("latency");
  Gpu gpu(result, OrdinalInEnvironment());
  Begin(result);
  RawComm raw(result, "", 0, 1);
  if (raw.error() != 0) {
    result.Miss("ncclCommInitRankConfig: " + raw.ErrorText());
    return result.Print();
  }
  Measurement measurement(result, gpu, raw);
  Times times;
  measurement.Block(times);  // warm-up
  times = Times();
  for (int i = 0; i < arguments.Number("--calls", 10'000) / kBlock; ++i) measurement.Block(times);
  times.Note(result);
  result.Number("raw_1000_calls_s", measurement.Throughput(false));
  result.Number("our_1000_calls_s", measurement.Throughput(true));
  if (times.stream.empty()) result.CouldNot("times on the stream: no cuEventElapsedTime");
  if (arguments.Has("--no-bars")) {
    result.CouldNot("the bars: times of a rehearsal say nothing");
  } else {
    Bar(result, "issuing an asynchronous call, added (p50)",
        Quantile(times.async_issue, 0.5) - Quantile(times.raw_issue, 0.5), 5);
    Bar(result, "a blocking call, added (p50)",
        Quantile(times.blocking, 0.5) - Quantile(times.raw_blocking, 0.5), 10);
    Bar(result, "issuing an asynchronous call, p99 against 5 x p50",
        Quantile(times.async_issue, 0.99), 5 * Quantile(times.async_issue, 0.5));
    Bar(result, "a blocking call, p99 against 5 x p50", Quantile(times.blocking, 0.99),
        5 * Quantile(times.blocking, 0.5));
  }
  raw.Destroy();
  End(result);
  return result.Print();
}

// A line for each size, as a text field: what dtrain bench prints of its own calls.
int CheckRawSizes(const Arguments& arguments) {
  Result result("raw-sizes");
  Gpu gpu(result, OrdinalInEnvironment());
  const int ranks = RanksInEnvironment();
  RawComm comm(result, arguments.Text("--id", ""), RankInEnvironment(), ranks);
  if (comm.error() != 0) {
    result.Miss("ncclCommInitRankConfig: " + comm.ErrorText());
    return result.Print();
  }
  std::vector<size_t> sizes;
  size_t most = 0;
  for (const std::string& word : arguments.List("--sizes", "4096")) {
    sizes.push_back(std::stoul(word));
    most = std::max(most, sizes.back());
  }
  const Handle stream = gpu.NewStream();
  const Pointer input = gpu.Allocate(most), output = gpu.Allocate(most), word = gpu.Allocate(4);
  const auto measure = [&](Pointer to, size_t bytes) {
    const int calls = arguments.Number("--iterations", 20);
    const auto many = [&](int n) {
      for (int i = 0; i < n; ++i) comm.AllReduce(input, to, bytes / sizeof(float), stream);
      gpu.Drain(stream);
    };
    many(5);
    many(1);
    comm.AllReduce(word, word, 1, stream);  // a barrier
    gpu.Drain(stream);
    const auto start = steady_clock::now();
    many(calls);
    return Microseconds(start) / calls;
  };
  for (const size_t bytes : sizes) {
    result.Number("out_us_" + std::to_string(bytes), measure(output, bytes));
    result.Number("in_us_" + std::to_string(bytes), measure(input, bytes));
  }
  comm.Destroy();
  return result.Print();
}

}  // namespace dtrain::gpu_check
