// SPDX-License-Identifier: Apache-2.0
// Offsets beyond what 32 bits hold, signed or not. The sanitizers' copies of that much memory do
// not fit into a small machine.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <vector>

#include "gtest/gtest.h"
#include "tests/component/runtime/cpu_ranks.h"

namespace dtrain::runtime {
namespace {

// Of float16, the smallest type: 10 bytes more than 2 GiB.
constexpr size_t kCount = (size_t{1} << 30) + 5;
// Both ranks' outputs, and what else they need.
constexpr size_t kNeeded = size_t{5} << 30;
constexpr std::chrono::seconds kVeryLong{100};

size_t AvailableBytes() {
  uint64_t kib = 0;
  FILE* file = std::fopen("/proc/meminfo", "re");
  char line[256];
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1) break;
  }
  std::fclose(file);
  return kib << 10;
}

// Zeroes that take no memory until they are written.
class HugeBuffer {
 public:
  HugeBuffer() {
    void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return;
    data_ = static_cast<uint16_t*>(at);
    madvise(data_, kBytes, MADV_HUGEPAGE);  // half a million faults take long
  }
  ~HugeBuffer() { munmap(data_, kBytes); }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  uint16_t* data() { return data_; }

 private:
  static constexpr size_t kBytes = (kCount + 16) * 2;
  uint16_t* data_ = nullptr;
};

// Whole numbers from 1 to 15 as float16.
uint16_t Half(int value) {
  int exponent = 0;
  while (value >> (exponent + 1) != 0) ++exponent;
  return static_cast<uint16_t>((exponent + 15) << 10 | (value << (10 - exponent) & 0x3ff));
}

// Where something other than zero is: the ends, and around all marks of 32-bit numbers.
std::vector<size_t> Places(size_t count) {
  std::vector<size_t> places = {0, 1, 12345, count - 2, count - 1};
  for (const size_t bytes : {size_t{1} << 30, size_t{1} << 31}) {
    for (size_t at = bytes / 2 - 2; at < bytes / 2 + 2; ++at) {
      if (at < count) places.push_back(at);
    }
  }
  return places;
}

int ValueAt(int rank, size_t place) { return 1 + static_cast<int>((place + 3 * rank) % 6); }

void Fill(uint16_t* data, size_t count, int rank) {
  for (const size_t at : Places(count)) data[at] = Half(ValueAt(rank, at));
}

void Run(CpuCommunicator& communicator, Collective::Kind kind, const void* input, void* output,
         size_t count) {
  static uint64_t number = 0;
  Collective what;
  what.kind = kind;
  what.number = number++;
  what.input = input;
  what.output = output;
  what.count = count;
  what.type = DTRAIN_FLOAT16;
  what.root = 1;
  Spent spent;
  const MaybeError error = communicator.Run(what, kVeryLong, spent);
  ASSERT_FALSE(error) << Describe(what) << ": " << error->message;
}

void Allreduce(CpuCommunicator& communicator, uint16_t* input, uint16_t* output) {
  Fill(input, kCount, communicator.rank());
  Run(communicator, Collective::Kind::kAllreduce, input, output, kCount);
  for (const size_t at : Places(kCount)) {
    EXPECT_EQ(output[at], Half(ValueAt(0, at) + ValueAt(1, at))) << at;
  }
  EXPECT_EQ(output[kCount / 2 + 77], 0);
  EXPECT_EQ(output[kCount], 0) << "behind the end";
}

void Broadcast(CpuCommunicator& communicator, uint16_t* buffer) {
  if (communicator.rank() == 1) Fill(buffer, kCount, 5);
  Run(communicator, Collective::Kind::kBroadcast, nullptr, buffer, kCount);
  for (const size_t at : Places(kCount)) EXPECT_EQ(buffer[at], Half(ValueAt(5, at))) << at;
}

void Allgather(CpuCommunicator& communicator, uint16_t* input, uint16_t* output) {
  constexpr size_t kBlock = kCount / 2;
  Fill(input, kBlock, communicator.rank());
  Run(communicator, Collective::Kind::kAllgather, input, output, kBlock);
  for (int rank = 0; rank < 2; ++rank) {
    const uint16_t* block = output + static_cast<size_t>(rank) * kBlock;
    for (const size_t at : Places(kBlock)) EXPECT_EQ(block[at], Half(ValueAt(rank, at))) << at;
  }
}

class CpuHugeTest : public testing::TestWithParam<std::vector<int>> {};

TEST_P(CpuHugeTest, BuffersBeyondTwoGibibytesGiveTheRightResult) {
  if (AvailableBytes() < kNeeded) {
    GTEST_SKIP() << "needs " << (kNeeded >> 30) << " GiB of memory, available are "
                 << (AvailableBytes() >> 20) << " MiB";
  }
  CpuSetup setup = CpuSetup::Nodes(GetParam());
  const auto ends = RunCpuRanks(setup, [](CpuCommunicator& communicator) {
    HugeBuffer input, output;
    ASSERT_NE(input.data(), nullptr);
    ASSERT_NE(output.data(), nullptr);
    Allreduce(communicator, input.data(), output.data());
    if (testing::Test::HasFailure()) return;
    // One each: both take long, and neither does anything else on two nodes than the other.
    if (communicator.places().node_count() == 1) {
      Broadcast(communicator, output.data());
    } else {
      Allgather(communicator, input.data(), output.data());
    }
  });
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

INSTANTIATE_TEST_SUITE_P(Layouts, CpuHugeTest,
                         testing::Values(std::vector<int>{0, 0}, std::vector<int>{0, 1}),
                         [](const auto& info) {
                           return info.param[1] == 0 ? "OneNode" : "TwoNodes";
                         });

}  // namespace
}  // namespace dtrain::runtime

#endif
