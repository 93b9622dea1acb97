// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/faces/face.h"

namespace dtrain::faces {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TorchrunTest : public ::testing::Test {
 public:
  // Words by blanks.
  absl::StatusOr<Translation> Translate(const std::string& line) {
    surroundings_.working_directory = "/home/me";
    const std::vector<std::string> args = absl::StrSplit(line, ' ', absl::SkipEmpty());
    return kTorchrun.translate(args, surroundings_);
  }
  std::string Words(const std::string& line) {
    const auto translation = Translate(line);
    if (!translation.ok()) return std::string(translation.status().message());
    return absl::StrJoin(LaunchWords(*translation), " ");
  }

  cli::Surroundings surroundings_;
};

TEST_F(TorchrunTest, OneNodeIsThisMachine) {
  const auto one = Translate("--standalone --nproc_per_node=8 train.py config.py --x -m");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE(one->this_machine);
  EXPECT_TRUE(one->cores_are_no_limit);
  EXPECT_THAT(one->notes, IsEmpty());
  EXPECT_EQ(absl::StrJoin(LaunchWords(*one), " "),
            "launch --ppn 8 --tag-output none -- python3 -u train.py config.py --x -m");
  EXPECT_EQ(Words("train.py"), "launch --ppn 1 --tag-output none -- python3 -u train.py");
  EXPECT_EQ(Words("-- train.py"), "launch --ppn 1 --tag-output none -- python3 -u train.py");
  EXPECT_TRUE(Translate("--nnodes=1 train.py")->this_machine);
}

TEST_F(TorchrunTest, HostsOnTheLineAreUsed) {
  const auto all = Translate("--hostfile hosts --nproc-per-node gpu train.py");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_FALSE(all->this_machine);
  EXPECT_FALSE(all->most_nodes);
  EXPECT_EQ(absl::StrJoin(LaunchWords(*all), " "),
            "launch --hostfile hosts --ppn gpu --tag-output none -- python3 -u train.py");
  const auto first = Translate("--hosts=a:2,b --nnodes 1 train.py");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->this_machine);
  EXPECT_EQ(first->most_nodes, 1u);
}

TEST_F(TorchrunTest, NodesAreANumberOrARange) {
  const auto two = Translate("--nnodes 2 train.py");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_TRUE(two->needs_hosts);
  cli::LaunchOptions options;
  options.local = true;
  EXPECT_THAT(std::string(AfterHosts(*two, options).message()), HasSubstr("no hosts are known"));
  options.local = false;
  options.hosts.entries.resize(1);
  EXPECT_THAT(std::string(AfterHosts(*two, options).message()), HasSubstr("at least 2 nodes"));
  options.hosts.entries.resize(3);
  EXPECT_TRUE(AfterHosts(*two, options).ok());
  EXPECT_EQ(options.job.plan.nodes, 2u);

  const auto range = Translate("--nnodes 1:4 train.py");
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_FALSE(range->needs_hosts);
  EXPECT_TRUE(AfterHosts(*range, options).ok());
  EXPECT_EQ(options.job.plan.nodes, 3u);
  for (const char* bad : {"0", "x", "3:2", "1:2:3", "", "-1", "1:", "99999999"}) {
    const auto wrong = Translate(std::string("--nnodes=") + bad + " train.py");
    EXPECT_TRUE(bad[0] == '\0' || !wrong.ok()) << bad;
  }
}

TEST_F(TorchrunTest, ModulesAndPrograms) {
  EXPECT_EQ(Words("-m torchtitan.train --module x"),
            "launch --ppn 1 --tag-output none -- python3 -u -m torchtitan.train --module x");
  EXPECT_EQ(Words("--no-python ./a.out 1"), "launch --ppn 1 --tag-output none -- ./a.out 1");
  EXPECT_EQ(Words("--no_python ./a.out 1"), "launch --ppn 1 --tag-output none -- ./a.out 1");
  EXPECT_THAT(Words("-m --no-python x"), HasSubstr("needs Python"));
  EXPECT_EQ(Words(""), "no script to run");
  surroundings_.environment = {"PYTHON_EXEC=/opt/py"};
  EXPECT_EQ(Words("train.py"), "launch --ppn 1 --tag-output none -- /opt/py -u train.py");
}

TEST_F(TorchrunTest, LocalRanksInArgumentsAreFilledInOnTheNode) {
  const auto line = Translate("train.py --device=cuda:${local_rank} it's");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->programs[0].command,
              ::testing::ElementsAre("/bin/sh", "-c",
                                     "exec 'python3' '-u' 'train.py' "
                                     "'--device=cuda:'\"$LOCAL_RANK\"'' 'it'\\''s'"));
}

TEST_F(TorchrunTest, AbbreviationsAreArgparses) {
  EXPECT_EQ(Words("--nproc 2 --rdzv_e h:1 train.py"),
            "launch --ppn 2 --tag-output none -- python3 -u train.py");
  EXPECT_THAT(Words("--m 1 train.py"), HasSubstr("--m could be"));
  EXPECT_THAT(Words("--nproc-per-nod 1 --zzz train.py"), HasSubstr("unknown flag --zzz"));
  EXPECT_THAT(Words("--nproc-per-node"), HasSubstr("needs a value"));
  EXPECT_THAT(Words("--standalone=1 x"), HasSubstr("takes no value"));
}

