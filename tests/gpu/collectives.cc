// SPDX-License-Identifier: Apache-2.0
// Every collective, type and operation, on every kind of memory, is exact.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>

#include "runtime/allreduce/pattern.h"
#include "tests/gpu/checks.h"

namespace dtrain::gpu_check {
namespace {

using allreduce::Bfloat16;
using allreduce::Float16;
using allreduce::Pattern;

enum class Kind { kAllreduce, kBroadcast, kAllgather, kReduceScatter, kAlltoall, kReduce };
constexpr std::array<const char*, 6> kNames = {"allreduce",      "broadcast", "allgather",
                                               "reduce_scatter", "alltoall",  "reduce"};

// Memory of one kind, that host data is put into and read from.
class Block {
 public:
  Block(Result& result, Gpu& gpu, const std::string& kind, size_t bytes)
      : gpu_(gpu), on_device_(kind == "device") {
    if (kind == "device") {
      memory_ = Address(gpu.Allocate(bytes));
    } else if (kind == "pinned") {
      gpu.Must(gpu.api().HostAlloc(&memory_, bytes, 1), "cuMemHostAlloc");
    } else if (kind == "managed") {
      Pointer pointer = 0;
      gpu.Must(gpu.api().MemAllocManaged(&pointer, bytes, 1), "cuMemAllocManaged");
      memory_ = Address(pointer);
    } else if (kind == "host") {
      host_.resize(bytes);
      memory_ = host_.data();
    } else {
      result.Miss("no memory of kind " + kind);
      result.Give();
    }
  }

  char* data() const { return static_cast<char*>(memory_); }
  void Put(const void* from, size_t bytes, Handle stream) const {
    if (on_device_) return gpu_.Put(NumberOf(memory_), from, bytes, stream);
    std::memcpy(memory_, from, bytes);
  }
  void Get(void* to, size_t bytes, Handle stream) const {
    if (on_device_) return gpu_.Get(to, NumberOf(memory_), bytes, stream);
    gpu_.Drain(stream);
    std::memcpy(to, memory_, bytes);
  }

 private:
  Gpu& gpu_;
  bool on_device_;
  void* memory_ = nullptr;  // not freed: the process ends with the check
  std::vector<char> host_;
};

struct Place {
  const Block* first;
  const Block* second;
  bool in_place;
  Handle stream;  // null: the legacy stream, by blocking calls
  std::string memory;
};

bool Reduces(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
}

dtrain_status CallAsync(Kind kind, const void* in, void* out, size_t n, dtrain_type type,
                        dtrain_op op, const dtrain_options* options, dtrain_handle* handle) {
  switch (kind) {
    case Kind::kBroadcast:
      return dtrain_broadcast_async(out, n, type, 0, options, handle);
    case Kind::kAllgather:
      return dtrain_allgather_async(in, out, n, type, options, handle);
    case Kind::kReduceScatter:
      return dtrain_reduce_scatter_async(in, out, n, type, op, options, handle);
    case Kind::kAlltoall:
      return dtrain_alltoall_async(in, out, n, type, options, handle);
    case Kind::kReduce:
      return dtrain_reduce_async(in, out, n, type, op, 0, options, handle);
    default:
      return dtrain_allreduce_async(in, out, n, type, op, options, handle);
  }
}

dtrain_status CallBlocking(Kind kind, const void* in, void* out, size_t n, dtrain_type type,
                           dtrain_op op) {
  switch (kind) {
    case Kind::kBroadcast:
      return dtrain_broadcast(out, n, type, 0);
    case Kind::kAllgather:
      return dtrain_allgather(in, out, n, type);
    case Kind::kReduceScatter:
      return dtrain_reduce_scatter(in, out, n, type, op);
    case Kind::kAlltoall:
      return dtrain_alltoall(in, out, n, type);
    case Kind::kReduce:
      return dtrain_reduce(in, out, n, type, op, 0);
    default:
      return dtrain_allreduce(in, out, n, type, op);
  }
}

template <typename T>
class Tester {
 public:
  Tester(Result& result, dtrain_type type) : result_(result), type_(type) {}

