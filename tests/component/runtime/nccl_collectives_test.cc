// SPDX-License-Identifier: Apache-2.0
// The collectives of the NCCL backend, with real data, through the fake libraries.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/types.h"
#include "tests/component/runtime/nccl_ranks.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;
using std::chrono::seconds;

constexpr dtrain_type kTypes[] = {DTRAIN_INT32,   DTRAIN_INT64,   DTRAIN_FLOAT16, DTRAIN_BFLOAT16,
                                  DTRAIN_FLOAT32, DTRAIN_FLOAT64, DTRAIN_BYTE};
constexpr dtrain_op kOps[] = {DTRAIN_SUM, DTRAIN_AVG, DTRAIN_MIN, DTRAIN_MAX, DTRAIN_PROD};
constexpr Kind kKinds[] = {Kind::kAllreduce,     Kind::kBroadcast, Kind::kAllgather,
                           Kind::kReduceScatter, Kind::kAlltoall,  Kind::kReduce};

// Exact for numbers up to 2048 and powers of two.
uint16_t Half(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::abs(value), &exponent);
  const auto bits =
      static_cast<uint16_t>(((exponent + 14) << 10) | (static_cast<int>(fraction * 2048) & 0x3ff));
  return static_cast<uint16_t>(bits | (value < 0 ? 0x8000 : 0));
}

uint16_t Brain(double value) {
  const auto wide = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

template <typename T>
void Append(std::vector<char>& bytes, T value) {
  const auto* from = reinterpret_cast<const char*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof(value));
}

std::vector<char> Encode(const std::vector<double>& values, dtrain_type type) {
  std::vector<char> bytes;
  bytes.reserve(values.size() * ElementSize(type));
  for (const double value : values) {
    if (type == DTRAIN_INT32) Append(bytes, static_cast<int32_t>(value));
    if (type == DTRAIN_INT64) Append(bytes, static_cast<int64_t>(value));
    if (type == DTRAIN_FLOAT16) Append(bytes, Half(value));
    if (type == DTRAIN_BFLOAT16) Append(bytes, Brain(value));
    if (type == DTRAIN_FLOAT32) Append(bytes, static_cast<float>(value));
    if (type == DTRAIN_FLOAT64) Append(bytes, value);
    if (type == DTRAIN_BYTE) Append(bytes, static_cast<int8_t>(value));
  }
  return bytes;
}

// Whole numbers for which every result is exact in every type: averages are whole, products small.
double Value(size_t i, int rank, int size, dtrain_op op) {
  const auto r = static_cast<size_t>(rank);
  if (op == DTRAIN_PROD) return (i + r) % 2 == 0 ? 2 : 1;
  return static_cast<double>((i * 7 + r * 3) % 8 + 1) * size;
}

double Reduced(size_t i, int size, dtrain_op op) {
  double all = Value(i, 0, size, op);
  for (int r = 1; r < size; ++r) {
    const double next = Value(i, r, size, op);
    if (op == DTRAIN_SUM || op == DTRAIN_AVG) all += next;
    if (op == DTRAIN_MIN) all = std::min(all, next);
    if (op == DTRAIN_MAX) all = std::max(all, next);
    if (op == DTRAIN_PROD) all *= next;
  }
  return op == DTRAIN_AVG ? all / size : all;
}

struct Shape {
  size_t input = 0, output = 0;  // elements
};

Shape ShapeOf(const Collective& what, size_t size) {
  const size_t n = what.count;
  switch (what.kind) {
    case Kind::kAllgather:
      return {n, n * size};
    case Kind::kReduceScatter:
      return {n * size, n};
    case Kind::kAlltoall:
      return {n * size, n * size};
    default:
      return {n, n};
  }
}

std::vector<double> Expected(const Collective& what, int rank, int size) {
  std::vector<double> out;
  const size_t n = what.count;
  const auto me = static_cast<size_t>(rank);
  const auto of = [&](size_t i, int r) { return Value(i, r, size, what.op); };
  for (size_t i = 0; i < ShapeOf(what, static_cast<size_t>(size)).output; ++i) {
    const int from = static_cast<int>(i / n);
    if (what.kind == Kind::kAllreduce || what.kind == Kind::kReduce) {
      out.push_back(Reduced(i, size, what.op));
    } else if (what.kind == Kind::kBroadcast) {
      out.push_back(of(i, what.root));
    } else if (what.kind == Kind::kAllgather) {
      out.push_back(of(i % n, from));
    } else if (what.kind == Kind::kReduceScatter) {
      out.push_back(Reduced(me * n + i, size, what.op));
    } else {
      out.push_back(of(me * n + i % n, from));
    }
  }
  return out;
}