TEST_F(TorchrunTest, VariablesSayWhatTheLineDoesNot) {
  surroundings_.environment = {"PET_NNODES=2", "PET_NPROC_PER_NODE=4", "PET_STANDALONE=0",
                               "PET_ROLE="};
  const auto line = Translate("--nproc_per_node 3 train.py");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->most_nodes, 2u);
  EXPECT_EQ(absl::StrJoin(LaunchWords(*line), " "),
            "launch --ppn 3 --tag-output none -- python3 -u train.py");
  surroundings_.environment.emplace_back("PET_NO_PYTHON=1");
  EXPECT_EQ(Words("./a"), "launch --ppn 4 --tag-output none -- ./a");
  surroundings_.environment.emplace_back("PET_NODE_RANK=1");
  EXPECT_THAT(Words("./a"), HasSubstr("run this line once, without PET_NODE_RANK"));
}

TEST_F(TorchrunTest, WhatHasNoMeaningIsNoted) {
  const auto line = Translate(
      "--nnodes=2 --node_rank=0 --master_addr=10.0.0.1 --master_port=1234 --monitor_interval 3 "
      "--max-restarts 3 train.py");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->notes,
              ::testing::ElementsAre(
                  "dtrain: --master_addr, --master_port ignored: dtrain finds the address and the "
                  "port itself"));
  EXPECT_EQ(absl::StrJoin(LaunchWords(*line), " "),
            "launch --max-restarts 3 --ppn 1 --tag-output none -- python3 -u train.py");
}

TEST_F(TorchrunTest, WhatDtrainHasItDoes) {
  EXPECT_EQ(Words("--role worker --rdzv_id 101 --rdzv_conf join_timeout=900,timeout=3 "
                  "--numa-binding=node --shutdown-timeout 9 --virtual-local-rank t.py"),
            "launch --export ROLE_NAME=worker --export TORCHELASTIC_RUN_ID=101 --grace 9 "
            "--start-timeout 900 --bind numa --gpu-bind rank --export LOCAL_RANK=0 --ppn 1 "
            "--tag-output none -- "
            "python3 -u t.py");
  EXPECT_EQ(Words("--dry-run --timeout=3h t.py"),
            "launch --dry-run --timeout=3h --ppn 1 --tag-output none -- python3 -u t.py");
}

TEST_F(TorchrunTest, OutputGoesWhereItIsSent) {
  using output::Streams;
  const auto line = Translate("--log-dir /l%d -r 3 --tee 0:1,1:3 --local-ranks-filter 0,2 t.py");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(absl::StrJoin(LaunchWords(*line), " "),
            "launch --ppn 1 --output /l%%d/%j/attempt_%a/%r/%s.log --tag-output rank -- python3 -u "
            "t.py");
  EXPECT_EQ(line->shown.streams, Streams::kNone);
  EXPECT_EQ(line->shown.streams_of.at(0), Streams::kStdout);
  EXPECT_EQ(line->shown.streams_of.at(1), Streams::kBoth);
  EXPECT_EQ(*line->shown.local_ranks, (std::set<uint32_t>{0, 2}));
  cli::LaunchOptions options;
  options.output.shown.ranks = {{3, 4}};
  BeforeHosts(*line, options);
  EXPECT_EQ(options.output.shown.ranks.size(), 1u);
  EXPECT_EQ(options.output.shown.streams, Streams::kNone);
  EXPECT_EQ(Words("--tag-output host t.py"), "launch --tag-output host --ppn 1 -- python3 -u t.py");
  EXPECT_THAT(Words("-r 1 t.py"), HasSubstr("give --log-dir"));
  for (const char* bad : {"4", "x", "1,2", "0:4", "0:1:2", ":1"}) {
    EXPECT_THAT(Words(std::string("--tee ") + bad + " t.py"), HasSubstr("--tee: ")) << bad;
  }
  EXPECT_THAT(Words("--local-ranks-filter x t.py"), HasSubstr("a list of local ranks"));
}

TEST_F(TorchrunTest, WhatItCannotDoItRefuses) {
  EXPECT_THAT(Words("--nnodes 2 --node-rank 1 t.py"), HasSubstr("run this line once"));
  EXPECT_THAT(Words("--nnodes 2 --standalone t.py"), HasSubstr("--standalone is one node"));
  EXPECT_THAT(Words("--logs-specs x t.py"), HasSubstr("--logs-specs is not supported"));
  EXPECT_THAT(Words("--numa-binding x t.py"), HasSubstr("is not node"));
  EXPECT_THAT(Words("--rdzv-conf x t.py"), HasSubstr("KEY=VALUE"));
}

TEST_F(TorchrunTest, HelpIsForTheFace) {
  EXPECT_TRUE(WantsHelp(kTorchrun, {"--nnodes", "2", "--help"}));
  EXPECT_TRUE(WantsHelp(kTorchrun, {"-h"}));
  EXPECT_FALSE(WantsHelp(kTorchrun, {"train.py", "--help"}));
  EXPECT_THAT(cli::FormatHelp(PageOf(kTorchrun)), HasSubstr("--nnodes N|MIN:MAX"));
}

}  // namespace
}  // namespace dtrain::faces
