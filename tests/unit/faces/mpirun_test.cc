// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/faces/face.h"

namespace dtrain::faces {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MpirunTest : public ::testing::Test {
 public:
  absl::StatusOr<Translation> Translate(const std::vector<std::string>& args) {
    return kMpirun.translate(args, surroundings_);
  }
  absl::StatusOr<Translation> Translate(const std::string& line) {
    return Translate(std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty())));
  }
  // Without the words that every line has.
  std::string Words(const std::string& line) {
    const auto translation = Translate(line);
    if (!translation.ok()) return std::string(translation.status().message());
    return absl::StrJoin(LaunchWords(*translation), " ");
  }
  // Only those that come from the line, without its program.
  std::string Flags(const std::string& line) {
    const std::string all = Words(line);
    return all.substr(0, all.find(" --tag-output"));
  }

  cli::Surroundings surroundings_;
};

TEST_F(MpirunTest, OneDashOrTwo) {
  for (const char* np : {"-np 4", "--np 4", "-n 4", "-c 4", "--n 4", "--np=4", "-n4"}) {
    EXPECT_EQ(Words(std::string(np) + " ./a -np 9"), "launch --np 4 --tag-output none -- ./a -np 9")
        << np;
  }
  EXPECT_EQ(Words("-hostfile h --machinefile i ./a"),
            "launch --hostfile h --hostfile i --tag-output none -- ./a");
  EXPECT_EQ(Words("-default-hostfile h a"), "launch --hostfile h --tag-output none -- a");
  EXPECT_EQ(Words("-f hosts -ppn 4 ./a"),
            "launch --hostfile hosts --ppn 4 --tag-output none -- ./a");
}

TEST_F(MpirunTest, PlacesAndCores) {
  EXPECT_EQ(Words("-np 64 -N 8 -H a:4,b a"),
            "launch --np 64 --ppn 8 --hosts a:4,b --tag-output none -- a");
  EXPECT_EQ(Words("-pernode a"), "launch --ppn 1 --tag-output none -- a");
  EXPECT_EQ(Words("-bynode a"), "launch --map-by node --tag-output none -- a");
  EXPECT_EQ(Words("--map-by ppr:2:node:OVERSUBSCRIBE a"),
            "launch --map-by ppr:2:node --oversubscribe --tag-output none -- a");
  EXPECT_EQ(Words("--map-by RANKFILE:FILE=/D/Ranks a"),
            "launch --rankfile /D/Ranks --tag-output none -- a");
  EXPECT_THAT(Words("--map-by rankfile a"), HasSubstr("name the file with --rankfile FILE"));
  EXPECT_EQ(Words("-host a:4 -np 5 --host b,c a"),
            "launch --hosts a:4,b,c --np 5 --tag-output none -- a");
  EXPECT_EQ(Words("--map-by node --bind-to socket a"),
            "launch --map-by node --bind numa --tag-output none -- a");
  EXPECT_EQ(Words("-bind-to none -map-by slot a"), "launch --bind none --tag-output none -- a");
  EXPECT_EQ(Words("--bind-to core:overload-allowed a"),
            "launch --bind core --tag-output none -- a");
  EXPECT_THAT(Words("--map-by ppr:2:socket a"), HasSubstr("ppr:N:node is the only count"));
  EXPECT_THAT(Words("--bind-to x a"), HasSubstr("is not none, hwthread"));
  EXPECT_THAT(Words("--nolocal a"), HasSubstr("name only the other hosts"));
  EXPECT_THAT(Words("--map-by slot:NOLOCAL a"), HasSubstr("name only the other hosts"));
  EXPECT_THAT(Words("-npersocket 2 a"), HasSubstr("give --npernode"));
  EXPECT_THAT(Translate("--map-by socket --rank-by slot a")->notes,
              ElementsAre(HasSubstr("ranks are numbered"), HasSubstr("--map-by socket")));
}

