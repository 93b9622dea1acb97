// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/cpu_ranks.h"
#include "tests/component/runtime/cpu_reference.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;

constexpr dtrain_type kTypes[] = {DTRAIN_INT32,   DTRAIN_INT64,   DTRAIN_FLOAT16, DTRAIN_BFLOAT16,
                                  DTRAIN_FLOAT32, DTRAIN_FLOAT64, DTRAIN_BYTE};
constexpr dtrain_op kOps[] = {DTRAIN_SUM, DTRAIN_AVG, DTRAIN_MIN, DTRAIN_MAX, DTRAIN_PROD};

bool IsInteger(dtrain_type type) { return type == DTRAIN_INT32 || type == DTRAIN_INT64; }
bool Reduces(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}
bool Exists(Kind kind, dtrain_type type, dtrain_op op) {
  if (!Reduces(kind)) return op == DTRAIN_SUM;
  return type != DTRAIN_BYTE && !(op == DTRAIN_AVG && IsInteger(type));
}

Collective Make(Kind kind, size_t count, dtrain_type type, dtrain_op op, int root) {
  Collective what;
  what.kind = kind;
  what.count = count;
  what.type = type;
  what.op = op;
  what.root = root;
  return what;
}

// All kinds, types and operations at small and odd sizes.
void RunSmallCases(CpuCommunicator& communicator) {
  uint64_t seed = 1;
  for (const Kind kind : AllKinds()) {
    for (const dtrain_type type : kTypes) {
      for (const dtrain_op op : kOps) {
        if (!Exists(kind, type, op)) continue;
        for (const size_t count : {0, 1, 3, 8, 129, 5001}) {
          const int root = static_cast<int>(seed % static_cast<uint64_t>(communicator.size()));
          Buffers buffers;
          buffers.in_place = seed % 3 == 0;
          buffers.offset = seed % 5;
          RunCase(communicator, Make(kind, count, type, op, root), buffers, seed++);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Sizes on both sides of every change of method.
void RunLargeCases(CpuCommunicator& communicator) {
  uint64_t seed = 1000;
  for (const Kind kind : AllKinds()) {
    for (const size_t count : {32768ul, 65537ul, 300001ul, 1500000ul}) {
      // Every rank makes up the inputs of all: that is what takes long, not the collective.
      if (count > 400000 && kind != Kind::kAllreduce) continue;
      if (count > (kind == Kind::kAllreduce ? 400000 : 40000) && communicator.size() > 4) continue;
      for (const bool in_place : {false, true}) {
        Buffers buffers;
        buffers.in_place = in_place;
        buffers.arena = seed % 2 == 0 && communicator.arena() != nullptr;
        buffers.offset = seed % 3;
        const int root = static_cast<int>(seed % static_cast<uint64_t>(communicator.size()));
        const dtrain_type type = seed % 4 == 3 ? DTRAIN_BFLOAT16 : DTRAIN_FLOAT32;
        RunCase(communicator, Make(kind, count, type, DTRAIN_SUM, root), buffers, seed++);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

void ExpectAllWell(const std::vector<int>& ends) {
  EXPECT_EQ(ends, std::vector<int>(ends.size(), 0));
}

class CpuCollectivesTest : public testing::TestWithParam<std::vector<int>> {};

TEST_P(CpuCollectivesTest, EveryKindTypeAndOperationGivesTheSerialResult) {
  ExpectAllWell(RunCpuRanks(CpuSetup::Nodes(GetParam()), RunSmallCases));
}

TEST_P(CpuCollectivesTest, LargeBuffersGiveTheSerialResult) {
  ExpectAllWell(RunCpuRanks(CpuSetup::Nodes(GetParam()), RunLargeCases));
}

TEST_P(CpuCollectivesTest, LargeBuffersGiveTheSerialResultWithoutReadingOthersMemory) {
  CpuSetup setup = CpuSetup::Nodes(GetParam());
  setup.direct_reads = false;
  ExpectAllWell(RunCpuRanks(setup, [](CpuCommunicator& communicator) {
    EXPECT_FALSE(communicator.direct());
    RunLargeCases(communicator);
  }));
}

std::string NameOf(const testing::TestParamInfo<std::vector<int>>& info) {
  std::string name = "Nodes";
  for (const int node : info.param) name += std::to_string(node);
  return name;
}

// Numbers of nodes, by rank.
INSTANTIATE_TEST_SUITE_P(Layouts, CpuCollectivesTest,
                         testing::Values(std::vector<int>{0}, std::vector<int>{0, 0},
                                         std::vector<int>{0, 0, 0},
                                         std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0},
                                         std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1},
                                         std::vector<int>{0, 1, 0, 1, 2},
                                         std::vector<int>{0, 1, 2, 3, 3, 2, 1, 1},
                                         // So many nodes greet each other in rounds.
                                         std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9}),
                         NameOf);

// The same seed gives the same sequence on every rank.
void RunAtRandom(CpuCommunicator& communicator, uint64_t seed, int rounds) {
  std::mt19937_64 random(seed);
  const auto kinds = AllKinds();
  for (int i = 0; i < rounds && !testing::Test::HasFailure(); ++i) {
    const Kind kind = kinds[random() % kinds.size()];
    dtrain_type type = kTypes[random() % 7];
    dtrain_op op = kOps[random() % 5];
    if (op == DTRAIN_AVG && IsInteger(type)) op = DTRAIN_SUM;
    if (type == DTRAIN_BYTE && Reduces(kind)) type = DTRAIN_FLOAT16;
    const size_t count = random() % (size_t{1} << (random() % 18));
    const int root = static_cast<int>(random() % static_cast<uint64_t>(communicator.size()));
    Buffers buffers;
    buffers.in_place = random() % 2 == 0;
    buffers.arena = random() % 4 == 0 && communicator.arena() != nullptr;
    buffers.offset = random() % 3;
    const uint64_t delay = random() % 8;
    if (delay == static_cast<uint64_t>(communicator.rank())) sched_yield();
    RunCase(communicator, Make(kind, count, type, op, root), buffers, random());
  }
}

TEST(CpuRandomTest, KindsInAnyOrderDoNotDisturbEachOther) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (const auto& nodes : {std::vector<int>{0, 0, 0, 0}, std::vector<int>{0, 1, 1, 0},
                            std::vector<int>{0, 1, 2, 2, 1}}) {
    ExpectAllWell(RunCpuRanks(CpuSetup::Nodes(nodes), [&](CpuCommunicator& communicator) {
      RunAtRandom(communicator, seed, 150);
    }));
  }
}

// A sum of floats depends on the order of the additions, and the order on nothing else.
std::vector<float> SumOfAwkwardFloats(CpuCommunicator& communicator, size_t count, bool late) {
  std::mt19937 random(static_cast<unsigned>(communicator.rank()));
  std::uniform_real_distribution<float> any(-1e6f, 1e6f);
  std::vector<float> data(count);
  for (float& value : data) value = any(random);
  if (late) {
    for (int i = 0; i < 1000; ++i) sched_yield();
  }
  Collective what = Make(Kind::kAllreduce, count, DTRAIN_FLOAT32, DTRAIN_SUM, 0);
  what.input = what.output = data.data();
  MustRun(communicator, what);
  return data;
}

TEST(CpuDeterminismTest, SameInputsGiveTheSameBitsWhoeverComesLate) {
  for (const auto& nodes :
       {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 0}, std::vector<int>{0, 1, 2, 2}}) {
    ExpectAllWell(RunCpuRanks(CpuSetup::Nodes(nodes), [&](CpuCommunicator& communicator) {
      for (const size_t count : {1000ul, 100000ul}) {
        const auto first = SumOfAwkwardFloats(communicator, count, false);
        for (int late = 0; late < communicator.size(); ++late) {
          const auto again = SumOfAwkwardFloats(communicator, count, communicator.rank() == late);
          EXPECT_EQ(std::memcmp(first.data(), again.data(), count * 4), 0);
        }
        // And the same on all ranks.
        std::vector<float> all(count * static_cast<size_t>(communicator.size()));
        Collective what = Make(Kind::kAllgather, count, DTRAIN_FLOAT32, DTRAIN_SUM, 0);
        what.input = first.data();
        what.output = all.data();
        MustRun(communicator, what);
        for (int r = 0; r < communicator.size(); ++r) {
          EXPECT_EQ(std::memcmp(&all[static_cast<size_t>(r) * count], first.data(), count * 4), 0);
        }
      }
    }));
  }
}

// Small ones travel with greetings, large ones in several chunks.
void AverageLargeHalves(CpuCommunicator& communicator) {
  constexpr uint16_t kLarge = 0x78e2;  // 40000; the largest is 65504
  const auto size = static_cast<size_t>(communicator.size());
  for (const Kind kind : {Kind::kAllreduce, Kind::kReduce, Kind::kReduceScatter}) {
    for (const size_t count : {100ul, 600000ul}) {
      const size_t blocks = kind == Kind::kReduceScatter ? size : 1;
      const std::vector<uint16_t> input(blocks * count, kLarge);
      std::vector<uint16_t> output(count);
      Collective what = Make(kind, count, DTRAIN_FLOAT16, DTRAIN_AVG, 1);
      what.input = input.data();
      what.output = output.data();
      MustRun(communicator, what);
      if (kind == Kind::kReduce && communicator.rank() != what.root) continue;
      EXPECT_TRUE(output == std::vector<uint16_t>(count, kLarge))
          << "rank " << communicator.rank() << ": " << Describe(what) << ": " << output[0];
    }
  }
}

// Also where a node has one rank only: all nodes divide alike.
TEST(CpuHalfTest, AnAverageFitsWhereTheSumOfANodeDoesNot) {
  for (const auto& nodes :
       {std::vector<int>{0, 0}, std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 1}}) {
    for (const bool direct : {true, false}) {
      CpuSetup setup = CpuSetup::Nodes(nodes);
      setup.direct_reads = direct;
      ExpectAllWell(RunCpuRanks(setup, AverageLargeHalves));
    }
  }
}

// Canary: these bodies can fail.
TEST(CpuCollectivesCanaryTest, WrongResultIsFound) {
  EXPECT_NONFATAL_FAILURE(
      {
        const auto ends = RunCpuRanks(
            CpuSetup::OneNode(2),
            [](CpuCommunicator& communicator) {
              const Collective what = Make(Kind::kAllreduce, 100, DTRAIN_FLOAT32, DTRAIN_SUM, 0);
              const Reference reference(what, communicator.rank(), 2,
                                        communicator.rank() == 0 ? 1 : 2);
              std::vector<float> data(100);
              reference.FillInput(communicator.rank(), reinterpret_cast<char*>(data.data()));
              Collective run = what;
              run.input = run.output = data.data();
              MustRun(communicator, run);
              if (communicator.rank() != 0) return;  // rank 1 gave what rank 0 does not expect
              if (!reference.Check(reinterpret_cast<char*>(data.data())).empty()) {
                _exit(Ranks::kExpectationFailed);
              }
            },
            false);
        (void)ends;
      },
      "see rank 0's output");
}

}  // namespace
}  // namespace dtrain::runtime
