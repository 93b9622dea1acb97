// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "launcher/cli/options.h"
#include "launcher/transport/words.h"

namespace dtrain::cli {
namespace {

using testing::HasSubstr;
using Strings = std::vector<std::string>;

class ParseTest : public testing::Test {
 protected:
  ParseTest() {
    surroundings_.working_directory = "/home/me/here";
    surroundings_.read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      auto it = files_.find(path);
      if (it == files_.end()) {
        return absl::NotFoundError(absl::StrCat("open ", path, ": No such file or directory"));
      }
      return it->second;
    };
  }

  absl::StatusOr<Command> Parse(Strings args) {
    args.insert(args.begin(), "launch");
    return ParseLaunch(args, surroundings_);
  }
  LaunchOptions Launch(Strings args) {
    absl::StatusOr<Command> command = Parse(std::move(args));
    EXPECT_TRUE(command.ok()) << command.status();
    if (!command.ok()) return {};
    EXPECT_EQ(command->help, "");
    return command->launch;
  }
  std::string Error(Strings args) {
    absl::StatusOr<Command> command = Parse(std::move(args));
    if (command.ok()) return "";
    EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(command.status().message());
  }

  Surroundings surroundings_;
  std::map<std::string, std::string> files_;
};

TEST_F(ParseTest, DefaultsAreThoseOfTheHelp) {
  LaunchOptions options = Launch({"./a.out"});
  EXPECT_FALSE(options.local);
  EXPECT_EQ(options.job.stdin_rank, "0");
  EXPECT_EQ(options.job.start_timeout, std::chrono::seconds(120));
  EXPECT_EQ(options.job.lease, std::chrono::seconds(15));
  EXPECT_EQ(options.job.grace, std::chrono::seconds(30));
  EXPECT_EQ(options.job.grace_limit, std::chrono::minutes(10));
  EXPECT_EQ(options.job.time_limit, Duration::zero());
  EXPECT_EQ(options.transport.connect_timeout, std::chrono::seconds(10));
  EXPECT_EQ(options.job.part.programs(0).working_directory(), "/home/me/here");
  EXPECT_EQ(options.job.part.spool_limit_bytes(), 256u << 20);
  EXPECT_FALSE(options.job.part.inherit_agent_env());
  EXPECT_FALSE(options.output.tag.has_value());
}

TEST_F(ParseTest, EveryFlagReachesItsPlace) {
  surroundings_.environment = {"HERE=1", "SECRET=s"};
  LaunchOptions o = Launch({"--hostfile",
                            "h",
                            "-np",
                            "16",
                            "--ppn",
                            "8",
                            "-N",
                            "2",
                            "--map-by",
                            "node",
                            "--oversubscribe",
                            "--gpus-per-rank",
                            "2",
                            "-x",
                            "SECRET",
                            "-x",
                            "A=1",
                            "--env",
                            "none",
                            "--wdir",
                            "sub",
                            "--ssh-config",
                            "cfg",
                            "--ssh-port",
                            "2222",
                            "--connect-timeout",
                            "3",
                            "--net",
                            "10.0.0.0/8",
                            "--tag-output",
                            "host",
                            "--timestamps",
                            "--no-fold",
                            "--log-dir",
                            "logs",
                            "--stdin",
                            "3",
                            "-v",
                            "--dry-run",
                            "--result-json",
                            "r.json",
                            "--start-timeout",
                            "1m",
                            "--wait",
                            "10m",
                            "--lease",
                            "20",
                            "--grace",
                            "500ms",
                            "--timeout",
                            "1h",
                            "--gpu-bind",
                            "rank",
                            "--bind",
                            "numa",
                            "--require-cgroup",
                            "--core-dumps",
                            "--agent-store",
                            "--spool-limit",
                            "1G",
                            "prog",
                            "-v"});
  EXPECT_EQ(o.hostfile, "h");
  EXPECT_EQ(o.job.plan.ranks, 16u);
  EXPECT_EQ(o.job.plan.ranks_per_node, 8u);
  EXPECT_EQ(o.job.plan.nodes, 2u);
  EXPECT_EQ(o.job.plan.map_by, plan::MapBy::kNode);
  EXPECT_TRUE(o.job.plan.oversubscribe);
  EXPECT_EQ(o.job.plan.gpus_per_rank, 2u);
  EXPECT_EQ(o.job.plan.gpu_bind, plan::GpuBind::kRank);
  EXPECT_EQ(o.job.plan.cpu_bind, plan::CpuBind::kNuma);
  EXPECT_EQ(o.job.net, "10.0.0.0/8");
  EXPECT_EQ(o.job.stdin_rank, "3");
  EXPECT_TRUE(o.job.dry_run);
  EXPECT_EQ(o.job.start_timeout, std::chrono::minutes(1));
  EXPECT_EQ(o.job.wait, std::chrono::minutes(10));
  EXPECT_EQ(o.job.lease, std::chrono::seconds(20));
  EXPECT_EQ(o.job.grace, std::chrono::milliseconds(500));
  EXPECT_EQ(o.job.time_limit, std::chrono::hours(1));
  EXPECT_EQ(o.transport.ssh_config, "cfg");
  EXPECT_EQ(o.transport.ssh_port, 2222);
  EXPECT_EQ(o.transport.connect_timeout, std::chrono::seconds(3));
  EXPECT_EQ(o.output.tag, output::Tag::kHost);
  EXPECT_TRUE(o.output.timestamps);
  EXPECT_FALSE(o.output.fold);
  EXPECT_EQ(o.output.log_dir, "logs");
  EXPECT_TRUE(o.verbose);
  EXPECT_EQ(o.result_json, "r.json");
  const v1::JobPart& part = o.job.part;
  EXPECT_EQ(part.spool_limit_bytes(), 1u << 30);
  EXPECT_TRUE(part.core_dumps());
  EXPECT_TRUE(part.agent_store());
  EXPECT_TRUE(part.require_cgroup());
  EXPECT_TRUE(part.inherit_agent_env());
  EXPECT_EQ(part.programs(0).working_directory(), "/home/me/here/sub");
  ASSERT_EQ(part.programs(0).argv_size(), 2);
  EXPECT_EQ(part.programs(0).argv(1), "-v");
  ASSERT_EQ(part.env_size(), 2);
  EXPECT_EQ(part.env(0).name(), "A");
  EXPECT_EQ(part.env(1).value(), "s");
  ASSERT_EQ(part.explicit_env_size(), 2);
}

TEST_F(ParseTest, ANegativeNumberOfRanksMeansThisMachine) {
  LaunchOptions options = Launch({"-np", "-4", "x"});
  EXPECT_TRUE(options.local);
  EXPECT_EQ(options.job.plan.ranks, 4u);
  EXPECT_THAT(Error({"-np", "-4", "-H", "a", "x"}),
              HasSubstr("--np and --hosts contradict each other"));
  EXPECT_THAT(Error({"-np", "-4", "--hostfile", "a", "x"}), HasSubstr("this machine only"));
}

TEST_F(ParseTest, PprSetsTheRanksOfEachNode) {
  LaunchOptions options = Launch({"--map-by", "ppr:4:node", "x"});
  EXPECT_EQ(options.job.plan.map_by, plan::MapBy::kPerNode);
  EXPECT_EQ(options.job.plan.ranks_per_node, 4u);
  EXPECT_THAT(Error({"--map-by", "ppr:4:node", "--ppn", "8", "x"}), HasSubstr("contradict"));
  EXPECT_THAT(Error({"--map-by", "ppr:4:socket", "x"}), HasSubstr("ppr:N:node"));
  EXPECT_THAT(Error({"--map-by", "core", "x"}), HasSubstr("\"core\" is not slot, node"));
}

TEST_F(ParseTest, Restarts) {
  const LaunchOptions none = Launch({"x"});
  EXPECT_EQ(none.restarts.max_restarts, 0U);
  const LaunchOptions all =
      Launch({"--max-restarts", "3", "-N", "2:4", "--spare", "1", "--restart-on", "failure,stall",
              "--backoff", "2s:5m", "--min-uptime", "10m", "--join-timeout", "1h",
              "--restart-window", "2h", "--no-restart-on", "2,64-78", "x"});
  EXPECT_EQ(all.restarts.max_restarts, 3U);
  EXPECT_EQ(all.job.plan.nodes, 4U);
  EXPECT_EQ(all.job.min_nodes, 2U);
  EXPECT_EQ(all.spares, 1U);
  EXPECT_TRUE(all.restarts.on_failure && all.restarts.on_stall);
  EXPECT_FALSE(all.restarts.on_node);
  EXPECT_EQ(all.restarts.backoff, std::chrono::seconds(2));
  EXPECT_EQ(all.restarts.longest_backoff, std::chrono::minutes(5));
  EXPECT_EQ(all.restarts.min_uptime, std::chrono::minutes(10));
  EXPECT_EQ(all.restarts.join_timeout, std::chrono::hours(1));
  EXPECT_EQ(all.restarts.restart_window, std::chrono::hours(2));
  EXPECT_THAT(all.restarts.never_on,
              testing::ElementsAre(testing::Pair(2, 2), testing::Pair(64, 78)));
  EXPECT_THAT(Error({"--no-restart-on", "oom", "x"}), HasSubstr("--no-restart-on: "));
  EXPECT_THAT(Error({"--no-restart-on", "300", "x"}), HasSubstr("--no-restart-on: "));
  EXPECT_EQ(Launch({"-N", "3:3", "x"}).job.min_nodes, 0U);
  // A pause longer than the longest is the longest.
  EXPECT_EQ(Launch({"--backoff", "5m", "x"}).restarts.longest_backoff, std::chrono::minutes(5));
  EXPECT_THAT(Error({"--restart-on", "luck", "x"}), HasSubstr("--restart-on: \"luck\" is not"));
  EXPECT_EQ(Launch({"--state-dir", "/scratch/me", "x"}).job.part.state().directory(),
            "/scratch/me");
  EXPECT_THAT(Error({"--state-dir", "here", "x"}), HasSubstr("--state-dir: an absolute path"));
  EXPECT_THAT(Error({"--backoff", "2s:1s", "x"}), HasSubstr("--backoff: "));
  EXPECT_THAT(Error({"--max-restarts", "x", "x"}), HasSubstr("--max-restarts"));
  for (const char* nodes : {"3:2", "0:2"}) {
    EXPECT_THAT(Error({"-N", nodes, "x"}), HasSubstr("--nnodes")) << nodes;
  }
}

TEST_F(ParseTest, ANumberOfNodesEndsTheRangeOfAWeakerSource) {
  surroundings_.environment = {"DTRAIN_NNODES=2:4"};
  EXPECT_EQ(Launch({"x"}).job.min_nodes, 2U);
  EXPECT_EQ(Launch({"-N", "3", "x"}).job.min_nodes, 0U);
  EXPECT_EQ(Launch({"-N", "3:5", "x"}).job.min_nodes, 3U);
  EXPECT_EQ(Launch({"--min-nodes", "1", "-N", "3", "x"}).job.min_nodes, 1U);
}

// A switch, or with a time behind "=": a word of its own is the command.
TEST_F(ParseTest, ScaleUp) {
  EXPECT_EQ(Launch({"x"}).restarts.scale_up, Duration::zero());
  EXPECT_EQ(Launch({"--scale-up", "x"}).restarts.scale_up, std::chrono::minutes(5));
  EXPECT_EQ(Launch({"--scale-up=90s", "x"}).restarts.scale_up, std::chrono::seconds(90));
  EXPECT_EQ(Launch({"--scale-up=90s", "--scale-up=false", "x"}).restarts.scale_up,
            Duration::zero());
  EXPECT_TRUE(Launch({"--scale-up", "x"}).scale_up_asked);
  EXPECT_THAT(Error({"--scale-up=soon", "x"}), HasSubstr("--scale-up: \"soon\" is not a time"));
  EXPECT_THAT(Error({"--scale-up=1ms", "x"}), HasSubstr("too short; it must be at least 1s"));
  surroundings_.environment.push_back("DTRAIN_SCALE_UP=2m");
  EXPECT_EQ(Launch({"x"}).restarts.scale_up, std::chrono::minutes(2));
  EXPECT_FALSE(Launch({"x"}).scale_up_asked);
}

// A5, A8
TEST_F(ParseTest, NumbersOutOfRangeNameTheirFlag) {
  EXPECT_THAT(Error({"-np", "0", "x"}), HasSubstr("--np: \"0\" is not a whole number"));
  EXPECT_THAT(Error({"-np", "-0", "x"}), HasSubstr("--np: "));
  EXPECT_THAT(Error({"-np", "99999999999999999999", "x"}), HasSubstr("--np: "));
  EXPECT_THAT(Error({"--ppn", "-1", "x"}), HasSubstr("--ppn: \"-1\""));
  EXPECT_THAT(Error({"-N", "4:1", "x"}), HasSubstr("--nnodes: \"1\" is not a whole number"));
  EXPECT_THAT(Error({"--ssh-port", "65536", "x"}), HasSubstr("--ssh-port: \"65536\""));
  for (const Strings& flags : std::vector<Strings>{{"--np", "99999999999"},
                                                   {"--np", "2x"},
                                                   {"--ppn", "0"},
                                                   {"--nnodes", "0"},
                                                   {"--nnodes", "-3"},
                                                   {"--gpus-per-rank", "-1"}}) {
    EXPECT_THAT(Error({flags[0], flags[1], "x"}),
                HasSubstr(absl::StrCat(flags[0], ": \"", flags[1], "\" is not")));
  }
  EXPECT_THAT(Error({"--ppn", "4294967295", "-N", "4294967295", "x"}),
              HasSubstr("\"4294967295\" is not"));
  for (const char* port : {"", "0", "-1", "65536000000", "1e20", "8x", "0x4", "4.0"}) {
    EXPECT_THAT(Error({absl::StrCat("--ssh-port=", port), "x"}),
                HasSubstr(absl::StrCat("--ssh-port: \"", port, "\" is not")));
  }
  EXPECT_THAT(Error({"--lease", "10ms", "x"}), HasSubstr("must be at least 1s"));
  EXPECT_THAT(Error({"--spool-limit", "1", "x"}), HasSubstr("at least 1M"));
}

// A9
TEST_F(ParseTest, ContradictionsAreRefused) {
  EXPECT_THAT(Error({"-H", "a", "--hostfile", "f", "x"}),
              HasSubstr("--hostfile and --hosts contradict each other; give one of the two"));
  EXPECT_THAT(Error({"--hostfile", "/dev/null", "-H", "a", "x"}), HasSubstr("contradict"));
  EXPECT_THAT(Error({"-np", "-2", "-H", "a:2", "x"}), HasSubstr("contradict"));
  EXPECT_THAT(Error({"--ppn", "2", "--map-by", "ppr:1:node", "-H", "a:2", "x"}),
              HasSubstr("contradict"));
  EXPECT_THAT(Error({"-q", "-v", "x"}), HasSubstr("contradict"));
  EXPECT_THAT(Error({"--rsh", "r {host}", "--ssh-port", "1", "x"}), HasSubstr("contradict"));
  EXPECT_THAT(Error({"--rankfile", "f", "--ppn", "2", "x"}), HasSubstr("contradict"));
}

// A9
TEST_F(ParseTest, ErrorsAreShortAndPointToTheHelp) {
  std::string error = Error({"--hostfle", "f", "x"});
  EXPECT_EQ(error, "unknown flag --hostfle; did you mean --hostfile?\nSee dtrain launch --help");
  EXPECT_THAT(Error({"--hostfil", "f", "x"}), HasSubstr("did you mean --hostfile?"));
  EXPECT_THAT(Error({"--tag-outptu", "rank", "x"}), HasSubstr("did you mean --tag-output?"));
  EXPECT_THAT(Error({"-np", "4"}), HasSubstr("no command to run"));
  EXPECT_THAT(Error({"-np", "4", "--", ""}), HasSubstr("the command's name is empty"));
  EXPECT_THAT(Error({"--tag-output", "all", "x"}),
              HasSubstr("--tag-output: \"all\" is not none, rank or host"));
}

TEST_F(ParseTest, ADryRunNeedsNoCommand) { EXPECT_TRUE(Launch({"--dry-run"}).job.dry_run); }

TEST_F(ParseTest, VariablesAreFlagsAndTheCommandLineIsStronger) {
  surroundings_.environment = {"DTRAIN_NP=8", "DTRAIN_OVERSUBSCRIBE=1", "DTRAIN_LEASE=30",
                               "DTRAIN_EXPORT=A=1,B=2", "DTRAIN_QUIET="};
  LaunchOptions options = Launch({"-np", "2", "-x", "B=3", "x"});
  EXPECT_EQ(options.job.plan.ranks, 2u);
  EXPECT_TRUE(options.job.plan.oversubscribe);
  EXPECT_FALSE(options.quiet);
  EXPECT_EQ(options.job.lease, std::chrono::seconds(30));
  ASSERT_EQ(options.job.part.env_size(), 2);
  EXPECT_EQ(options.job.part.env(1).value(), "3");
  EXPECT_FALSE(Launch({"--oversubscribe=false", "x"}).job.plan.oversubscribe);
  surroundings_.environment = {"DTRAIN_EXPORT=A=1,2\nB=3\n", "DTRAIN_ENV=none"};
  options = Launch({"x"});
  ASSERT_EQ(options.job.part.env_size(), 2);
  EXPECT_EQ(options.job.part.env(0).value(), "1,2");
  surroundings_.environment = {"DTRAIN_EXPORT=A=1,B=2\n"};
  options = Launch({"x"});
  ASSERT_EQ(options.job.part.env_size(), 2) << "the only line's end says nothing";
  EXPECT_EQ(options.job.part.env(0).value(), "1");
  surroundings_.environment = {"DTRAIN_EXPORT=\nA=1,2", "DTRAIN_ENV=none"};
  options = Launch({"x"});
  ASSERT_EQ(options.job.part.env_size(), 1);
  EXPECT_EQ(options.job.part.env(0).value(), "1,2");
  surroundings_.environment = {"DTRAIN_NP=many"};
  EXPECT_THAT(Error({"x"}), HasSubstr("DTRAIN_NP: \"many\" is not"));
}

TEST_F(ParseTest, TheVariableOfAnMpsServerIsNoted) {
  EXPECT_FALSE(Launch({"x"}).job.plan.mps);
  EXPECT_TRUE(Launch({"-x", "CUDA_MPS_PIPE_DIRECTORY=/run/mps", "x"}).job.plan.mps);
  surroundings_.environment = {"CUDA_MPS_PIPE_DIRECTORY=/run/mps"};
  EXPECT_TRUE(Launch({"x"}).job.plan.mps);
}

TEST_F(ParseTest, AWorkersOwnVariablesAreNotFlags) {
  surroundings_.environment = {"DTRAIN_RANK=3", "DTRAIN_WORLD_SIZE=4", "DTRAIN_JOB_ID=x",
                               "DTRAIN_LOCAL_RANK=1", "DTRAIN_NODE_RANK=1"};
  LaunchOptions options = Launch({"x"});
  EXPECT_FALSE(options.job.plan.ranks.has_value());
  EXPECT_FALSE(options.local);
}

TEST_F(ParseTest, AStrongerSourceWinsAContradiction) {
  surroundings_.environment = {"DTRAIN_HOSTFILE=f", "DTRAIN_VERBOSE=1"};
  LaunchOptions options = Launch({"-H", "a:2", "-q", "x"});
  EXPECT_EQ(options.hostfile, "");
  EXPECT_EQ(options.host_list, "a:2");
  EXPECT_FALSE(options.verbose);
  EXPECT_TRUE(Launch({"-np", "-2", "x"}).local);
}

TEST_F(ParseTest, TheConfigurationFileIsTheWeakestSource) {
  files_["/home/me/.config/dtrain/config.toml"] =
      "# site defaults\nlease = \"40s\"\n[launch]\nhostfile = \"/etc/hosts of mine\"\n"
      "oversubscribe = true\nexport = [\"A=1\", \"B=2\"]\ngrace = 7\n"
      "rsh = \"kubectl exec -i {host} --\"\n[history]\njobs = 1\n";
  surroundings_.environment = {"HOME=/home/me", "DTRAIN_GRACE=8"};
  LaunchOptions options = Launch({"x"});
  EXPECT_EQ(options.job.lease, std::chrono::seconds(40));
  EXPECT_EQ(options.hostfile, "/etc/hosts of mine");
  EXPECT_TRUE(options.job.plan.oversubscribe);
  EXPECT_EQ(options.job.grace, std::chrono::seconds(8));
  EXPECT_EQ(options.transport.rsh, "kubectl exec -i {host} --");
  EXPECT_EQ(options.job.part.env_size(), 2);
  EXPECT_EQ(Launch({"--no-config", "x"}).hostfile, "");
  surroundings_.environment.push_back("XDG_CONFIG_HOME=/nowhere");
  EXPECT_EQ(Launch({"x"}).hostfile, "");
}

TEST_F(ParseTest, AVariableThatWasMeantForAFlagIsNamed) {
  Strings warnings;
  surroundings_.warn = [&](const std::string& warning) { warnings.push_back(warning); };
  surroundings_.environment = {"DTRAIN_MAX_RESTART=3",  "DTRAIN_HOSTFLE=hosts", "DTRAIN_HOST=node1",
                               "DTRAIN_MAX_RESTARTS=2", "DTRAIN_DATASET=c4",    "DTRAIN_JOB_ID=x",
                               "MAX_RESTART=1"};
  (void)Parse({"x"});
  EXPECT_EQ(
      warnings,
      Strings({"DTRAIN_MAX_RESTART means nothing to dtrain; did you mean DTRAIN_MAX_RESTARTS?",
               "DTRAIN_HOSTFLE means nothing to dtrain; did you mean DTRAIN_HOSTFILE?"}));
}

// As after sudo -E.
TEST_F(ParseTest, TheUsualConfigurationFileIsIgnoredIfAnotherUserCanHaveWrittenIt) {
  const std::string path = "/home/me/.config/dtrain/config.toml";
  files_[path] = "rsh = \"mine {host}\"\n";
  surroundings_.environment = {"HOME=/home/me"};
  Strings checked, warnings;
  surroundings_.check = [&](const std::string& file) {
    checked.push_back(file);
    return absl::PermissionDeniedError("/home/me/.config belongs to user id 7");
  };
  EXPECT_EQ(Launch({"x"}).transport.rsh, "");  // nobody need be warned
  surroundings_.warn = [&](const std::string& warning) { warnings.push_back(warning); };
  EXPECT_EQ(Launch({"x"}).transport.rsh, "");
  EXPECT_EQ(checked, Strings({path, path}));
  EXPECT_EQ(
      warnings,
      Strings{"the configuration file is ignored: /home/me/.config belongs to user id 7; to use "
              "it nevertheless, name it with --config"});
  // What was named is the user's choice.
  EXPECT_EQ(Launch({"--config", path, "x"}).transport.rsh, "mine {host}");
  EXPECT_EQ(Launch({"--no-config", "x"}).transport.rsh, "");
  surroundings_.environment.push_back("DTRAIN_CONFIG=" + path);
  EXPECT_EQ(Launch({"x"}).transport.rsh, "mine {host}");
  surroundings_.environment.pop_back();
  EXPECT_EQ(checked.size(), 2u);
  EXPECT_EQ(warnings.size(), 1u);

  surroundings_.check = [](const std::string&) { return absl::NotFoundError(""); };
  EXPECT_EQ(Launch({"x"}).transport.rsh, "") << "it came after it was looked for";
  surroundings_.check = [](const std::string&) { return absl::OkStatus(); };
  EXPECT_EQ(Launch({"x"}).transport.rsh, "mine {host}");
  EXPECT_EQ(warnings.size(), 1u);
}

TEST_F(ParseTest, AConfigurationFileThatWasNamedMustBeThereAndRight) {
  EXPECT_THAT(Error({"--config", "/c", "x"}), HasSubstr("open /c: No such file"));
  files_["/c"] = "[launch]\nhostfle = \"f\"\n";
  EXPECT_THAT(Error({"--config", "/c", "x"}),
              HasSubstr("/c:2: unknown key hostfle; did you mean hostfile?"));
  files_["/c"] = "[launch]\nlease = \"soon\"\n";
  EXPECT_THAT(Error({"--config", "/c", "x"}), HasSubstr("lease in /c:2: \"soon\" is not a time"));
  files_["/c"] = "lease = 20\n[lanuch]\nlease = 30\n";
  EXPECT_THAT(Error({"--config", "/c", "x"}),
              HasSubstr("/c:3: unknown section [lanuch] of lease; did you mean [launch]?"));
  files_["/c"] = "np = 2\n[launch]\nnum-proc = 4\n";
  EXPECT_THAT(Error({"--config", "/c", "x"}),
              HasSubstr("/c:3: num-proc is given twice; it stands at /c:1, too"));
  surroundings_.environment = {"DTRAIN_CONFIG=/missing"};
  EXPECT_THAT(Error({"x"}), HasSubstr("/missing"));
}

// A17
TEST_F(ParseTest, AConfigurationFileWithOneBadLineIsRefusedAsAWhole) {
  for (const auto& [text, place] :
       std::map<std::string, std::string>{{"np = \"many\"\n", "/c:2"},
                                          {"no-such-flag = 1\n", "/c:2"},
                                          {"tag-output = \"loud\"\n", "/c:2"},
                                          {"[[[", "/c:2"}}) {
    files_["/c"] = "# mine\n" + text;
    EXPECT_THAT(Error({"--config", "/c", "-H", "a:1", "x"}), HasSubstr(place)) << text;
  }
}

TEST_F(ParseTest, AFlagThatMeansHostsIsRememberedWhenThisCommandHasIt) {
  EXPECT_EQ(Launch({"--rsh", "on {host}", "x"}).host_flag, "--rsh");
  EXPECT_EQ(Launch({"--ssh-port", "2222", "x"}).host_flag, "--ssh-port");
  EXPECT_EQ(Launch({"--ssh-config", "c", "x"}).host_flag, "--ssh-config");
  EXPECT_EQ(Launch({"x"}).host_flag, "");
  surroundings_.environment = {"DTRAIN_RSH=on {host}"};
  EXPECT_EQ(Launch({"x"}).host_flag, "");
  EXPECT_THAT(Error({"-np", "-2", "--ssh-port", "22", "x"}), HasSubstr("this machine only"));
}

TEST_F(ParseTest, TheWorkingDirectoryIsOursUnlessGiven) {
  EXPECT_EQ(Launch({"--wdir", "/abs", "x"}).job.part.programs(0).working_directory(), "/abs");
  surroundings_.working_directory = "";
  EXPECT_THAT(Error({"x"}), HasSubstr("give --wdir with a full path"));
  EXPECT_EQ(Launch({"--wdir", "/abs", "x"}).job.part.programs(0).working_directory(), "/abs");
}

// A19
// From any of the sources.
TEST_F(ParseTest, FilesAreNamedFullyForALauncherThatIsElsewhere) {
  files_["c.toml"] = "[launch]\nlog-dir = \"logs\"\nresult-json = \"out/r.json\"\n";
  surroundings_.environment = {"DTRAIN_TIMELINE=t.json"};
  LaunchOptions options =
      Launch({"--config", "c.toml", "--ssh-config", "sc", "--tls-dir", "/etc/tls", "x"});
  NameFilesFully(options);
  EXPECT_EQ(options.output.log_dir, "/home/me/here/logs");
  EXPECT_EQ(options.result_json, "/home/me/here/out/r.json");
  EXPECT_EQ(options.timeline, "/home/me/here/t.json");
  EXPECT_EQ(options.transport.ssh_config, "/home/me/here/sc");
  EXPECT_EQ(options.transport.tls_directory, "/etc/tls");
  for (const auto& [pattern, folder] :
       {std::pair("o/%r.log", "/home/me/here/o"), std::pair("%r.log", "/home/me/here"),
        std::pair("/o/%r.log", "/o")}) {
    options = Launch({"--output", pattern, "x"});
    NameFilesFully(options);
    EXPECT_EQ(options.output.files->folder(), folder);
  }
  surroundings_.working_directory = "/home/o'me/a b";
  for (const auto& [rsh, program] :
       {std::pair("./rsh {host}", "/home/o'me/a b/./rsh"),
        std::pair(" 'my bin/rsh'", "/home/o'me/a b/my bin/rsh"), std::pair("ssh ./x", "ssh"),
        std::pair("/bin/rsh", "/bin/rsh")}) {
    options = Launch({"-H", "a", "--rsh", rsh, "x"});
    NameFilesFully(options);
    EXPECT_EQ(transport::SplitWords(options.transport.rsh)->front(), program);
  }
  options = Launch({"x"});
  NameFilesFully(options);
  EXPECT_EQ(options.result_json, "");
  EXPECT_EQ(options.transport.ssh_config, "");
}

TEST_F(ParseTest, OddTextIsShownEscaped) {
  EXPECT_THAT(Error({"--\x1b]0;evil\x07", "x"}), HasSubstr("--\\x1b]0;evil\\x07"));
  EXPECT_THAT(Error({"--net", "eth0;rm", "x"}), HasSubstr("\"eth0;rm\" is neither a network"));
}

TEST_F(ParseTest, TheHelpShowsTheGroupsInOrder) {
  absl::StatusOr<Command> command = Parse({"-np", "4", "--help-all"});
  ASSERT_TRUE(command.ok());
  size_t at = 0;
  for (const char* group : {"Where:", "How many:", "Environment:", "Reaching hosts:", "Output:",
                            "Binding:", "Time and failure:"}) {
    size_t next = command->help.find(group);
    ASSERT_NE(next, std::string::npos) << group;
    EXPECT_GT(next, at);
    at = next;
  }
}

TEST_F(ParseTest, TheHelpShowsWhatFlagsTake) {
  const absl::StatusOr<Command> command = Parse({"--help-all"});
  ASSERT_TRUE(command.ok());
  for (const char* flag : {"--timeout TIME ", "--status-listen [IP:]PORT ", "--scale-up[=TIME] ",
                           "--launcher-on [USER@]HOST ", "--keep  "}) {
    EXPECT_THAT(command->help, HasSubstr(absl::StrCat("  ", flag)));
  }
}

TEST_F(ParseTest, SeveralProgramsAreOneJob) {
  surroundings_.environment = {"HERE=1", "SECRET=s", "DTRAIN_EXPORT=ALL=1"};
  const LaunchOptions options =
      Launch({"-np", "2", "-x", "A=1", "--gpus-per-rank", "0", "ps", "x", ":", "-np", "4", "-x",
              "B=2", "--wdir", "/data", "--gpus-per-rank=2", "train", "-np", "9"});
  const plan::PlanOptions& plan = options.job.plan;
  EXPECT_EQ(plan.ranks, 6u);
  EXPECT_EQ(plan.gpus_per_rank, 2u);
  ASSERT_EQ(plan.programs.size(), 2u);
  EXPECT_EQ(plan.programs[0].ranks, 2u);
  EXPECT_EQ(plan.programs[0].gpus_per_rank, 0u);
  EXPECT_EQ(plan.programs[1].gpus_per_rank, 2u);
  const v1::JobPart& part = options.job.part;
  ASSERT_EQ(part.programs_size(), 2);
  EXPECT_EQ(part.programs(0).working_directory(), "/home/me/here");
  EXPECT_EQ(part.programs(1).working_directory(), "/data");
  EXPECT_THAT(part.programs(1).argv(), testing::ElementsAre("train", "-np", "9"));
  ASSERT_EQ(part.programs(0).env_size(), 1);
  EXPECT_EQ(part.programs(0).env(0).name(), "A");
  ASSERT_EQ(part.programs(1).env_size(), 1);
  EXPECT_EQ(part.programs(1).env(0).name(), "B");
  EXPECT_THAT(part.programs(1).explicit_env(), testing::ElementsAre("B"));
  EXPECT_THAT(part.explicit_env(), testing::ElementsAre("ALL"));
}

TEST_F(ParseTest, ProgramsMayHaveHostsOfTheirOwn) {
  const LaunchOptions options =
      Launch({"-H", "a:2", "-np", "1", "x", ":", "-np", "2", "-H", "b,c:3", "y"});
  EXPECT_EQ(options.host_list, "a:2,b,c:3");
  EXPECT_THAT(options.job.plan.programs[0].hosts, testing::ElementsAre("a"));
  EXPECT_THAT(options.job.plan.programs[1].hosts, testing::ElementsAre("b", "c"));
  EXPECT_TRUE(Launch({"-H", "a,b", "-np", "1", "x", ":", "-np", "2", "y"})
                  .job.plan.programs[0]
                  .hosts.empty());
  EXPECT_THAT(Error({"-np", "1", "x", ":", "-np", "2", "-H", "b", "y"}),
              HasSubstr("give its hosts as well"));
}

TEST_F(ParseTest, ProgramsWithoutWhatTheyNeedAreRejected) {
  EXPECT_THAT(Error({"x", ":", "-np", "2", "y"}), HasSubstr("program 1: give the ranks"));
  EXPECT_THAT(Error({"-np", "1", "x", ":", "y"}), HasSubstr("program 2: give the ranks"));
  EXPECT_THAT(Error({"-np", "1", "x", ":", "-np", "2"}), HasSubstr("program 2: no command"));
  EXPECT_THAT(Error({"-np", "-1", "x", ":", "-np", "2", "y"}), HasSubstr("negative"));
  EXPECT_THAT(Error({"-np", "1", "x", ":", "-np", "0", "y"}), HasSubstr("program 2: --np"));
  EXPECT_THAT(Error({"-np", "1", "x", ":", "-np", "1", "--lease", "3", "y"}),
              HasSubstr("before the first program"));
  EXPECT_THAT(Error({"-np", "1000000", "x", ":", "-np", "1000000", "y"}),
              HasSubstr("2000000 ranks"));
}

TEST_F(ParseTest, RanksPerNodeMayBeCountedThere) {
  EXPECT_EQ(Launch({"--ppn", "gpu", "x"}).job.plan.per_node, plan::PerNode::kGpus);
  EXPECT_EQ(Launch({"--nproc-per-node=auto", "x"}).job.plan.per_node, plan::PerNode::kAuto);
  const plan::PlanOptions last = Launch({"--ppn", "cpu", "--ppn", "3", "x"}).job.plan;
  EXPECT_FALSE(last.per_node);
  EXPECT_EQ(last.ranks_per_node, 3u);
  EXPECT_THAT(Error({"--ppn", "xpu", "x"}), HasSubstr("gpu, cpu or auto"));
  EXPECT_THAT(Error({"--ppn", "gpu", "--map-by", "ppr:2:node", "x"}), HasSubstr("contradict"));
}

TEST_F(ParseTest, ContractsAreChosenByName) {
  const auto contracts = [this](Strings args) {
    args.push_back("x");
    std::vector<int> out;
    const LaunchOptions options = Launch(args);
    for (const int contract : options.job.part.contracts()) out.push_back(contract);
    return out;
  };
  EXPECT_EQ(contracts({}).size(), 5u);
  EXPECT_EQ(contracts({"--contract", "auto"}), contracts({}));
  EXPECT_TRUE(contracts({"--contract", "none"}).empty());
  EXPECT_EQ(contracts({"--contract", "torch,torchrun-agent"}),
            (std::vector<int>{v1::CONTRACT_TORCH, v1::CONTRACT_TORCHRUN_AGENT}));
  EXPECT_EQ(
      contracts({"--contract=none", "--emulate", "sagemaker,slurm", "--tf-config=worker"}),
      (std::vector<int>{v1::CONTRACT_SAGEMAKER, v1::CONTRACT_SLURM, v1::CONTRACT_TENSORFLOW}));
  for (const char* bad : {"x", "", "torch,none", "none,torch", "torch,"}) {
    EXPECT_THAT(Error({"--contract", bad, "x"}), HasSubstr("--contract: ")) << bad;
  }
  EXPECT_THAT(Error({"--emulate", "pbs", "x"}), HasSubstr("is not slurm or sagemaker"));
  EXPECT_THAT(Error({"--tf-config", "chief:3", "x"}), HasSubstr("--tf-config: there is at most"));
}

}  // namespace
}  // namespace dtrain::cli
