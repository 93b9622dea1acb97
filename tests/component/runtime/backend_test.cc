// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dtrain/dtrain.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/nccl_ranks.h"
#include "tests/component/runtime/ranks.h"

// The choice between NCCL and the CPU, through the C functions; NCCL and CUDA are the fakes.
namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;

RanksOptions With(std::map<std::string, std::string> environment,
                  const std::map<std::string, std::string>& more = {}) {
  RanksOptions options;
  options.environment = std::move(environment);
  for (const auto& [name, value] : more) options.environment[name] = value;
  options.environment["DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"] = "40";
  return options;
}

std::map<std::string, std::string> NoGpu() {
  return {{"DTRAIN_CUDA_LIBRARY", "/nonexistent/libcuda.so.1"}};
}

void UseHostBuffers(int ranks) {
  std::vector<float> data(1000, 1.0f), output(1000 * static_cast<size_t>(ranks));
  ASSERT_EQ(dtrain_allreduce(data.data(), data.data(), 1000, DTRAIN_FLOAT32, DTRAIN_SUM), DTRAIN_OK)
      << dtrain_last_error();
  EXPECT_EQ(data[999], static_cast<float>(ranks));
  ASSERT_EQ(dtrain_allgather(data.data(), output.data(), 1000, DTRAIN_FLOAT32), DTRAIN_OK);
  EXPECT_EQ(output.back(), static_cast<float>(ranks));
  std::vector<dtrain_handle> handles(20);
  for (size_t i = 0; i < handles.size(); ++i) {
    data[i] = 1;
    ASSERT_EQ(dtrain_allreduce_async(&data[i], &data[i], 1, DTRAIN_FLOAT32, DTRAIN_SUM, nullptr,
                                     &handles[i]),
              DTRAIN_OK);
  }
  for (const dtrain_handle handle : handles) {
    ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
  }
  for (size_t i = 0; i < handles.size(); ++i) EXPECT_EQ(data[i], static_cast<float>(ranks));
  dtrain_group group = nullptr;
  ASSERT_EQ(dtrain_group_create(dtrain_rank() % 2, 0, &group), DTRAIN_OK) << dtrain_last_error();
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.group = group;
  int32_t one = 1;
  dtrain_handle handle = 0;
  ASSERT_EQ(dtrain_allreduce_async(&one, &one, 1, DTRAIN_INT32, DTRAIN_SUM, &options, &handle),
            DTRAIN_OK);
  ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK) << dtrain_last_error();
  EXPECT_EQ(one, dtrain_group_size(group));
  ASSERT_EQ(dtrain_barrier(), DTRAIN_OK);
}

// Memory of the host is as fast as in a job on the CPU: what the ranks of a node share.
void ExpectSharedWithAChild(char* memory) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    *memory = 5;
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(*memory, 5);
  *memory = 0;
}

class NcclJobTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclJobTest, testing::Values(1, 2, 3));

TEST_P(NcclJobTest, IsMadeWhereEveryRankHasAGpu) {
  const int ranks = GetParam();
  const auto ends = Ranks::Run(
      ranks,
      [&](int) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        EXPECT_STREQ(dtrain_backend(), "nccl");
        UseHostBuffers(ranks);
        void* memory = nullptr;
        ASSERT_EQ(dtrain_alloc_device(1 << 16, &memory), DTRAIN_OK) << dtrain_last_error();
        ASSERT_EQ(dtrain_allreduce(memory, memory, 1000, DTRAIN_FLOAT32, DTRAIN_SUM), DTRAIN_OK);
        EXPECT_EQ(dtrain_free(memory), DTRAIN_OK);
        ASSERT_EQ(dtrain_alloc(1 << 16, &memory), DTRAIN_OK) << dtrain_last_error();
        if (ranks > 1) ExpectSharedWithAChild(static_cast<char*>(memory));
        static_cast<float*>(memory)[7] = 1;
        ASSERT_EQ(dtrain_allreduce(memory, memory, 1000, DTRAIN_FLOAT32, DTRAIN_SUM), DTRAIN_OK);
        EXPECT_EQ(static_cast<float*>(memory)[7], static_cast<float>(ranks));
        EXPECT_EQ(dtrain_free(memory), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
      },
      With(FakeEnvironment()));
  EXPECT_EQ(ends, std::vector<int>(static_cast<size_t>(ranks), 0));
}

TEST_P(NcclJobTest, MayBeLeftAndJoinedAgain) {
  const int ranks = GetParam();
  RanksOptions options = With(FakeEnvironment());
  options.rejoin = true;
  const auto ends = Ranks::Run(
      ranks,
      [&](int) {
        for (int cycle = 0; cycle < 3; ++cycle) {
          ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
          UseHostBuffers(ranks);
          ASSERT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
        }
      },
      options);
  EXPECT_EQ(ends, std::vector<int>(static_cast<size_t>(ranks), 0));
}

TEST(BackendChoiceTest, CpuCanBeAskedForWhereThereAreGpus) {
  const auto ends = Ranks::Run(
      2,
      [](int) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        EXPECT_STREQ(dtrain_backend(), "cpu");
        UseHostBuffers(2);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      With(FakeEnvironment(), {{"DTRAIN_BACKEND", "cpu"}}));
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

// N9: never a silent fall to CPUs.
TEST(BackendChoiceTest, OneRankWithoutAGpuIsNamedWithItsReason) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        if (rank == 1) setenv("DTRAIN_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
        EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_DEVICE);
        EXPECT_THAT(dtrain_last_error(),
                    AllOf(HasSubstr("rank 1 cannot use NCCL, but rank 0 can"),
                          HasSubstr("/nonexistent"), HasSubstr("DTRAIN_BACKEND=cpu")));
      },
      With(FakeEnvironment()));
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

TEST(BackendChoiceTest, NcclThatWasAskedForAndCannotBeIsRefusedWithTheReason) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        if (rank == 1) setenv("DTRAIN_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
        EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_DEVICE);
        EXPECT_THAT(dtrain_last_error(),
                    AllOf(HasSubstr("DTRAIN_BACKEND=nccl is set"),
                          HasSubstr("rank 1 cannot use NCCL"), HasSubstr("/nonexistent")));
      },
      With(FakeEnvironment(), {{"DTRAIN_BACKEND", "nccl"}}));
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

TEST(BackendChoiceTest, NcclIsNotLookedForWhenTheCpuIsAskedFor) {
  const auto ends = Ranks::Run(
      1,
      [](int) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        std::ifstream maps("/proc/self/maps");
        const std::string text{std::istreambuf_iterator<char>(maps), {}};
        EXPECT_EQ(text.find("libcuda"), std::string::npos);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      With(FakeEnvironment(), {{"DTRAIN_BACKEND", "cpu"}}));
  EXPECT_EQ(ends, std::vector<int>{0});
}

TEST(BackendChoiceTest, JobWithoutGpusHasNoMemoryOfADevice) {
  const auto ends = Ranks::Run(
      2,
      [](int) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        EXPECT_STREQ(dtrain_backend(), "cpu");
        void* memory = nullptr;
        EXPECT_EQ(dtrain_alloc_device(1, &memory), DTRAIN_ERROR_UNSUPPORTED);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      With(NoGpu()));
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace dtrain::runtime