  void Run(Kind kind, dtrain_op op, size_t count, const Place& place) {
    const auto me = static_cast<size_t>(dtrain_rank());
    const auto ranks = static_cast<size_t>(dtrain_size());
    const Pattern<T> pattern(dtrain_rank(), dtrain_size(), op);
    const bool large_in = kind == Kind::kReduceScatter || kind == Kind::kAlltoall;
    const bool large_out = kind == Kind::kAllgather || kind == Kind::kAlltoall;
    const size_t in_count = large_in ? count * ranks : count;
    const size_t out_count = large_out ? count * ranks : count;
    const bool in_place = place.in_place || kind == Kind::kBroadcast;

    const size_t all = std::max(in_count, out_count);
    std::vector<T> values(all);
    std::vector<T> marks(all);
    Pattern<T>::FillMark(marks.data(), all);
    values = marks;
    size_t in_at = 0;
    size_t out_at = 0;
    if (in_place && kind == Kind::kAllgather) in_at = me * count;
    if (in_place && kind == Kind::kReduceScatter) out_at = me * count;
    if (kind != Kind::kBroadcast || me == 0) pattern.FillInput(values.data() + in_at, in_count);

    place.first->Put(values.data(), all * sizeof(T), place.stream);
    place.second->Put(marks.data(), all * sizeof(T), place.stream);
    const Block& output = in_place ? *place.first : *place.second;
    const void* in = place.first->data() + in_at * sizeof(T);
    void* out = output.data() + out_at * sizeof(T);
    const std::string name = std::string(kNames[static_cast<size_t>(kind)]) + " type " +
                             std::to_string(type_) + " op " + std::to_string(op) + " count " +
                             std::to_string(count) + (in_place ? " in place" : "") + ", " +
                             place.memory + " memory" + (place.stream ? "" : ", legacy stream");
    MustDtrain(result_, Call(kind, in, out, count, op, place.stream), name.c_str());
    std::vector<T> found(all);
    output.Get(found.data(), all * sizeof(T), place.stream);
    const size_t wrong = CountWrong(kind, pattern, found.data() + out_at, count);
    if (wrong > 0) result_.Miss(name + ": " + std::to_string(wrong) + " elements are wrong");
  }

 private:
  dtrain_status Call(Kind kind, const void* in, void* out, size_t n, dtrain_op op, Handle stream) {
    if (stream == nullptr) return CallBlocking(kind, in, out, n, type_, op);
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.stream = stream;
    dtrain_handle handle = 0;
    const dtrain_status status = CallAsync(kind, in, out, n, type_, op, &options, &handle);
    return status == DTRAIN_OK ? dtrain_wait(handle) : status;
  }

  static size_t CountWrong(Kind kind, const Pattern<T>& pattern, const T* data, size_t count) {
    const auto me = static_cast<size_t>(dtrain_rank());
    size_t first = 0;
    size_t wrong = 0;
    switch (kind) {
      case Kind::kBroadcast:
        return pattern.CountWrongCopy(data, count, 0, first);
      case Kind::kAllgather:
      case Kind::kAlltoall:
        for (int r = 0; r < dtrain_size(); ++r) {
          wrong += pattern.CountWrongCopy(data + static_cast<size_t>(r) * count, count, r, first,
                                          kind == Kind::kAlltoall ? me * count : 0);
        }
        return wrong;
      case Kind::kReduceScatter:
        return pattern.CountWrong(data, count, first, me * count);
      case Kind::kReduce:
        return me == 0 ? pattern.CountWrong(data, count, first) : 0;
      default:
        return pattern.CountWrong(data, count, first);
    }
  }

  Result& result_;
  const dtrain_type type_;
};

struct Case {
  const Place* place;
  dtrain_type type;
  Kind kind;
  dtrain_op op;
  size_t count;

  void Run(Result& result) const {
    switch (type) {
      case DTRAIN_INT32:
        return Tester<int32_t>(result, type).Run(kind, op, count, *place);
      case DTRAIN_INT64:
        return Tester<int64_t>(result, type).Run(kind, op, count, *place);
      case DTRAIN_FLOAT16:
        return Tester<Float16>(result, type).Run(kind, op, count, *place);
      case DTRAIN_BFLOAT16:
        return Tester<Bfloat16>(result, type).Run(kind, op, count, *place);
      case DTRAIN_FLOAT64:
        return Tester<double>(result, type).Run(kind, op, count, *place);
      default:
        return Tester<float>(result, type).Run(kind, op, count, *place);
    }
  }
};

std::vector<Case> AllCases(const std::vector<Place>& places, const std::vector<size_t>& counts) {
  constexpr size_t kLarge = 100'000;
  std::vector<Case> cases;
  for (const Place& place : places) {
    for (int type = DTRAIN_INT32; type <= DTRAIN_FLOAT64; ++type) {
      for (size_t k = 0; k < kNames.size(); ++k) {
        for (int op = DTRAIN_SUM; op <= DTRAIN_PROD; ++op) {
          const Kind kind = static_cast<Kind>(k);
          if (op != DTRAIN_SUM && !Reduces(kind)) continue;
          if (op == DTRAIN_AVG && (type == DTRAIN_INT32 || type == DTRAIN_INT64)) continue;
          for (const size_t count : counts) {
            if (count > kLarge && op != DTRAIN_SUM) continue;  // sums are enough to wait for
            cases.push_back(
                {&place, static_cast<dtrain_type>(type), kind, static_cast<dtrain_op>(op), count});
          }
        }
      }
    }
  }
  return cases;
}

// In an order in which any beginning is a sample of all, because ranks that share a GPU may be too
// slow for all of them in `seconds`. All ranks stop at the same case.
size_t RunCases(Result& result, std::vector<Case> cases, double seconds) {
  constexpr size_t kBetweenLooks = 16;
  std::shuffle(cases.begin(), cases.end(), std::mt19937(1));
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].Run(result);
    if (i % kBetweenLooks != 0) continue;
    int32_t over = SecondsSince(start) > seconds ? 1 : 0;
    MustDtrain(result, dtrain_allreduce(&over, &over, 1, DTRAIN_INT32, DTRAIN_MAX),
               "whether the time is over");
    if (over == 0 || i + 1 == cases.size()) continue;
    result.CouldNot("time for " + std::to_string(i + 1) + " of " + std::to_string(cases.size()) +
                    " calls only");
    return i + 1;
  }
  return cases.size();
}

