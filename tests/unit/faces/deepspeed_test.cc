// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/faces/face.h"

namespace dtrain::faces {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DeepspeedTest : public ::testing::Test {
 public:
  DeepspeedTest() {
    surroundings_.environment = {"HOME=/home/me"};
    surroundings_.read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      const auto it = files_.find(path);
      if (it == files_.end()) return absl::NotFoundError(path);
      return it->second;
    };
  }
  absl::StatusOr<Translation> Translate(const std::string& line) {
    return kDeepspeed.translate(
        std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty())), surroundings_);
  }
  std::string Words(const std::string& line) {
    const auto translation = Translate(line);
    if (!translation.ok()) return std::string(translation.status().message());
    return absl::StrJoin(LaunchWords(*translation), " ");
  }

  cli::Surroundings surroundings_;
  std::map<std::string, std::string> files_;
};

TEST_F(DeepspeedTest, HostsAreThoseOfTheFileOrThisMachine) {
  files_["mine"] = "a slots=4\n";
  EXPECT_EQ(Words("--hostfile=mine --no_local_rank t.py --deepspeed --deepspeed_config c.json"),
            "launch --hostfile mine -- python3 -u t.py --deepspeed --deepspeed_config c.json");
  EXPECT_THAT(Words("--hostfile nowhere t.py"),
              HasSubstr("--hostfile: there is no file nowhere; without --hostfile all ranks run"));
  EXPECT_TRUE(Translate("t.py")->this_machine);
  files_["/job/hostfile"] = "a slots=4\n";
  EXPECT_EQ(Words("--num_nodes=2 --num_gpus 3 --no_local_rank t.py"),
            "launch --hostfile /job/hostfile --nnodes 2 --ppn 3 -- python3 -u t.py");
  EXPECT_EQ(Words("--hosts a,b --no_local_rank t.py"), "launch --hosts a,b -- python3 -u t.py");
  EXPECT_FALSE(Translate("--hosts a,b t.py")->this_machine);
}

TEST_F(DeepspeedTest, ScriptsAreToldTheirLocalRank) {
  EXPECT_THAT(Translate("t.py --deepspeed")->programs[0].command,
              ElementsAre("/bin/sh", "-c",
                          "exec 'python3' '-u' 't.py' '--local_rank='\"$LOCAL_RANK\"'' "
                          "'--deepspeed'"));
  EXPECT_THAT(Words("--module --no_local_rank a.b x"), HasSubstr("python3 -u -m a.b x"));
  EXPECT_THAT(Words("--no_python --no_local_rank ./a x"), HasSubstr("-- ./a x"));
  EXPECT_EQ(Words("--num_gpus 2"), "no script to run");
}

TEST_F(DeepspeedTest, HostsAndGpusAreChosen) {
  files_["/job/hostfile"] = "a slots=4\n";
  EXPECT_THAT(Words("--include=worker-2:0,1 --no_local t.py"),
              HasSubstr("launch --include worker-2:0,1 --hostfile"));
  EXPECT_THAT(Words("-e worker-2:0@worker-3:0,1 --no_local t.py"),
              HasSubstr("--exclude worker-2:0@worker-3:0,1"));
  EXPECT_THAT(Words("-i a --num_gpus 1 t.py"), HasSubstr("--num_gpus contradicts --include"));
}

TEST_F(DeepspeedTest, VariablesComeFromItsFiles) {
  surroundings_.working_directory = "/home/me/project";
  surroundings_.environment.emplace_back("PYTHONPATH=/p");
  files_["/home/me/.deepspeed_env"] = "A=1\n\n# no\nB=x=y \r\n";
  files_["/home/me/project/.deepspeed_env"] = "A=2";
  EXPECT_EQ(
      Words("--no_local_rank t.py"),
      "launch --export PYTHONPATH=/home/me/project:/p --export A=1 --export B=x=y  --export A=2 -- "
      "python3 -u t.py");
  EXPECT_EQ(Words("--export PYTHONPATH=/mine --export=A=3 --no_local_rank t.py"),
            "launch --export PYTHONPATH=/mine --export=A=3 --export B=x=y  -- python3 -u t.py");
  files_["/home/me/project/.deepspeed_env"] = "A=2\nbad\n";
  EXPECT_THAT(Words("t.py"),
              HasSubstr("/home/me/project/.deepspeed_env:2: this line is not NAME=VALUE"));
  surroundings_.environment.emplace_back("DS_ENV_FILE=/other");
  files_["/other"] = "C=3";
  EXPECT_THAT(Words("--no_local_rank t.py"), HasSubstr("--export C=3 --"));
}

TEST_F(DeepspeedTest, WhatItCannotDoItRefuses) {
  EXPECT_THAT(Words("--node_rank=1 --no_ssh t.py"), HasSubstr("run this line once"));
  EXPECT_TRUE(Translate("--node_rank=0 --no_ssh --master_addr=a --master_port=1 t.py").ok());
  EXPECT_THAT(Words("--autotuning run t.py"), HasSubstr("--autotuning is not supported"));
  EXPECT_THAT(Words("--elastic_training t.py"), HasSubstr("is not supported"));
  EXPECT_THAT(Translate("--launcher slurm --bind_cores_to_rank --bind_core_list 0-27 t.py")->notes,
              ElementsAre(HasSubstr("--launcher ignored"), HasSubstr("--bind_core_list ignored"),
                          HasSubstr("--export OMP_NUM_THREADS=N")));
}

// deepspeedai/DeepSpeed#2881
TEST_F(DeepspeedTest, BoundRanksAreToldOfTheirThreads) {
  using ::testing::IsEmpty;
  const std::string line = "--num_gpus 2 --bind_cores_to_rank t.py";
  EXPECT_THAT(Translate(line)->notes, ElementsAre(HasSubstr("each rank has one thread")));
  EXPECT_THAT(Translate("--num_gpus 2 t.py")->notes, IsEmpty());
  EXPECT_THAT(Translate("--export OMP_NUM_THREADS=4 " + line)->notes, IsEmpty());
  EXPECT_THAT(Translate("--export=OMP_NUM_THREADS=4 " + line)->notes, IsEmpty());
  files_["/home/me/.deepspeed_env"] = "OMP_NUM_THREADS=4\n";
  EXPECT_THAT(Translate(line)->notes, IsEmpty());
}

}  // namespace
}  // namespace dtrain::faces
