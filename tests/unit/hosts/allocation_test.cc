// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/allocation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::hosts {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

using Env = std::map<std::string, std::string>;

absl::StatusOr<std::optional<Allocation>> Detect(const Env& env, const Env& files = {}) {
  return DetectAllocation(
      [&](const std::string& name) -> std::optional<std::string> {
        auto found = env.find(name);
        if (found == env.end()) return std::nullopt;
        return found->second;
      },
      [&](const std::string& path) -> absl::StatusOr<std::string> {
        auto found = files.find(path);
        if (found == files.end()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
        return found->second;
      });
}

// "Slurm: a:4 b:?", or the error.
std::string Show(const Env& env, const Env& files = {}) {
  auto allocation = Detect(env, files);
  if (!allocation.ok()) return std::string(allocation.status().message());
  if (!*allocation) return "none";
  std::string out = (*allocation)->manager + ":";
  for (const HostEntry& entry : (*allocation)->hosts.entries) {
    absl::StrAppend(&out, " ", entry.host, ":", entry.slots ? absl::StrCat(*entry.slots) : "?");
  }
  return out;
}

Env Slurm(const std::string& nodes, Env more = {}) {
  more["SLURM_JOB_ID"] = "17";
  more["SLURM_JOB_NODELIST"] = nodes;
  return more;
}

TEST(Allocation, IsNoneOutsideOfAManager) {
  EXPECT_EQ(Show({}), "none");
  EXPECT_EQ(Show({{"SLURM_JOB_ID", ""}, {"SLURM_CONF", "/etc/slurm"}, {"LSF_BINDIR", "/x"}}),
            "none");
}

TEST(Slurm, ReadsTheCompressedListAndTasks) {
  EXPECT_EQ(Show(Slurm("gpu[01-03],login", {{"SLURM_TASKS_PER_NODE", "2(x3),1"}})),
            "Slurm: gpu01:2 gpu02:2 gpu03:2 login:1");
  EXPECT_EQ(Show(Slurm("node1", {{"SLURM_TASKS_PER_NODE", "4"}})), "Slurm: node1:4");
  EXPECT_EQ(Show(Slurm("rack[0-1]node[1-2]", {{"SLURM_TASKS_PER_NODE", "4,3(x2),1"}})),
            "Slurm: rack0node1:4 rack0node2:3 rack1node1:3 rack1node2:1");
}

TEST(Slurm, SeparatesByCommaAndBlank) {
  EXPECT_EQ(Show(Slurm("a,b c,  d")), "Slurm: a:? b:? c:? d:?");
}

TEST(Slurm, FallsBackToTasksAskedForAndThenToCores) {
  EXPECT_EQ(Show(Slurm("n[1-2]", {{"SLURM_NTASKS_PER_NODE", "8"}})), "Slurm: n1:8 n2:8");
  EXPECT_EQ(Show(Slurm("n[1-3]", {{"SLURM_JOB_CPUS_PER_NODE", "72(x2),36"}})),
            "Slurm: n1:72 n2:72 n3:36");
  EXPECT_EQ(Show(Slurm("n[1-3]",
                       {{"SLURM_JOB_CPUS_PER_NODE", "72(x2),4"}, {"SLURM_CPUS_PER_TASK", "8"}})),
            "Slurm: n1:9 n2:9 n3:1");
  EXPECT_EQ(Show(Slurm("n1", {{"SLURM_TASKS_PER_NODE", "2"}, {"SLURM_NTASKS_PER_NODE", "3"}})),
            "Slurm: n1:2");
}

// sbatch -N2 --gpus-per-node=8: Slurm counts one task a node there, or with --exclusive each core.
TEST(Slurm, AJobOfGpusWithoutTasksLeavesTheSlotsToTheGpus) {
  for (const char* gpus : {"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_JOB_GPUS"}) {
    for (const char* tasks : {"1(x2)", "128(x2)"}) {
      Env env = {{gpus, "8"},
                 {"SLURM_TASKS_PER_NODE", tasks},
                 {"SLURM_CPUS_PER_TASK", "2"},
                 {"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"}};
      EXPECT_EQ(Show(Slurm("n[1-2]", env)), "Slurm: n1:? n2:?") << gpus << " " << tasks;
      env["ROCR_VISIBLE_DEVICES"] = "0,1,2,3,4,5,6,7";
      EXPECT_NE(Show(Slurm("n[1-2]", env)), "Slurm: n1:? n2:?") << gpus << " " << tasks;
    }
    for (const char* asked : {"SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_TASK"}) {
      Env env = {{gpus, "8"},
                 {"SLURM_TASKS_PER_NODE", "1(x2)"},
                 {"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"},
                 {asked, "1"}};
      EXPECT_EQ(Show(Slurm("n[1-2]", env)), "Slurm: n1:1 n2:1") << gpus << " " << asked;
    }
  }
}

TEST(Slurm, InAStepOnSomeOfTheNodesStillCountsTheTasksOfTheJob) {
  Env step = {{"SLURM_STEP_NODELIST", "n1"},
              {"SLURM_STEP_TASKS_PER_NODE", "1"},
              {"SLURM_TASKS_PER_NODE", "1"},
              {"SLURM_JOB_CPUS_PER_NODE", "4(x2)"}};
  EXPECT_EQ(Show(Slurm("n[1-2]", step)), "Slurm: n1:4 n2:4");
  step["SLURM_NTASKS_PER_NODE"] = "2";
  EXPECT_EQ(Show(Slurm("n[1-2]", step)), "Slurm: n1:2 n2:2");
  // The shell of salloc is a step of one node, with the job's counts.
  step["SLURM_TASKS_PER_NODE"] = "3,1";
  EXPECT_EQ(Show(Slurm("n[1-2]", step)), "Slurm: n1:3 n2:1");
  step["SLURM_STEP_NODELIST"] = "n[1-2]";
  step["SLURM_TASKS_PER_NODE"] = "3,1";
  EXPECT_EQ(Show(Slurm("n[1-2]", step)), "Slurm: n1:3 n2:1");
}

TEST(Slurm, KnowsTheOldNames) {
  EXPECT_EQ(Show({{"SLURM_JOBID", "1"}, {"SLURM_NODELIST", "a"}}), "Slurm: a:?");
}

TEST(Slurm, AddsUpARepeatedNode) {
  EXPECT_EQ(Show(Slurm("a,b,a", {{"SLURM_TASKS_PER_NODE", "1,2,3"}})), "Slurm: a:4 b:2");
}

TEST(Slurm, SuggestsSrunForEachHost) {
  auto allocation = Detect(Slurm("a"));
  ASSERT_TRUE(allocation.ok());
  EXPECT_THAT((*allocation)->rsh, HasSubstr(" srun "));
  EXPECT_THAT((*allocation)->rsh, HasSubstr("--nodelist={host}"));
  EXPECT_THAT((*allocation)->rsh, HasSubstr("--unbuffered"));
  for (const char* flag : {"SRUN_CPUS_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_HOSTFILE"}) {
    EXPECT_THAT((*allocation)->rsh, HasSubstr(absl::StrCat("-u ", flag, " "))) << flag;
  }
}

TEST(Slurm, AsksForAllGpusOfANodeWhereTheJobCountedThemByTask) {
  auto rsh = [](Env env) { return (*Detect(Slurm("n[1-2]", std::move(env))))->rsh; };
  Env env = {{"SLURM_TASKS_PER_NODE", "4(x2)"}, {"SLURM_GPUS_PER_TASK", "2"}};
  EXPECT_THAT(rsh(env), EndsWith(" --gpus-per-node=8"));
  env["SLURM_GPUS_PER_TASK"] = "a100:1";
  EXPECT_THAT(rsh(env), EndsWith(" --gpus-per-node=a100:4"));
  for (const char* unclear : {"a100:1,v100:1", "x", "a:b:", ";"}) {
    env["SLURM_GPUS_PER_TASK"] = unclear;
    EXPECT_THAT(rsh(env), Not(HasSubstr("--gpus-per-node"))) << unclear;
  }
  env = {{"SLURM_TASKS_PER_NODE", "4,1"}, {"SLURM_GPUS_PER_TASK", "2"}};
  EXPECT_THAT(rsh(env), Not(HasSubstr("--gpus-per-node")));
}

// `srun dtrain launch` by mistake; each of the copies would start the whole job.
TEST(Slurm, EveryCopyInAStepOfSeveralTasksRefuses) {
  Env step = {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NODELIST", "n[1-2]"}};
  for (const char* task : {"0", "1", "3"}) {
    step["SLURM_PROCID"] = task;
    EXPECT_EQ(
        Show(Slurm("n[1-2]", step)),
        absl::StrCat("srun has started 4 copies of this command, of which this is number ", task,
                     ", and each would start the whole job; run it once, without srun, in the "
                     "batch script or the shell of salloc: it starts the ranks on all nodes "
                     "by itself. (In a step: srun -n1. If srun is not involved, unset "
                     "SLURM_STEP_NUM_TASKS)"));
  }
}

TEST(Slurm, ABatchScriptAndAStepOfOneTaskAreNoCopies) {
  EXPECT_EQ(Show(Slurm("n1", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})), "Slurm: n1:?");
  EXPECT_EQ(Show(Slurm("n1", {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})),
            "Slurm: n1:?");
  EXPECT_EQ(Show(Slurm("n1", {{"SLURM_STEP_NUM_TASKS", "4"}})), "Slurm: n1:?");
}

TEST(Slurm, RefusesAnEnvironmentThatDoesNotFitTogether) {
  EXPECT_EQ(Show({{"SLURM_JOB_ID", "1"}}),
            "SLURM_JOB_ID is set but SLURM_JOB_NODELIST is not, so the hosts of the Slurm job are "
            "not known; name them with --hosts or --hostfile, or unset SLURM_JOB_ID");
  EXPECT_EQ(Show(Slurm("n[1-4]", {{"SLURM_TASKS_PER_NODE", "2(x3)"}})),
            "SLURM_TASKS_PER_NODE, column 1: counts for only 3 of 4 nodes: \"2(x3)\"; "
            "these variables are not those of one Slurm job");
  EXPECT_EQ(Show(Slurm("n[1-4]", {{"SLURM_TASKS_PER_NODE", "1,2(x4)"}})),
            "SLURM_TASKS_PER_NODE, column 3: counts for more than the 4 nodes: \"2(x4)\"; "
            "these variables are not those of one Slurm job");
  EXPECT_THAT(Show(Slurm("a", {{"SLURM_HET_SIZE", "2"}})), HasSubstr("heterogeneous Slurm job"));
  for (const char* bad : {"x", "2(x", "2(x)", "2(x0)", "2(3)", "2(x1)x", "0", "-1", "2,", ",2",
                          "2(x99999999999)", "65536"}) {
    EXPECT_THAT(Show(Slurm("n[1-2]", {{"SLURM_TASKS_PER_NODE", bad}})),
                HasSubstr("SLURM_TASKS_PER_NODE, column "))
        << bad;
  }
}

TEST(Slurm, RefusesBadLists) {
  EXPECT_THAT(Show(Slurm("n[1-2")), HasSubstr("SLURM_JOB_NODELIST, column 2: '[' without ']'"));
  EXPECT_THAT(Show(Slurm("a,n[0-999999999]")),
              HasSubstr("SLURM_JOB_NODELIST, column 5: range names too many hosts"));
  EXPECT_THAT(Show(Slurm("n[1-60000],m[1-60000]")), HasSubstr("column 12: too many hosts"));
  EXPECT_THAT(Show(Slurm("a,-oX")), HasSubstr("column 3: host name starts with '-'"));
  EXPECT_THAT(Show(Slurm("a:4")), HasSubstr("column 2: host name must not contain ':'"));
  EXPECT_THAT(Show(Slurm("u@a")), HasSubstr("column 2: host name must not contain '@'"));
  EXPECT_EQ(Show(Slurm(" , ")), "no hosts in SLURM_JOB_NODELIST; name at least one");
}

TEST(Pbs, CountsTheLinesOfTheNodeFile) {
  Env env = {{"PBS_JOBID", "17.head"}, {"PBS_NODEFILE", "/var/spool/pbs/aux/17"}};
  EXPECT_EQ(Show(env, {{"/var/spool/pbs/aux/17", "n1\nn1\nn2\nn1\n"}}), "PBS: n1:3 n2:1");
  EXPECT_EQ(Show(env, {{"/var/spool/pbs/aux/17", "n1\nn2\n"}}), "PBS: n1:1 n2:1");
  auto allocation = Detect(env, {{"/var/spool/pbs/aux/17", "n1\n"}});
  ASSERT_TRUE(allocation.ok());
  EXPECT_EQ((*allocation)->rsh, "");
}

// Slurm tells whether tasks were requested.
TEST(Allocation, MarksNodesWithOneSlotUnlessTasksWereRequested) {
  Env env = {{"PBS_JOBID", "17"}, {"PBS_NODEFILE", "/f"}};
  auto allocation = Detect(env, {{"/f", "n1\nn2\nn2\n"}});
  ASSERT_TRUE(allocation.ok());
  EXPECT_TRUE((*allocation)->hosts.entries[0].single_slot);
  EXPECT_FALSE((*allocation)->hosts.entries[1].single_slot);
  allocation = Detect(Slurm("n1", {{"SLURM_TASKS_PER_NODE", "1"}}));
  ASSERT_TRUE(allocation.ok());
  EXPECT_FALSE((*allocation)->hosts.entries[0].single_slot);
}

// `pbsdsh dtrain launch`: the copy on the first node cannot be told from the job script, so it
// alone launches.
TEST(Pbs, OfTheCopiesThatPbsdshStartsOnlyTheFirstLaunches) {
  Env env = {{"PBS_JOBID", "17.head"}, {"PBS_NODEFILE", "/f"}};
  const Env files = {{"/f", "n1\nn2\n"}};
  env["PBS_NODENUM"] = env["PBS_VNODENUM"] = "0";
  EXPECT_EQ(Show(env, files), "PBS: n1:1 n2:1");
  env["PBS_VNODENUM"] = "1";
  EXPECT_THAT(Show(env, files), HasSubstr("PBS_VNODENUM is 1"));
  env["PBS_NODENUM"] = "1";
  EXPECT_EQ(Show(env, files),
            "pbsdsh has started this copy of the command (PBS_NODENUM is 1), and each copy would "
            "start the whole job; run it once, without pbsdsh, in the job script: it starts the "
            "ranks on all nodes by itself. (If pbsdsh is not involved, unset PBS_NODENUM)");
}

TEST(Pbs, RefusesAMissingOrBadNodeFile) {
  EXPECT_THAT(Show({{"PBS_JOBID", "17"}}), HasSubstr("PBS_JOBID is set but PBS_NODEFILE is not"));
  EXPECT_EQ(Show({{"PBS_JOBID", "17"}, {"PBS_NODEFILE", "/gone"}}),
            "PBS_JOBID is set but PBS_NODEFILE cannot be used (cannot read /gone), so the hosts of "
            "the PBS job are not known; name them with --hosts or --hostfile, or unset PBS_JOBID");
  Env env = {{"PBS_JOBID", "17"}, {"PBS_NODEFILE", "/f"}};
  EXPECT_THAT(Show(env, {{"/f", ""}}), HasSubstr("no hosts in /f"));
  EXPECT_THAT(Show(env, {{"/f", "a\nb;c\n"}}), HasSubstr("/f:2:2: host name must not contain ';'"));
}

TEST(Lsf, ReadsTheHostFileOrThePairs) {
  EXPECT_EQ(Show({{"LSB_JOBID", "5"}, {"LSB_MCPU_HOSTS", "h1 4 h2 8 "}}), "LSF: h1:4 h2:8");
  Env env = {{"LSB_JOBID", "5"}, {"LSB_DJOB_HOSTFILE", "/f"}, {"LSB_MCPU_HOSTS", "x 1"}};
  EXPECT_EQ(Show(env, {{"/f", "h1\nh1\nh2\n"}}), "LSF: h1:2 h2:1");
  auto allocation = Detect(env, {{"/f", "h1"}});
  ASSERT_TRUE(allocation.ok());
  EXPECT_EQ((*allocation)->rsh, "blaunch {host}");
}

TEST(Lsf, OfTheCopiesThatBlaunchStartsOnlyTheFirstLaunches) {
  Env env = {{"LSB_JOBID", "5"}, {"LSB_MCPU_HOSTS", "h1 1 h2 1"}, {"LSF_PM_TASKID", "1"}};
  EXPECT_EQ(Show(env), "LSF: h1:1 h2:1");
  env["LSF_PM_TASKID"] = "2";
  EXPECT_THAT(Show(env), HasSubstr("blaunch has started this copy of the command (LSF_PM_TASKID"));
}

TEST(Lsf, RefusesMissingOrBadData) {
  EXPECT_THAT(
      Show({{"LSB_JOBID", "5"}, {"LSB_HOSTS", "a b"}}),
      HasSubstr("LSB_JOBID is set but neither LSB_DJOB_HOSTFILE nor LSB_MCPU_HOSTS is, so"));
  EXPECT_THAT(Show({{"LSB_JOBID", "5"}, {"LSB_DJOB_HOSTFILE", "/gone"}}),
              HasSubstr("LSB_DJOB_HOSTFILE cannot be used (cannot read /gone)"));
  EXPECT_THAT(Show({{"LSB_JOBID", "5"}, {"LSB_MCPU_HOSTS", "h1 4 h2"}}),
              HasSubstr("LSB_MCPU_HOSTS, column 6: host without a number of slots: \"h2\""));
  EXPECT_THAT(Show({{"LSB_JOBID", "5"}, {"LSB_MCPU_HOSTS", "h1 h2"}}),
              HasSubstr("LSB_MCPU_HOSTS, column 4: slots is not a whole number: \"h2\""));
  EXPECT_THAT(Show({{"LSB_JOBID", "5"}, {"LSB_MCPU_HOSTS", "h;1 4"}}),
              HasSubstr("LSB_MCPU_HOSTS, column 2: host name must not contain ';'"));
}

TEST(GridEngine, ReadsTheFileOfItsParallelEnvironment) {
  Env env = {{"SGE_ROOT", "/opt/sge"}, {"JOB_ID", "9"}, {"PE_HOSTFILE", "/pe"}};
  const Env files = {
      {"/pe", "n1 4 all.q@n1 UNDEFINED\nn2.lan  2\tfast.q@n2 <NULL>\r\n\nn1 1 fast.q@n1 0,1\n"}};
  EXPECT_EQ(Show(env, files), "Grid Engine: n1:5 n2.lan:2");
  auto allocation = Detect(env, files);
  ASSERT_TRUE(allocation.ok());
  EXPECT_EQ((*allocation)->rsh, "qrsh -inherit -V {host}");
}

TEST(GridEngine, IsNoneWithoutAParallelEnvironment) {
  EXPECT_EQ(Show({{"SGE_ROOT", "/opt/sge"}, {"JOB_ID", "9"}}), "none");
  EXPECT_EQ(Show({{"JOB_ID", "9"}, {"PE_HOSTFILE", "/gone"}}), "none");
}

TEST(GridEngine, RefusesAMissingOrBadFile) {
  Env env = {{"SGE_ROOT", "/opt/sge"}, {"JOB_ID", "9"}, {"PE_HOSTFILE", "/pe"}};
  EXPECT_EQ(Show(env),
            "PE_HOSTFILE is set but cannot be used (cannot read /pe), so the hosts of the Grid "
            "Engine job are not known; name them with --hosts or --hostfile, or unset PE_HOSTFILE");
  EXPECT_THAT(Show(env, {{"/pe", "\n"}}), HasSubstr("no hosts in /pe"));
  EXPECT_EQ(Show(env, {{"/pe", "n1 1\nn2\n"}}),
            "/pe:2:1: host without a number of slots: \"n2\"; Grid Engine writes HOST SLOTS QUEUE "
            "PROCESSORS");
  EXPECT_THAT(Show(env, {{"/pe", "n1 x q\n"}}), HasSubstr("/pe:1:4: slots is not a whole number"));
  EXPECT_THAT(Show(env, {{"/pe", "n1;n2 1 q\n"}}),
              HasSubstr("/pe:1:3: host name must not contain"));
  EXPECT_THAT(Show(env, {{"/pe", "-oX 1 q\n"}}), HasSubstr("host name starts with '-'"));
}

TEST(Slurm, AHostFileSaysWhereEachTaskGoes) {
  const Env env = Slurm("n[1-3]", {{"SLURM_TASKS_PER_NODE", "2(x3)"}, {"SLURM_HOSTFILE", "/f"}});
  const Env files = {{"/f", "n2\n n1 \n# mine\n\nn2\nn[1-2]\nn1*2\n"}};
  EXPECT_EQ(Show(env, files), "Slurm: n2:3 n1:4");
  const auto allocation = Detect(env, files);
  std::string order;
  for (const RankPlace& place : (*allocation)->places) {
    absl::StrAppend(&order, place.rank, "=", place.host, " ");
  }
  EXPECT_EQ(order, "0=n2 1=n1 2=n2 3=n1 4=n2 5=n1 6=n1 ");
}

TEST(Slurm, AHostFileThatCannotBeUsedIsNamed) {
  const Env env = Slurm("n[1-2]", {{"SLURM_HOSTFILE", "/f"}});
  EXPECT_THAT(Show(env), HasSubstr("SLURM_HOSTFILE=/f: cannot read /f; unset SLURM_HOSTFILE"));
  EXPECT_THAT(Show(env, {{"/f", "# nobody\n"}}), HasSubstr("SLURM_HOSTFILE=/f names no host"));
  EXPECT_THAT(Show(env, {{"/f", "n1\nn9\n"}}),
              HasSubstr("SLURM_HOSTFILE=/f line 2: n9 is not one of the Slurm job's nodes"));
  EXPECT_THAT(Show(env, {{"/f", "n1*x\n"}}), HasSubstr("line 1"));
  EXPECT_EQ(Show(Slurm("n[1-2]", {{"SLURM_HOSTFILE", ""}})), "Slurm: n1:? n2:?");
}

}  // namespace
}  // namespace dtrain::hosts