enum class Place { kHost, kGpu };

// A buffer on the host or the GPU with room for `elements`.
class Buffer {
 public:
  Buffer(GpuGroup& communicator, const Driver& driver, Place place, size_t bytes)
      : driver_(driver), host_(bytes, '\x5a') {
    if (place == Place::kGpu) gpu_ = std::make_unique<GpuBuffer>(communicator, bytes);
    Set(host_);
  }
  char* get() { return gpu_ ? gpu_->get() : host_.data(); }
  void Set(const std::vector<char>& bytes, size_t at = 0) {
    if (gpu_) {
      driver_.Put(gpu_->get() + at, bytes.data(), bytes.size());
    } else if (!bytes.empty() && bytes.data() != host_.data()) {
      std::memcpy(host_.data() + at, bytes.data(), bytes.size());
    }
  }
  std::vector<char> Get(size_t at, size_t bytes) {
    std::vector<char> out(bytes);
    if (gpu_) {
      driver_.Get(out.data(), gpu_->get() + at, bytes);
    } else if (bytes > 0) {
      std::memcpy(out.data(), host_.data() + at, bytes);
    }
    return out;
  }

 private:
  const Driver& driver_;
  std::vector<char> host_;
  std::unique_ptr<GpuBuffer> gpu_;
};

struct Case {
  Collective what;
  Place input = Place::kGpu, output = Place::kGpu;
  bool in_place = false;
};

void Check(GpuGroup& communicator, const Driver& driver, const Case& test) {
  const int rank = communicator.rank(), size = communicator.size();
  const auto n = static_cast<size_t>(size), me = static_cast<size_t>(rank);
  Collective what = test.what;
  const size_t element = ElementSize(what.type), block = what.count * element;
  const Shape shape = ShapeOf(what, n);
  const bool in_place = test.in_place || what.kind == Kind::kBroadcast;
  std::vector<double> values;
  for (size_t i = 0; i < shape.input; ++i) values.push_back(Value(i, rank, size, what.op));

  const size_t bytes = std::max(shape.input, shape.output) * element;
  Buffer output(communicator, driver, test.output, bytes);
  Buffer separate(communicator, driver, test.input, bytes);
  Buffer& input = in_place ? output : separate;
  const size_t input_at = in_place && what.kind == Kind::kAllgather ? me * block : 0;
  const size_t output_at = in_place && what.kind == Kind::kReduceScatter ? me * block : 0;
  input.Set(Encode(values, what.type), input_at);
  what.input = what.kind == Kind::kBroadcast ? nullptr : input.get() + input_at;
  what.output = output.get() + output_at;
  const bool ignored = what.kind == Kind::kReduce && rank != what.root;
  if (ignored && !in_place) what.output = nullptr;

  Spent spent;
  const MaybeError error = communicator.Run(what, seconds(20), spent);
  ASSERT_FALSE(error) << error->message;
  if (ignored) return;
  EXPECT_EQ(output.Get(output_at, shape.output * element),
            Encode(Expected(what, rank, size), what.type))
      << Describe(what) << ", in place " << in_place << ", rank " << rank;
}

bool Floating(dtrain_type type) { return type != DTRAIN_INT32 && type != DTRAIN_INT64; }

bool Reduces(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
}

TEST(NcclCollectives, GiveTheRightResultForAllKindsTypesAndOperationsOnTheGpu) {
  RunNccl(3, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Driver driver(self.rank);
    for (const Kind kind : kKinds) {
      for (const dtrain_type type : kTypes) {
        for (const dtrain_op op : kOps) {
          if (Reduces(kind) ? type == DTRAIN_BYTE || (op == DTRAIN_AVG && !Floating(type))
                            : op != DTRAIN_SUM) {
            continue;
          }
          Case test;
          test.what.kind = kind;
          test.what.type = type;
          test.what.op = op;
          test.what.count = 37;
          test.what.root = 1;
          Check(**made, driver, test);
        }
      }
    }
  });
}

