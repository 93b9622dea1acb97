// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdlib.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/ranks.h"
#include "tests/support/paths.h"

// The real program under the real launcher of MPICH.
namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int end = 0;  // exit code, or minus the signal
  std::string out;
  std::string err;
};

// Runs argv in a process group of its own, which is killed at the deadline.
Outcome RunProgram(const std::vector<std::string>& argv) {
  int out[2];
  int err[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    std::vector<char*> args;
    for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
    args.push_back(nullptr);
    execvp(args[0], args.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  Outcome outcome;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  pollfd entries[] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      ADD_FAILURE() << argv[0] << " was still running at the deadline";
      kill(-pid, SIGKILL);
      break;
    }
    poll(entries, 2, static_cast<int>(left.count()));
    for (pollfd& entry : entries) {
      if (entry.fd < 0 || entry.revents == 0) continue;
      char buffer[4096];
      const ssize_t n = read(entry.fd, buffer, sizeof(buffer));
      std::string& text = &entry == &entries[0] ? outcome.out : outcome.err;
      if (n > 0) text.append(buffer, static_cast<size_t>(n));
      if (n <= 0) entry.fd = -1;
    }
  }
  int status = 0;
  waitpid(pid, &status, 0);
  close(out[0]);
  close(err[0]);
  outcome.end = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

std::vector<std::string> Allreduce(int ranks, std::vector<std::string> flags) {
  std::vector<std::string> argv = {"mpiexec.hydra", "-n", std::to_string(ranks),
                                   ProgramPath("dtrain-allreduce")};
  argv.insert(argv.end(), flags.begin(), flags.end());
  return argv;
}

class HydraTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, HydraTest, testing::Values(1, 2, 3, 4));

TEST_P(HydraTest, AllreduceIsRightAndPrintsOneRowPerSize) {
  const Outcome run =
      RunProgram(Allreduce(GetParam(), {"--min-bytes", "4", "--max-bytes", "1M", "--factor", "8"}));
  EXPECT_EQ(run.end, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(run.out, HasSubstr("# every element is right on every rank\n"));
  std::istringstream lines(run.out);
  std::vector<size_t> sizes;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream row(line);
    size_t size = 0, count = 0, wrong = 1;
    std::string type, op;
    double time = 0, algorithm = 0, bus = 0;
    row >> size >> count >> type >> op >> time >> algorithm >> bus >> wrong;
    EXPECT_TRUE(row) << line;
    EXPECT_EQ(size, count * 4);
    EXPECT_EQ(type, "float32");
    EXPECT_EQ(op, "sum");
    EXPECT_GT(time, 0);
    EXPECT_EQ(wrong, 0u) << line;
    sizes.push_back(size);
  }
  EXPECT_EQ(sizes, (std::vector<size_t>{4, 32, 256, 2048, 16384, 131072, 1048576}));
}

TEST(AllreduceProgramTest, EveryTypeAndOperationIsRight) {
  for (const std::string type : {"int32", "int64", "float16", "bfloat16", "float32", "float64"}) {
    for (const std::string op : {"sum", "min", "max", "prod", "avg"}) {
      if (op == "avg" && type[0] == 'i') continue;
      const Outcome run =
          RunProgram(Allreduce(3, {"--max-bytes=64K", "--factor=97", "--iterations=2", "--warmup=1",
                                   "--type=" + type, "--op=" + op}));
      EXPECT_EQ(run.end, 0) << type << " " << op << ": " << run.err;
      EXPECT_THAT(run.out, HasSubstr("every element is right"));
    }
  }
}