// Under mpirun a program of OpenMP counts the cores that it is bound to.
TEST_F(MpirunTest, CoresOfARankAreThreads) {
  for (const char* line : {"--map-by ppr:2:node:PE=4 a", "--map-by slot:pe=4 a", "-map-by :PE=4 a",
                           "--cpus-per-proc 4 a", "--cpus-per-rank=4 a"}) {
    EXPECT_THAT(Words(line), HasSubstr(" --export OMP_NUM_THREADS=4 ")) << line;
    EXPECT_THAT(Translate(line)->notes, ElementsAre(HasSubstr("sets OMP_NUM_THREADS only")))
        << line;
    EXPECT_THAT(Words(std::string("--genv OMP_NUM_THREADS 2 ") + line),
                HasSubstr(" --export OMP_NUM_THREADS=2 -- a"))
        << line;
  }
  surroundings_.environment = {"OMP_NUM_THREADS=8"};
  EXPECT_EQ(Words("--map-by slot:PE=4 a"), "launch --tag-output none -- a");
  EXPECT_THAT(Words("--map-by slot:PE=x a"), HasSubstr("is not a number of cores"));
}

// As people give them: horovod/horovod#2043, #527, open-mpi/ompi#12090.
TEST_F(MpirunTest, HostsAreReachedAsTheLineSays) {
  const auto flags = [this](std::vector<std::string> args) {
    args.emplace_back("a");
    const auto translation = Translate(args);
    if (!translation.ok()) return std::string(translation.status().message());
    const std::vector<std::string>& all = translation->programs[0].flags;
    const auto end = std::find(all.begin(), all.end(), "--tag-output");
    return absl::StrJoin(all.begin(), end, " ");
  };
  constexpr char kPort[] = "--ssh-port 6666";
  EXPECT_EQ(flags({"--mca", "plm_rsh_args", "-p 6666"}), kPort);
  EXPECT_EQ(flags({"--prtemca", "plm_ssh_args", "-p 6666"}), kPort);
  EXPECT_EQ(flags({"-mca", "plm_rsh_agent", "ssh : rsh", "-mca", "plm_rsh_args", "-p 6666"}),
            kPort);
  EXPECT_EQ(flags({"-mca", "plm_rsh_args", "-i /root/.ssh/id -p 12345 -vvv"}),
            "--rsh ssh -o BatchMode=yes '-i' '/root/.ssh/id' '-p' '12345' '-vvv' {host}");
  EXPECT_EQ(flags({"--mca", "plm_rsh_agent", "/opt/my-rsh"}), "--rsh /opt/my-rsh");
  EXPECT_EQ(flags({"--mca", "plm_rsh_agent", "/opt/my-rsh", "--mca", "plm_rsh_args", "-q"}),
            "--rsh /opt/my-rsh '-q' {host}");
  EXPECT_EQ(flags({"--mca", "plm_rsh_agent", ""}), "");
  EXPECT_EQ(flags({"-launcher", "rsh", "-launcher-exec", "/opt/my-rsh"}), "--rsh /opt/my-rsh");
  EXPECT_THAT(flags({"--mca", "plm_rsh_args", "-i {x}"}), HasSubstr("braces are not supported"));
  EXPECT_THAT(Translate("--prtemca plm_ssh_args -q --prtemca plm_base_verbose 5 a")->notes,
              ElementsAre(HasSubstr("--prtemca plm_base_verbose ignored")));
}