void CheckPlaces(NcclRank& self) {
  auto made = self.Make();
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Driver driver(self.rank);
  for (const Kind kind : kKinds) {
    for (const bool in_place : {false, true}) {
      for (int places = 0; places < 5; ++places) {
        Case test;
        test.what.kind = kind;
        test.what.type = DTRAIN_FLOAT32;
        test.what.count = 1001;
        test.what.root = self.size - 1;
        test.in_place = in_place;
        // The last round has other places on every rank.
        const int chosen = places == 4 ? self.rank % 4 : places;
        test.output = (chosen & 1) == 0 ? Place::kHost : Place::kGpu;
        test.input = (chosen & 2) == 0 ? Place::kHost : Place::kGpu;
        Check(**made, driver, test);
      }
    }
  }
}

TEST(NcclCollectives, TakeBuffersOfTheHostAndOfTheGpuInAnyMixtureAmongTheRanks) {
  RunNccl(4, FakeEnvironment(), CheckPlaces);
}

TEST(NcclCollectives, WorkWithAnOldNcclWithoutAlltoallAndRegistration) {
  RunNccl(3, FakeEnvironment("fake_nccl_old"), CheckPlaces);
}

TEST(NcclCollectives, WorkForARankAlone) { RunNccl(1, FakeEnvironment(), CheckPlaces); }

TEST(NcclCollectives, BringLargeHostBuffersThroughSeveralPinnedChunks) {
  RunNccl(2, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Driver driver(self.rank);
    for (const size_t count : {size_t{1} << 19, (size_t{1} << 20) + 3}) {
      for (const Kind kind : {Kind::kAllreduce, Kind::kBroadcast, Kind::kAlltoall}) {
        Case test;
        test.what.kind = kind;
        test.what.type = DTRAIN_FLOAT64;
        test.what.count = count;
        test.input = test.output = Place::kHost;
        Check(**made, driver, test);
      }
    }
  });
}

TEST(NcclCollectives, OnTheGpuOnlyEnqueueAndKeepTheStreamsOrder) {
  RunNccl(2, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Driver driver(self.rank);
    const abi::CuStream stream = driver.NewStream();
    constexpr size_t kCount = 1000;
    GpuBuffer buffer(**made, kCount * sizeof(int64_t));
    const std::vector<int64_t> ones(kCount, 1);
    driver.Put(buffer.get(), ones.data(), kCount * sizeof(int64_t), stream);
    Collective what;
    what.kind = Kind::kAllreduce;
    what.type = DTRAIN_INT64;
    what.input = what.output = buffer.get();
    what.count = kCount;
    what.stream = stream;
    Spent spent;
    for (int i = 0; i < 40; ++i) {
      what.number = static_cast<uint64_t>(i);
      ASSERT_FALSE((*made)->Run(what, seconds(20), spent));
    }
    std::vector<int64_t> all(kCount);
    driver.Get(all.data(), buffer.get(), kCount * sizeof(int64_t), stream);
    EXPECT_EQ(all, std::vector<int64_t>(kCount, int64_t{1} << 40));
  });
}

TEST(NcclCollectives, RunSeveralAllreducesInOneGroupWhereverTheBuffersAre) {
  RunNccl(3, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Driver driver(self.rank);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::unique_ptr<Buffer>> buffers;
      std::vector<Collective> all;
      const std::vector<size_t> counts = {5, 0, 1000, 77};
      for (size_t i = 0; i < counts.size(); ++i) {
        // All on the GPU, all on the host, then another mixture on every rank.
        const bool gpu =
            round == 0 || (round == 2 && (i + static_cast<size_t>(self.rank)) % 2 == 0);
        const size_t bytes = std::max<size_t>(counts[i], 1) * sizeof(float);
        buffers.push_back(
            std::make_unique<Buffer>(**made, driver, gpu ? Place::kGpu : Place::kHost, bytes));
        buffers.back()->Set(Encode(std::vector<double>(counts[i], self.rank + 1), DTRAIN_FLOAT32));
        Collective what;
        what.kind = Kind::kAllreduce;
        what.type = DTRAIN_FLOAT32;
        what.count = counts[i];
        what.input = what.output = buffers.back()->get();
        all.push_back(what);
      }
      Spent spent;
      const MaybeError error = (*made)->RunTogether(all, seconds(20), spent);
      ASSERT_FALSE(error) << error->message;
      for (size_t i = 0; i < counts.size(); ++i) {
        EXPECT_EQ(buffers[i]->Get(0, counts[i] * sizeof(float)),
                  Encode(std::vector<double>(counts[i], 6), DTRAIN_FLOAT32));
      }
    }
  });
}

