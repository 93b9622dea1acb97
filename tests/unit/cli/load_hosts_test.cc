// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "launcher/cli/options.h"

namespace dtrain::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class LoadHostsTest : public testing::Test {
 protected:
  LoadHostsTest() {
    surroundings_.read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      auto it = files_.find(path);
      if (it == files_.end()) {
        return absl::NotFoundError(absl::StrCat("open ", path, ": No such file or directory"));
      }
      return it->second;
    };
  }
  std::string Error() {
    absl::Status status = LoadHosts(options_, surroundings_);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  LaunchOptions options_;
  Surroundings surroundings_;
  std::map<std::string, std::string> files_;
};

TEST_F(LoadHostsTest, ReadsTheHostfile) {
  options_.hostfile = "hosts";
  files_["hosts"] = "node1 slots=4\nnode2\n";
  ASSERT_EQ(Error(), "");
  ASSERT_EQ(options_.hosts.entries.size(), 2u);
  EXPECT_EQ(options_.hosts.entries[1].host, "node2");
  EXPECT_FALSE(options_.local);
}

// A1, A2
TEST_F(LoadHostsTest, AHostfileThatIsMissingOrEmptyIsAnErrorWithItsName) {
  options_.hostfile = "hosts";
  EXPECT_THAT(Error(), HasSubstr("--hostfile: open hosts: No such file or directory"));
  files_["hosts"] = "# none\n";
  EXPECT_THAT(Error(), HasSubstr("no hosts in hosts"));
}

TEST_F(LoadHostsTest, TakesTheHostsOfTheCommandLine) {
  options_.host_list = "a:4,b:4";
  ASSERT_EQ(Error(), "");
  EXPECT_EQ(options_.hosts.entries[0].slots, 4u);
  options_.host_list = "-oProxyCommand=x";
  EXPECT_NE(Error(), "");
}

// A4: also where another command than ssh gets the name, which might be a shell.
TEST_F(LoadHostsTest, ADangerousNameIsRefusedWhateverReachesIt) {
  for (const char* name : {"a;touch /root/work/pwned", "$(touch /root/work/pwned)",
                           "`touch /root/work/pwned`", "a\x1b[31m",
                           "n\xD0\xBE"
                           "de0",
                           "a|b", "a&b", "a'b", "a\"b", "a\\b", "us;er@node0", "-l@node0",
                           "-oProxyCommand=touch /root/work/pwned"}) {
    for (const char* rsh : {"", "sh -c {host}"}) {
      options_.transport.rsh = rsh;
      options_.host_list = name;
      EXPECT_THAT(Error(), HasSubstr("--hosts, column ")) << name;
      EXPECT_THAT(Error(), Not(HasSubstr("\x1b")));
    }
  }
}

TEST_F(LoadHostsTest, WithoutHostsItIsThisMachineAndRoomForAllRanks) {
  options_.job.plan.ranks = 64;
  ASSERT_EQ(Error(), "");
  EXPECT_TRUE(options_.local);
  ASSERT_EQ(options_.hosts.entries.size(), 1u);
  EXPECT_EQ(options_.hosts.entries[0].slots, 64u);
}

TEST_F(LoadHostsTest, WithoutRanksThisMachineSaysHowManyItTakes) {
  ASSERT_EQ(Error(), "");
  EXPECT_FALSE(options_.hosts.entries[0].slots.has_value());
}

TEST_F(LoadHostsTest, AFlagThatMeansHostsIsAnErrorWithoutAny) {
  options_.host_flag = "--ssh-port";
  EXPECT_THAT(Error(), HasSubstr("--ssh-port is given but no hosts"));
  options_.host_list = "a:4";
  EXPECT_EQ(Error(), "");
  options_.host_list.clear();
  surroundings_.environment = {"SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=n[1-2]",
                               "SLURM_TASKS_PER_NODE=2(x2)"};
  EXPECT_EQ(Error(), "");
}