TEST(AllreduceProgramTest, EveryCollectiveIsRight) {
  for (const std::string collective :
       {"allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "reduce"}) {
    for (const std::string type : {"int64", "bfloat16"}) {
      const Outcome run = RunProgram(
          Allreduce(3, {"--collective", collective, "--sizes=2,1002,64K", "--type", type,
                        "--iterations=2", "--alloc", type == "int64" ? "shared" : "plain"}));
      EXPECT_EQ(run.end, 0) << collective << " " << type << ": " << run.err;
      EXPECT_THAT(run.out, HasSubstr("every element is right"));
    }
  }
}

TEST(AllreduceProgramTest, InPlaceIsRight) {
  const Outcome run = RunProgram(Allreduce(2, {"--in-place", "--sizes=4,100000", "--type=int32"}));
  EXPECT_EQ(run.end, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("every element is right"));
}

TEST(AllreduceProgramTest, PipelinedIsRightInAndOutOfPlace) {
  for (const std::string collective :
       {"allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "reduce"}) {
    const Outcome run =
        RunProgram(Allreduce(3, {"--pipelined", "--collective", collective, "--sizes=2,1002,64K",
                                 "--type=bfloat16", "--iterations=4", "--warmup=1"}));
    EXPECT_EQ(run.end, 0) << collective << ": " << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("every element is right"), HasSubstr("in host memory"),
                               HasSubstr("# pipelined: ")));
  }
}

TEST(AllreduceProgramTest, OnGpusItIsPipelinedUnlessToldOtherwise) {
  std::vector<std::string> argv = {"mpiexec.hydra",
                                   "-n",
                                   "2",
                                   "-env",
                                   "DTRAIN_CUDA_LIBRARY",
                                   LibraryPath("fake_cuda/libcuda.so.1"),
                                   "-env",
                                   "DTRAIN_NCCL_LIBRARY",
                                   LibraryPath("fake_nccl/libnccl.so.2"),
                                   ProgramPath("dtrain-allreduce"),
                                   "--json",
                                   "--sizes=64K",
                                   "--iterations=3"};
  const Outcome run = RunProgram(argv);
  EXPECT_EQ(run.end, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("\"in_place_wrong\": 0"),
                             HasSubstr("\"manner\": \"pipelined\", \"memory\": \"device\"")));
  argv.push_back("--pipelined=off");
  const Outcome single = RunProgram(argv);
  EXPECT_EQ(single.end, 0) << single.err;
  EXPECT_THAT(single.out, AllOf(HasSubstr("\"manner\": \"latency\", \"memory\": \"device\""),
                                Not(HasSubstr("in_place"))));
}

TEST(AllreduceProgramTest, JsonIsAnArrayWithALineForEachSize) {
  const Outcome run = RunProgram(Allreduce(2, {"--json", "--sizes", "4,1K", "--iterations=2"}));
  EXPECT_EQ(run.end, 0) << run.err;
  EXPECT_THAT(run.out, testing::MatchesRegex(
                           "\\[\n \\{\"bytes\": 4, \"time_us\": [^,]+, \"algbw_gbs\": [^,]+, "
                           "\"busbw_gbs\": [^,]+, \"wrong\": 0, \"manner\": "
                           "\"latency\", \"memory\": \"plain\"\\}\n"
                           ",\\{\"bytes\": 1024, .*\\}\n\\]\n"));
}

TEST(AllreduceProgramTest, EveryPairOfRanksIsMeasuredBothWays) {
  const Outcome run =
      RunProgram(Allreduce(3, {"--collective=p2p", "--json", "--sizes=64K", "--iterations=2"}));
  EXPECT_EQ(run.end, 0) << run.err;
  for (const char* row :
       {"\"from\": 0, \"to\": 1,", "\"from\": 0, \"to\": 2,", "\"from\": 1, \"to\": 0,",
        "\"from\": 1, \"to\": 2,", "\"from\": 2, \"to\": 0,", "\"from\": 2, \"to\": 1,"}) {
    EXPECT_THAT(run.out, HasSubstr(row));
  }
  EXPECT_THAT(run.out, Not(HasSubstr("\"latency_us\": 0.000")));
  EXPECT_THAT(run.out, Not(HasSubstr("\"bandwidth_gbs\": 0}")));
}

// Canary: the check must be able to fail.
TEST(AllreduceProgramTest, WrongElementOnOneRankFailsTheRun) {
  // A sanitizer's library wants to be the first one, which is not so with a preloaded one.
  setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 0);
  // The loader separates the names of several at spaces and colons.
  std::string folder = testing::TempDir() + "wrong-allreduce-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string library = folder + "/wrong.so";
  std::filesystem::create_symlink(LibraryPath("runtime_wrong_allreduce.so"), library);
  const Outcome run =
      RunProgram({"mpiexec.hydra", "-n", "3", "-env", "LD_PRELOAD", library,
                  ProgramPath("dtrain-allreduce"), "--max-bytes", "4K", "--factor", "32"});
  std::filesystem::remove_all(folder);
  EXPECT_NE(run.end, 0);
  EXPECT_THAT(run.err,
              HasSubstr("rank 1: 1 of 1024 elements are wrong; the first one, at index 42"));
  EXPECT_THAT(run.err, HasSubstr("elements were wrong, see above"));
  EXPECT_THAT(run.out, Not(HasSubstr("every element is right")));
}