// `many` all-reduces of different sizes in flight at once, which the library may send as one.
void RunFused(Result& result, Gpu& gpu, size_t many, Handle stream) {
  constexpr size_t kCount = 1000;
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = ValueAt(i, dtrain_rank());
  std::vector<Pointer> inputs, outputs;
  for (size_t k = 0; k < many; ++k) {
    inputs.push_back(gpu.Allocate(kCount * sizeof(float)));
    outputs.push_back(gpu.Allocate(kCount * sizeof(float)));
    gpu.Put(inputs[k], values.data(), kCount * sizeof(float), stream);
  }
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.stream = stream;
  std::vector<dtrain_handle> handles(many);
  for (size_t k = 0; k < many; ++k) {
    MustDtrain(result,
               dtrain_allreduce_async(Address(inputs[k]), Address(outputs[k]), kCount - k,
                                      DTRAIN_FLOAT32, DTRAIN_SUM, &options, &handles[k]),
               "dtrain_allreduce_async");
  }
  for (const dtrain_handle handle : handles) MustDtrain(result, dtrain_wait(handle), "dtrain_wait");
  for (size_t k = 0; k < many; ++k) {
    gpu.Get(values.data(), outputs[k], kCount * sizeof(float), stream);
    for (size_t i = 0; i < kCount - k; ++i) {
      if (values[i] == SumAt(i, dtrain_size())) continue;
      result.Miss(std::to_string(many) + " at once: element " + std::to_string(i) + " of number " +
                  std::to_string(k) + " is wrong");
      break;
    }
    gpu.Must(gpu.api().MemFree(inputs[k]), "cuMemFree");
    gpu.Must(gpu.api().MemFree(outputs[k]), "cuMemFree");
  }
}

}  // namespace

int CheckCollectives(const Arguments& arguments) {
  Result result("collectives");
  Gpu gpu(result, OrdinalInEnvironment());
  Begin(result);
  std::vector<size_t> counts;
  size_t most = 0;
  for (const std::string& word : arguments.List("--counts", "0,1,1001,262144")) {
    counts.push_back(std::stoul(word));
    most = std::max(most, counts.back());
  }
  const size_t bytes = std::max<size_t>(most * static_cast<size_t>(dtrain_size()) * 8, 4096);
  const Handle fresh = gpu.NewStream();
  for (const std::string& many : arguments.List("--fused", "")) {
    RunFused(result, gpu, std::stoul(many), fresh);
  }
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Place> places;
  for (const std::string& kind : arguments.List("--memory", "device,host,pinned,managed")) {
    if (kind == "managed" && gpu.api().MemAllocManaged == nullptr) {
      result.CouldNot("managed memory: the driver has no cuMemAllocManaged");
      continue;
    }
    // Mixed: ranks with odd numbers have their buffers in the other place.
    const bool other = arguments.Has("--mixed") && dtrain_rank() % 2 == 1;
    const std::string mine = other ? "host" : kind;
    for (int i = 0; i < 2; ++i) {
      blocks.push_back(std::make_unique<Block>(result, gpu, mine, bytes));
    }
    const Block* first = blocks[blocks.size() - 2].get();
    const Block* second = blocks.back().get();
    for (const Handle stream : {fresh, Handle{nullptr}}) {
      for (const bool in_place : {false, true}) {
        places.push_back({first, second, in_place, stream, mine});
      }
    }
  }
  const size_t calls =
      RunCases(result, AllCases(places, counts), arguments.Number("--seconds", 600));
  result.Number("calls", static_cast<double>(calls));
  End(result);
  return result.Print();
}

}  // namespace dtrain::gpu_check
