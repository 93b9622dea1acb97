// SPDX-License-Identifier: Apache-2.0
// Ranks that are launchers themselves.
#include "launcher/job/nested.h"

#include "absl/strings/str_split.h"
#include "job_fixture.h"

namespace dtrain::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::Program ProgramOfLine(const std::string& line) {
  v1::Program program;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(line, ' '))) {
    program.add_argv(word);
  }
  return program;
}

std::string NameIn(const std::string& line) {
  const auto nested = NestedIn(ProgramOfLine(line));
  return !nested ? "" : nested->meets ? nested->name + " that meets" : nested->name;
}

TEST(NestedInTest, KnowsLaunchersByTheirCommandLines) {
  struct Row {
    const char* line;
    const char* name;
  };
  for (const Row& row : std::vector<Row>{
           {"torchrun --nproc-per-node 8 train.py", "torchrun that meets"},
           {"/opt/venv/bin/torchrun --nproc_per_node=8 train.py", "torchrun that meets"},
           {"python3 -m torch.distributed.run --nproc_per_node 2 a.py", "torchrun that meets"},
           {"/usr/bin/python3.11 -u -m torch.distributed.launch a.py", "torchrun that meets"},
           {"python /opt/venv/bin/torchrun train.py", "torchrun that meets"},
           {"torchrun --standalone train.py", "torchrun"},
           {"torchrun --nnodes=1 train.py", "torchrun"},
           {"torchrun --nnodes 2 --node_rank 1 train.py", ""},
           {"torchrun --nnodes 2 --rdzv-endpoint=a:1 train.py", ""},
           {"torchrun train.py --node-rank 1", "torchrun that meets"},  // the script's
           {"accelerate launch train.py", ""},
           {"accelerate launch --num_processes 8 train.py", "accelerate launch"},
           {"accelerate launch --multi_gpu --machine_rank 1 train.py", ""},
           {"accelerate config", ""},
           {"fabric run --devices 2 train.py", "fabric run"},
           {"fabric run --num-nodes 2 --node_rank 1 train.py", ""},
           {"fabric consolidate a", ""},
           {"mpirun -np 4 ./a", "mpirun"},
           {"mpiexec.hydra -n 4 ./a", "mpiexec.hydra"},
           {"horovodrun -np 2 python a.py", "horovodrun"},
           {"deepspeed train.py", "deepspeed"},
           {"python3 train.py", ""},
           {"python3 -c print() torchrun", ""},
           {"python3", ""},
           {"python3 -m", ""},
           {"echo torchrun", ""},
       }) {
    EXPECT_EQ(NameIn(row.line), row.name) << row.line;
  }
  EXPECT_FALSE(NestedIn(v1::Program()));
}

class NestedTest : public JobFixture {
 protected:
  void Run(const std::string& line, size_t nodes, uint32_t slots) {
    *options_.part.add_programs() = ProgramOfLine(line);
    options_.part.add_contracts(v1::CONTRACT_TORCH);
    Make(nodes, slots);
    RunUntil(State::kRunning);
  }
  std::vector<int> Contracts(uint32_t node) {
    for (const v1::JobRequest& request : JobSentTo(node)) {
      if (!request.has_start()) continue;
      return {request.start().contracts().begin(), request.start().contracts().end()};
    }
    return {};
  }
};

TEST_F(NestedTest, OneTorchrunOnEachNodeIsOneJob) {
  Run("torchrun --nproc-per-node 8 train.py", 2, 1);
  EXPECT_THAT(Contracts(1), ElementsAre(v1::CONTRACT_TORCH, v1::CONTRACT_TORCHRUN_AGENT));
  EXPECT_THAT(Warnings(), ElementsAre());
}

TEST_F(NestedTest, OthersAreNotAndTheUserIsTold) {
  Run("torchrun --nproc-per-node 8 train.py", 2, 2);
  EXPECT_THAT(Contracts(1), ElementsAre(v1::CONTRACT_TORCH));
  EXPECT_THAT(
      Warnings(),
      ElementsAre("torchrun starts ranks of its own, and each of the job's 4 ranks runs it: "
                  "they will not be one job. For one job, use `dtrain torchrun ...` with "
                  "the same arguments, or one torchrun on each node (--ppn 1)"));
}

TEST_F(NestedTest, AnMpirunOnEachNodeIsNotOneJob) {
  Run("mpirun -np 4 ./a", 2, 1);
  EXPECT_THAT(Warnings(),
              ElementsAre(HasSubstr("use `dtrain mpirun ...` with the same arguments")));
}

TEST_F(NestedTest, OneRankMayRunWhatItLikes) {
  Run("mpirun -np 4 ./a", 1, 1);
  EXPECT_THAT(Warnings(), ElementsAre());
}

TEST_F(NestedTest, WithoutPyTorchsVariablesTorchrunsDoNotMeet) {
  options_.part.add_contracts(v1::CONTRACT_MPI);
  *options_.part.add_programs() = ProgramOfLine("torchrun train.py");
  Make(2, 1);
  RunUntil(State::kRunning);
  EXPECT_THAT(Contracts(0), ElementsAre(v1::CONTRACT_MPI));
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("each of the job's 2 ranks runs it")));
}

}  // namespace
}  // namespace dtrain::job