TEST(AllreduceProgramTest, RunsWithoutALauncher) {
  const Outcome run = RunProgram({ProgramPath("dtrain-allreduce"), "--max-bytes", "1K"});
  EXPECT_EQ(run.end, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("1 rank,"));
}

TEST(AllreduceProgramTest, RefusesAWrongCommandLine) {
  const std::vector<std::vector<std::string>> wrong = {{"--bytes", "4"},
                                                       {"--min-bytes"},
                                                       {"--min-bytes", "0"},
                                                       {"--max-bytes", "4T"},
                                                       {"--factor", "1"},
                                                       {"--type", "float8"},
                                                       {"--sizes", "4,,8"},
                                                       {"--sizes", "4,"},
                                                       {"--collective", "gather"},
                                                       {"--alloc", "gpu"},
                                                       {"--in-place", "--collective=reduce"},
                                                       {"--op=avg", "--type=int32"},
                                                       {"--min-bytes", "2M", "--max-bytes", "1M"},
                                                       {"--iterations", "x"},
                                                       {"--check", "maybe"},
                                                       {"--pipelined=maybe"},
                                                       {"--pipelined", "--in-place"}};
  for (const auto& flags : wrong) {
    std::vector<std::string> argv = {ProgramPath("dtrain-allreduce")};
    argv.insert(argv.end(), flags.begin(), flags.end());
    const Outcome run = RunProgram(argv);
    EXPECT_EQ(run.end, 2) << flags[0];
    EXPECT_THAT(run.err, HasSubstr("see dtrain-allreduce --help")) << flags[0];
  }
}

TEST(AllreduceProgramTest, SizesThatDoNotFitIntoMemoryAreRefusedOrLeftOut) {
  const Outcome refused = RunProgram({ProgramPath("dtrain-allreduce"), "--sizes", "4,900G"});
  EXPECT_EQ(refused.end, 1);
  EXPECT_THAT(refused.err, HasSubstr("no memory for 966367641600 bytes"));
  EXPECT_THAT(refused.err, HasSubstr("use smaller --sizes"));
  const Outcome fit =
      RunProgram({ProgramPath("dtrain-allreduce"), "--sizes", "4,900G", "--json", "--fit"});
  EXPECT_EQ(fit.end, 0) << fit.err;
  EXPECT_THAT(fit.err, HasSubstr("left out"));
  EXPECT_THAT(fit.out, AllOf(HasSubstr("\"bytes\": 4,"), Not(HasSubstr("966367641600"))));
}

TEST(AllreduceProgramTest, HelpNamesEveryOption) {
  const Outcome run = RunProgram({ProgramPath("dtrain-allreduce"), "--help"});
  EXPECT_EQ(run.end, 0);
  for (const char* flag : {"--min-bytes", "--max-bytes", "--factor", "--iterations", "--warmup",
                           "--type", "--op", "--check", "--sizes", "--collective", "--alloc",
                           "--in-place", "--json", "--fit", "--pipelined"}) {
    EXPECT_THAT(run.out, HasSubstr(flag));
  }
}

TEST(LibraryTest, ShowsNothingButItsOwnFunctions) {
  const Outcome run = RunProgram(
      {"nm", "-D", "--defined-only", "--format=just-symbols", LibraryPath("libdtrain.so")});
  EXPECT_EQ(run.end, 0) << run.err;
  std::istringstream lines(run.out);
  for (std::string symbol; std::getline(lines, symbol);) {
    EXPECT_TRUE(symbol.starts_with("dtrain_") || symbol.starts_with("DTRAIN_0")) << symbol;
  }
}

}  // namespace
}  // namespace dtrain::runtime