TEST_F(MpirunTest, ParametersThatMeanFlagsOfDtrain) {
  EXPECT_EQ(Flags("--mca orte_default_hostfile h a"), "launch --hostfile h");
  EXPECT_EQ(Flags("--prtemca prte_default_hostfile h a"), "launch --hostfile h");
  EXPECT_EQ(Flags("-H b --mca orte_default_hostfile h a"), "launch --hosts b");
  EXPECT_EQ(Flags("--mca orte_default_hostfile none a"), "launch");
  EXPECT_EQ(Flags("--mca rmaps_base_oversubscribe 1 a"), "launch --oversubscribe");
  EXPECT_EQ(Flags("--mca rmaps_base_oversubscribe 0 a"), "launch");
  EXPECT_EQ(Flags("--mca hwloc_base_binding_policy none a"), "launch --bind none");
  EXPECT_EQ(Flags("--bind-to core --mca hwloc_base_binding_policy none a"), "launch --bind core");
  EXPECT_THAT(Flags("--mca hwloc_base_binding_policy x a"),
              HasSubstr("--mca hwloc_base_binding_policy: \"x\" is not none, hwthread"));
}

TEST_F(MpirunTest, VariablesOfParametersMeanTheSame) {
  surroundings_.environment = {"OMPI_MCA_plm_rsh_args=-p 2222",
                               "OMPI_MCA_rmaps_base_oversubscribe=true",
                               "PRTE_MCA_hwloc_default_binding_policy=none"};
  EXPECT_EQ(Flags("-H b a"), "launch --hosts b --oversubscribe --bind none --ssh-port 2222");
  EXPECT_EQ(Flags("--bind-to core -H b --oversubscribe --mca plm_rsh_args -q a"),
            "launch --hosts b --oversubscribe --bind core --rsh ssh -o BatchMode=yes '-q' {host}");
  EXPECT_EQ(Flags("-H b --ssh-port 7 --bind numa a"),
            "launch --hosts b --ssh-port 7 --bind numa --oversubscribe");
  // Nobody is reached.
  EXPECT_EQ(Flags("-np 2 a"), "launch --np 2 --oversubscribe --bind none");
  EXPECT_EQ(Flags("-H b a : a"), Flags("-H b a"));
  EXPECT_THAT(Words("-H b a : a"), HasSubstr(" a : a")) << "the first program says it for all";
  EXPECT_EQ(Flags("-np 2 --cores-per-rank 4 a"),
            "launch --np 2 --cores-per-rank 4 --oversubscribe");
  surroundings_.environment = {"OMPI_MCA_orte_default_hostfile=h", "OMPI_MCA_plm_rsh_agent=/my"};
  EXPECT_EQ(Flags("a"), "launch --hostfile h --rsh /my");
  EXPECT_EQ(Flags("-H b a"), "launch --hosts b --rsh /my");
  surroundings_.environment.emplace_back("PBS_JOBID=1");
  EXPECT_EQ(Flags("a"), "launch") << "the hosts are the allocation's";
  for (const char* agent : {"/opt/pbs/bin/pbs_tmrsh", "/bin/false", "false"}) {
    surroundings_.environment = {absl::StrCat("OMPI_MCA_plm_rsh_agent=", agent)};
    EXPECT_EQ(Flags("-H b a"), "launch --hosts b") << agent;
  }
  surroundings_.environment = {"OMPI_MCA_orte_default_hostfile=h", "OMPI_MCA_plm_rsh_agent=/my"};
  surroundings_.environment.emplace_back("DTRAIN_RSH=/other");
  EXPECT_EQ(Flags("a"), "launch --hostfile h");
  surroundings_.environment.emplace_back("DTRAIN_HOSTS=b");
  EXPECT_EQ(Flags("a"), "launch");
  // These are the MPI operator's.
  surroundings_.environment = {"OMPI_MCA_orte_default_hostfile=h", "OMPI_MCA_plm_rsh_agent=ssh",
                               "K_MPI_JOB_ROLE=launcher"};
  EXPECT_EQ(Flags("a"), "launch");
  surroundings_.environment = {"OMPI_MCA_orte_default_hostfile=h",
                               "OMPI_MCA_plm_rsh_agent=/etc/mpi/kubexec.sh"};
  EXPECT_EQ(Flags("a"), "launch");
  // And Kubeflow Trainer's.
  surroundings_.environment = {"OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile",
                               "JOB_COMPLETION_INDEX=0"};
  EXPECT_EQ(Flags("a"), "launch");
}