TEST_F(LoadHostsTest, InsideAnAllocationItsHostsAreUsed) {
  surroundings_.environment = {"SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=n[1-2]",
                               "SLURM_TASKS_PER_NODE=2(x2)"};
  ASSERT_EQ(Error(), "");
  EXPECT_FALSE(options_.local);
  EXPECT_EQ(options_.hosts.entries.size(), 2u);
  options_.local = true;  // -np -2
  ASSERT_EQ(Error(), "");
  EXPECT_EQ(options_.hosts.entries.size(), 1u);
}

// --agent tcp from the configuration file, or --ssh-port on the command line: the allocation's
// command would silently win.
TEST_F(LoadHostsTest, TheAllocationsCommandGivesWayToEveryOtherAnswer) {
  surroundings_.environment = {"SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=n[1-2]"};
  auto rsh = [&](auto set) {
    options_ = LaunchOptions();
    set(options_);
    EXPECT_EQ(Error(), "");
    return options_.transport.rsh;
  };
  EXPECT_THAT(rsh([](LaunchOptions&) {}), HasSubstr("srun"));
  EXPECT_EQ(rsh([](LaunchOptions& o) { o.transport.rsh = "ssh {host}"; }), "ssh {host}");
  EXPECT_EQ(rsh([](LaunchOptions& o) { o.transport.tcp = true; }), "");
  EXPECT_EQ(rsh([](LaunchOptions& o) { o.transport.ssh_config = "f"; }), "");
  EXPECT_EQ(rsh([](LaunchOptions& o) { o.transport.ssh_port = 2222; }), "");
  EXPECT_EQ(rsh([](LaunchOptions& o) { o.host_flag = "--agent"; }), "");
}

// `srun dtrain launch` refuses, unless the user says where.
TEST_F(LoadHostsTest, ACopyInAStepLaunchesOnlyWhatTheUserHasNamed) {
  surroundings_.environment = {"SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=n[1-2]",
                               "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=0"};
  EXPECT_THAT(Error(), HasSubstr("srun has started 2 copies of this command"));
  options_.local = true;  // -np -2
  EXPECT_EQ(Error(), "");
  options_.local = false;
  options_.host_list = "n1";
  EXPECT_EQ(Error(), "");
}

TEST_F(LoadHostsTest, InAnIndexedJobTheNumberOfNodesMakesTheList) {
  surroundings_.environment = {"JOB_COMPLETION_INDEX=0", "HOSTNAME=train-0"};
  files_["/etc/hosts"] = "10.0.0.1 train-0.peers.ml.svc.cluster.local train-0\n";
  ASSERT_EQ(Error(), "");
  EXPECT_TRUE(options_.local);
  options_ = LaunchOptions();
  options_.job.plan.nodes = 2;
  ASSERT_EQ(Error(), "");
  EXPECT_FALSE(options_.local);
  EXPECT_EQ(options_.hosts.entries.size(), 2u);
}

TEST_F(LoadHostsTest, ARangeOfNodesTakesTheHostsThatThereAre) {
  options_.host_list = "a,b,c";
  const auto nodes = [&](uint32_t least, uint32_t most, uint32_t spares) {
    options_.job.min_nodes = least;
    options_.job.plan.nodes = most;
    options_.spares = spares;
    EXPECT_EQ(Error(), "");
    return *options_.job.plan.nodes;
  };
  EXPECT_EQ(nodes(2, 8, 0), 3u);
  EXPECT_EQ(nodes(1, 2, 0), 2u);
  EXPECT_EQ(nodes(1, 8, 1), 2u);
  // Too few: the check of the numbers says so.
  EXPECT_EQ(nodes(4, 8, 0), 4u);
  EXPECT_EQ(nodes(2, 8, 5), 2u);
  EXPECT_EQ(nodes(0, 8, 0), 8u) << "-N 8 is eight hosts";
}