TEST(NcclCollectives, FinishWaitsForWhatRunHasEnqueued) {
  RunNccl(2, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Driver driver(self.rank);
    const abi::CuStream stream = driver.NewStream();
    GpuBuffer buffer(**made, 4096);
    Collective what;
    what.kind = Kind::kAllreduce;
    what.input = what.output = buffer.get();
    what.count = 1000;
    what.stream = stream;
    Spent spent;
    ASSERT_FALSE((*made)->Run(what, seconds(20), spent));
    ASSERT_FALSE((*made)->Finish());
    EXPECT_TRUE(driver.Idle(stream));
  });
}

TEST(NcclCollectives, ABarrierHoldsARankUntilTheLastOneHasCome) {
  auto* arrived = static_cast<std::atomic<int>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  RunNccl(3, FakeEnvironment(), [&](NcclRank& self) {
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    Spent spent;
    for (int i = 0; i < 50; ++i) {
      arrived->fetch_add(1);
      ASSERT_FALSE((*made)->Run({}, seconds(20), spent));
      EXPECT_GE(arrived->load(), 3 * (i + 1));
    }
  });
}

TEST(NcclCollectives, DoNothingForNoElements) {
  RunNccl(2, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    Collective what;
    what.kind = Kind::kAllreduce;
    Spent spent;
    EXPECT_FALSE((*made)->Run(what, seconds(20), spent));
  });
}

TEST(NcclMemory, IsZeroedAlignedAndFreedOnce) {
  for (const char* variant : {"fake_nccl", "fake_nccl_old"}) {
    RunNccl(2, FakeEnvironment(variant), [](NcclRank& self) {
      auto made = self.Make();
      ASSERT_TRUE(made.ok()) << made.error().message;
      const Driver driver(self.rank);
      auto memory = (*made)->Allocate(10000);
      ASSERT_TRUE(memory.ok()) << memory.error().message;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(*memory) % 4096, 0u);
      EXPECT_TRUE((*made)->OnGpu(*memory));
      EXPECT_FALSE((*made)->OnGpu(&driver));
      std::vector<char> bytes(10000, 'x');
      driver.Get(bytes.data(), *memory, bytes.size());
      EXPECT_EQ(bytes, std::vector<char>(10000, 0));
      EXPECT_FALSE((*made)->Free(*memory));
      EXPECT_TRUE((*made)->Free(*memory));
      EXPECT_EQ((*made)->Allocate(SIZE_MAX - 5).error().code, DTRAIN_ERROR_RESOURCES);
      EXPECT_EQ((*made)->Allocate(size_t{1} << 40).error().code, DTRAIN_ERROR_RESOURCES);
      // Goes with the communicator.
      EXPECT_TRUE((*made)->Allocate(1).ok());
    });
  }
}

TEST(NcclCommunicator, CanBeMadeTenTimesWithoutLeavingThreadsOrDescriptors) {
  RunNccl(2, FakeEnvironment(), [](NcclRank& self) {
    const auto count = [](const char* dir) {
      return std::distance(std::filesystem::directory_iterator(dir), {});
    };
    std::ptrdiff_t threads = 0, descriptors = 0;
    for (int i = 0; i < 10; ++i) {
      {
        auto made = self.Make();
        ASSERT_TRUE(made.ok()) << made.error().message;
        int value = self.rank;
        Collective what;
        what.kind = Kind::kAllreduce;
        what.input = what.output = &value;
        what.count = 1;
        Spent spent;
        ASSERT_FALSE((*made)->Run(what, seconds(20), spent));
        EXPECT_EQ(value, 1);
      }
      if (i == 0) {
        threads = count("/proc/self/task");
        descriptors = count("/proc/self/fd");
      }
    }
    // Rank 0 of the fake keeps a memory file per unique id, as NCCL keeps its root.
    EXPECT_LE(count("/proc/self/fd"), descriptors + (self.rank == 0 ? 9 : 0));
    // A detached thread may need a moment to be gone.
    const auto end = NcclRank::In(10);
    while (count("/proc/self/task") > threads && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    EXPECT_LE(count("/proc/self/task"), threads);
  });
}

}  // namespace
}  // namespace dtrain::runtime