// Errors name the parameter that the user typed, not the flag that it became.
TEST_F(MpirunTest, AWayToHostsHasTheNameThatWasTyped) {
  const auto translation =
      Translate(std::vector<std::string>{"--mca", "plm_rsh_args", "-p 2222", "a"});
  ASSERT_TRUE(translation.ok());
  cli::LaunchOptions options;
  BeforeHosts(*translation, options);
  EXPECT_EQ(options.host_flag, "");
  options.host_flag = "--ssh-port";
  BeforeHosts(*translation, options);
  EXPECT_EQ(options.host_flag, "--mca plm_rsh_args");
}

TEST_F(MpirunTest, VariablesAndParameters) {
  surroundings_.environment = {"LD_LIBRARY_PATH=/l", "PATH=/bin", "EMPTY="};
  EXPECT_EQ(Words("-x A=1 -x PATH -x EMPTY -env B 2 -env C=3 -genvlist PATH,NONE a"),
            "launch --export A=1 --export PATH --export EMPTY --export B=2 --export C=3 "
            "--export PATH --tag-output none -- a");
  EXPECT_THAT(Translate("-x NONE a")->notes, ElementsAre(HasSubstr("-x NONE ignored")));
  EXPECT_EQ(Words("-mca pml ob1 --mca btl ^openib a"),
            "launch --tag-output none --export OMPI_MCA_pml=ob1 --export OMPI_MCA_btl=^openib -- "
            "a");
  EXPECT_EQ(absl::StrJoin(LaunchWords(*Translate(
                              std::vector<std::string>{"-mca", "plm_rsh_args", "-p 12345", "a"})),
                          " "),
            "launch --ssh-port 12345 --tag-output none --export OMPI_MCA_plm_rsh_args=-p 12345 -- "
            "a");
  EXPECT_EQ(Words("--mca btl_tcp_if_include eth1 a"),
            "launch --net eth1 --tag-output none --export OMPI_MCA_btl_tcp_if_include=eth1 -- a");
  EXPECT_EQ(Words("--mca odls_base_sigkill_timeout 7 a"),
            "launch --grace 7 --tag-output none --export OMPI_MCA_odls_base_sigkill_timeout=7 -- "
            "a");
  EXPECT_THAT(Words("--mca pml"), HasSubstr("--mca needs more: --mca KEY VALUE"));
}

// A second between TERM and KILL is mpirun's, unless the user says something else anywhere.
TEST_F(MpirunTest, TheGraceIsItsOwn) {
  const auto translation = Translate("a");
  ASSERT_TRUE(translation.ok());
  cli::LaunchOptions options;
  BeforeHosts(*translation, options);
  EXPECT_EQ(options.job.grace, std::chrono::seconds(1));
  options.grace_asked = true;
  options.job.grace = std::chrono::seconds(30);
  BeforeHosts(*translation, options);
  EXPECT_EQ(options.job.grace, std::chrono::seconds(30));
}

TEST_F(MpirunTest, SeveralProgramsAreOneJob) {
  EXPECT_EQ(Words("-np 1 -x A=1 -mca btl tcp a 1 : -np 2 -wdir /d -genv G 1 b : -np 3 c"),
            "launch --np 1 --export A=1 --tag-output none --export OMPI_MCA_btl=tcp --export G=1 "
            "a 1 : --np 2 --wdir /d --export OMPI_MCA_btl=tcp --export G=1 b : --np 3 --export "
            "OMPI_MCA_btl=tcp --export G=1 c");
  // Scripts put a ':' behind each.
  EXPECT_EQ(Words("-np 1 a : -np 2 b :"), "launch --np 1 --tag-output none a : --np 2 b");
  EXPECT_EQ(Words(": -np 1 a :"), "launch --np 1 --tag-output none -- a");
  // What the first says of the job may be said again.
  EXPECT_EQ(Words("-np 1 --hostfile h -bind-to none -v a : -np 1 --hostfile h -v -bind-to none b"),
            "launch --np 1 --hostfile h --verbose --bind none --tag-output none a : --np 1 b");
  EXPECT_EQ(Words("-np 1 --hostfile h -N 1 a : -np 1 --hostfile i -N 1 b"),
            "launch --np 1 --hostfile h --ppn 1 --tag-output none a : --np 1 --hostfile i --ppn 1 "
            "b");
  for (const char* none : {"", ":", "-np 1", "-np 1 a : -np 2"}) {
    EXPECT_THAT(Words(none), HasSubstr("no program to run")) << none;
  }
}