// A9
TEST_F(LoadHostsTest, ARankfileOfAnotherCountContradictsNp) {
  options_.host_list = "a:2";
  options_.rankfile = "ranks";
  files_["ranks"] = "rank 0=a\nrank 1=a\n";
  options_.job.plan.ranks = 3;
  EXPECT_THAT(Error(), HasSubstr("-np 3 and the rankfile ranks, which has 2 ranks, contradict"));
  options_.job.plan.ranks = 2;
  EXPECT_EQ(Error(), "");
  EXPECT_EQ(options_.job.plan.rankfile.size(), 2u);
}

TEST_F(LoadHostsTest, HostsAndGpusOfTheListAreChosen) {
  options_.host_list = "a:4,b:4,c:4";
  options_.include = "c:1,0@a";
  ASSERT_EQ(Error(), "");
  ASSERT_EQ(options_.hosts.entries.size(), 2u);
  EXPECT_EQ(options_.hosts.entries[0].host, "a");
  EXPECT_THAT(options_.hosts.entries[1].only_gpus, testing::ElementsAre(1, 0));
  EXPECT_FALSE(options_.hosts.entries[1].slots.has_value());
  options_.include.clear();
  options_.exclude = "a@b";
  ASSERT_EQ(Error(), "");
  EXPECT_EQ(options_.hosts.entries[0].host, "c");
  options_.exclude = "d";
  EXPECT_THAT(Error(), HasSubstr("--exclude, column 1: host is not in the host list: \"d\""));
}

TEST_F(LoadHostsTest, GpusOfThisMachineAreChosenWithoutAList) {
  options_.include = "localhost:0,1";
  ASSERT_EQ(Error(), "");
  EXPECT_TRUE(options_.local);
  EXPECT_THAT(options_.hosts.entries[0].only_gpus, testing::ElementsAre(0, 1));
  options_.include = "other:0";
  EXPECT_THAT(Error(),
              HasSubstr("host is not in the host list: \"other\"; its hosts are localhost"));
}

// `dtrain nodes` and others that launch nothing.
TEST_F(LoadHostsTest, CommandsThatOnlyAskTakeTheHostsOfEachSource) {
  surroundings_.environment = {"HOME=/home/me", "DTRAIN_AGENT_PORT=1234"};
  files_["/home/me/.config/dtrain/config.toml"] =
      "agent = \"tcp\"\nhostfile = \"all\"\nnp = -4\ntag-output = \"rank\"\n";
  files_["all"] = "node1\nnode2\n";
  auto options = ParseHosts({}, surroundings_);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->transport.tcp);
  EXPECT_EQ(options->transport.agent_port, 1234);
  auto hosts = ReadHosts(*options, surroundings_);
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_EQ(hosts->entries.size(), 2u);
  options = ParseHosts({"--hosts", "node3", "--agent", "ssh"}, surroundings_);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_FALSE(options->transport.tcp);
  hosts = ReadHosts(*options, surroundings_);
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  ASSERT_EQ(hosts->entries.size(), 1u);
  EXPECT_EQ(hosts->entries[0].host, "node3");
}

TEST_F(LoadHostsTest, CommandsThatOnlyAskNeedNoHosts) {
  auto options = ParseHosts({}, surroundings_);
  ASSERT_TRUE(options.ok()) << options.status();
  auto hosts = ReadHosts(*options, surroundings_);
  ASSERT_TRUE(hosts.ok());
  EXPECT_TRUE(hosts->entries.empty());
}

TEST_F(LoadHostsTest, MistakesOfCommandsThatOnlyAskAreNamed) {
  const auto bad = ParseHosts({"--connect-timeout", "soon"}, surroundings_);
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("--connect-timeout"));
  EXPECT_FALSE(ParseHosts({"--hostfile", "a", "--hosts", "b"}, surroundings_).ok());
  LaunchOptions missing;
  missing.hostfile = "nowhere";
  EXPECT_THAT(std::string(ReadHosts(missing, surroundings_).status().message()),
              HasSubstr("nowhere"));
}

}  // namespace
}  // namespace dtrain::cli
