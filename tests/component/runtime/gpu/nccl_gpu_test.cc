// SPDX-License-Identifier: Apache-2.0
// The NCCL backend on a real GPU with the real NCCL. Label `gpu`: skipped where there is none.
#include <numeric>
#include <string>
#include <vector>

#include "tests/component/runtime/nccl_ranks.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;
using std::chrono::seconds;

// CUDA does not survive a fork: whether there is a GPU is for a child to find out.
std::string WhyNot() {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    std::string why;
    if (!NcclUsable(why) && write(pipe_ends[1], why.data(), why.size()) < 0) _exit(1);
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string why;
  char buffer[512];
  for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof(buffer))) > 0;) {
    why.append(buffer, static_cast<size_t>(n));
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return why;
}

#define SKIP_WITHOUT_GPU()          \
  const std::string why = WhyNot(); \
  if (!why.empty()) GTEST_SKIP() << why

void CheckAll(NcclRank& self) {
  auto made = self.Make();
  ASSERT_TRUE(made.ok()) << made.error().message;
  std::printf("rank %d: %s\n", self.rank, (*made)->Description().c_str());
  const Driver driver(0);
  const abi::CuStream stream = driver.NewStream();
  const auto size = static_cast<size_t>(self.size);
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    GpuBuffer input(**made, count * size * sizeof(float));
    GpuBuffer output(**made, count * size * sizeof(float));
    std::vector<float> values(count * size);
    std::iota(values.begin(), values.end(), 0.0f);
    for (float& value : values) value = static_cast<float>(static_cast<int>(value) % 100);
    driver.Put(input.get(), values.data(), values.size() * sizeof(float), stream);
    Spent spent;
    for (const Kind kind : {Kind::kAllreduce, Kind::kAllgather, Kind::kReduceScatter,
                            Kind::kAlltoall, Kind::kReduce}) {
      Collective what;
      what.kind = kind;
      what.type = DTRAIN_FLOAT32;
      what.input = input.get();
      what.output = output.get();
      what.count = count;
      what.stream = stream;
      MaybeError error = (*made)->Run(what, seconds(60), spent);
      ASSERT_FALSE(error) << error->message;
      error = (*made)->Finish();
      ASSERT_FALSE(error) << error->message;
      std::vector<float> result(count);
      driver.Get(result.data(), output.get(), count * sizeof(float), stream);
      const auto me = static_cast<size_t>(self.rank);
      for (size_t i = 0; i < count; ++i) {
        float expected = values[i];
        if (kind == Kind::kAllreduce) expected *= static_cast<float>(size);
        if (kind == Kind::kReduceScatter)
          expected = values[me * count + i] * static_cast<float>(size);
        if (kind == Kind::kAlltoall) expected = values[me * count + i];
        if (kind == Kind::kReduce && self.rank != 0) continue;
        if (kind == Kind::kReduce) expected *= static_cast<float>(size);
        ASSERT_EQ(result[i], expected) << Describe(what) << " at " << i;
      }
    }
    // A buffer of the host, in place.
    std::vector<float> host = values;
    Collective what;
    what.kind = Kind::kAllreduce;
    what.type = DTRAIN_FLOAT32;
    what.op = DTRAIN_AVG;
    what.input = what.output = host.data();
    what.count = host.size();
    const MaybeError error = (*made)->Run(what, seconds(60), spent);
    ASSERT_FALSE(error) << error->message;
    for (size_t i = 0; i < host.size(); ++i) ASSERT_FLOAT_EQ(host[i], values[i]);
  }
  Spent spent;
  EXPECT_FALSE((*made)->Run({}, seconds(60), spent));
}

TEST(NcclGpu, OneRankRunsEveryCollective) {
  SKIP_WITHOUT_GPU();
  RunNccl(1, {}, CheckAll);
}

TEST(NcclGpu, SeveralRanksShareOneGpuWhenThatWasAskedFor) {
  SKIP_WITHOUT_GPU();
  RunNccl(2, {{"DTRAIN_SHARE_GPU", "1"}, {"DTRAIN_DEVICE", "0"}}, CheckAll);
}

TEST(NcclGpu, OneGpuForTwoRanksIsRefused) {
  SKIP_WITHOUT_GPU();
  RunNccl(2, {{"DTRAIN_DEVICE", "0"}}, [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.error().message.find("rank 0 and rank 1 would both use"), std::string::npos);
  });
}

TEST(NcclGpu, ARankThatDiesBreaksTheOthersAtOnce) {
  SKIP_WITHOUT_GPU();
  RunNccl(2, {{"DTRAIN_SHARE_GPU", "1"}, {"DTRAIN_DEVICE", "0"}}, [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_TRUE(made.ok()) << made.error().message;
    if (self.rank == 1) _exit(0);
    Spent spent;
    const MaybeError error = (*made)->Run({}, seconds(60), spent);
    ASSERT_TRUE(error);
    EXPECT_NE(error->message.find("lost the connection to rank 1"), std::string::npos)
        << error->message;
  });
}

// Needs the real NCCL but no GPU: what we look up must be in it.
TEST(NcclGpu, TheRealNcclHasEveryFunction) {
  const char* file = std::getenv("DTRAIN_TEST_REAL_NCCL");
  if (file == nullptr) GTEST_SKIP() << "DTRAIN_TEST_REAL_NCCL names no libnccl.so.2";
  auto environment = FakeEnvironment();
  environment["DTRAIN_NCCL_LIBRARY"] = file;
  RunNccl(1, environment, [](NcclRank&) {
    std::string why;
    EXPECT_TRUE(NcclUsable(why)) << why;
  });
}

}  // namespace
}  // namespace dtrain::runtime