TEST_F(MpirunTest, Output) {
  EXPECT_EQ(Words("--tag-output --timestamp-output -output-filename d --stdin all -q a"),
            "launch --timestamps --stdin all --quiet --output d/1/rank.%R/%s --tag-output rank -- "
            "a");
  EXPECT_EQ(Words("-l a"), "launch --tag-output rank -- a");
  EXPECT_EQ(Words("-output-filename 50% a"),
            "launch --output 50%%/1/rank.%R/%s --tag-output none -- a");
  EXPECT_EQ(Words("--output file=50% a"), "launch --output 50%%.%r --tag-output none -- a");
  for (const char* verbose : {"-v", "-vv", "-vvv"}) {
    EXPECT_EQ(Words(absl::StrCat(verbose, " a")), "launch --verbose --tag-output none -- a");
  }
  // Open MPI 5
  EXPECT_EQ(Words("--output tag -np 2 a"), "launch --np 2 --tag-output rank -- a");
  EXPECT_EQ(Words("-output TAG-DETAILED,timestamp,dir=/D a"),
            "launch --timestamps --output /D/1/rank.%R/%s --tag-output rank -- a");
  EXPECT_EQ(Words("--output=file=out a"), "launch --output out.%r --tag-output none -- a");
  EXPECT_EQ(Words("--output logs/%r-%s a"), "launch --output logs/%r-%s --tag-output none -- a");
  EXPECT_EQ(Words("--output dir=d:nocopy,xml a"),
            "launch --output d/1/rank.%R/%s --tag-output none -- a");
  EXPECT_THAT(Translate("--output dir=d:nocopy,xml a")->notes,
              ElementsAre(HasSubstr("--output nocopy ignored"), HasSubstr("--output xml ignored")));
  EXPECT_EQ(Words("--timeout 60 --report-bindings --do-not-launch a"),
            "launch --timeout 60 --verbose --dry-run --tag-output none -- a");
  EXPECT_EQ(Words("--display map,bind a"), "launch --verbose --tag-output none -- a");
}

TEST_F(MpirunTest, WhatIsOpenMpisOwnIsAcceptedOrRefusedByName) {
  const auto accepted =
      Translate("--allow-run-as-root --prefix /opt/ompi -d --debug-daemons -personality x a");
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_THAT(accepted->notes, IsEmpty());
  for (const char* flag : {"--preload-binary", "--enable-recovery", "--xterm", "--debug", "--dvm x",
                           "--app f", "--ompi-server u", "--preload-files f"}) {
    EXPECT_THAT(Words(std::string(flag) + " a"), HasSubstr("is not supported: ")) << flag;
  }
  EXPECT_THAT(Words("--hostfil x a"), HasSubstr("did you mean --hostfile?"));
  EXPECT_EQ(Words("--lease 9s --oversubscribe a"),
            "launch --lease 9s --oversubscribe --tag-output none -- a");
}

TEST_F(MpirunTest, MpiexecIsTheSame) {
  EXPECT_EQ(Find("mpiexec")->name, "mpiexec");
  EXPECT_TRUE(
      kMpiexec.translate({"-n", "8", "--hostfile", "h", "python", "x.py"}, surroundings_).ok());
}

}  // namespace
}  // namespace dtrain::faces
