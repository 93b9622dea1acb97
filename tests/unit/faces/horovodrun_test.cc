// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/faces/face.h"
#include "launcher/faces/horovod_knobs.h"

namespace dtrain::faces {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HorovodrunTest : public ::testing::Test {
 public:
  HorovodrunTest() {
    surroundings_.working_directory = "/home/me";
    surroundings_.read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      const auto it = files_.find(path);
      if (it == files_.end()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
      return it->second;
    };
  }

  // Words by blanks.
  absl::StatusOr<Translation> Translate(const std::string& line) {
    const std::vector<std::string> args = absl::StrSplit(line, ' ', absl::SkipEmpty());
    return kHorovodrun.translate(args, surroundings_);
  }
  std::string Words(const std::string& line) {
    const auto translation = Translate(line);
    if (!translation.ok()) return std::string(translation.status().message());
    return absl::StrJoin(LaunchWords(*translation), " ");
  }
  // The variables that `flags` set.
  std::string Exports(const std::string& flags) {
    const std::string words = Words(absl::StrCat("-np 2 ", flags, " a"));
    if (words.rfind("launch", 0) != 0) return words;
    std::vector<std::string> exports;
    for (const std::string& part : std::vector<std::string>(absl::StrSplit(words, ' '))) {
      if (part.find('=') != std::string::npos) exports.push_back(part);
    }
    return absl::StrJoin(exports, " ");
  }

  cli::Surroundings surroundings_;
  std::map<std::string, std::string> files_;
};

TEST_F(HorovodrunTest, WithoutHostsItIsThisMachine) {
  const auto here = Translate("-np 2 python train.py -np 3");
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_TRUE(here->this_machine);
  EXPECT_EQ(absl::StrJoin(LaunchWords(*here), " "), "launch --np 2 -- python train.py -np 3");
  EXPECT_FALSE(Translate("-np 2 -H a:2 x")->this_machine);
  EXPECT_EQ(Words("--num-proc 6 -hostfile hosts x"), "launch --np 6 --hostfile hosts -- x");
  EXPECT_EQ(Words("--num-p 6 --hostfile=hosts x"), "launch --np 6 --hostfile hosts -- x");
  EXPECT_EQ(Words("-H a:1 x"), "the number of ranks is missing: -np N");
  EXPECT_EQ(Words("-np 2"), "no command to run");
}

TEST_F(HorovodrunTest, SshIsReachedAsTheLineSays) {
  EXPECT_EQ(Words("-np 2 -H a:2 -p 12345 x"), "launch --np 2 --hosts a:2 --ssh-port 12345 -- x");
  EXPECT_EQ(Words("-np 2 -H a:2 -p12345 x"), "launch --np 2 --hosts a:2 --ssh-port 12345 -- x");
  EXPECT_EQ(Words("-np 2 -H a:2 -i it's -p 7 x"),
            "launch --np 2 --hosts a:2 --rsh ssh -o BatchMode=yes -i 'it'\\''s' -p 7 {host} -- x");
  EXPECT_THAT(Words("-np 2 -H a:2 -i {host} x"), HasSubstr("braces"));
  EXPECT_EQ(Words("-np 2 -p 7 x"), "launch --np 2 -- x");
  EXPECT_THAT(Words("-np 2 -H a -p -oProxyCommand=x x"), HasSubstr("is not a port"));
}

TEST_F(HorovodrunTest, FlagsOfDtrainsAreTheirs) {
  EXPECT_EQ(Words("-np 2 --start-timeout 9 --output-filename out -prefix-timestamp --verbose "
                  "--network-interfaces eth0,eth1 --network-interface eth2 --disable-cache --gloo "
                  "--tcp x"),
            "launch --np 2 --timestamps --verbose --export NCCL_IB_DISABLE=1 --net eth0 --export "
            "NCCL_SOCKET_IFNAME=eth0,eth1,eth2 --start-timeout 9 --output out/rank.%R/%s -- x");
  EXPECT_EQ(Words("-np 2 --output-filename 5% x"), "launch --np 2 --output 5%%/rank.%R/%s -- x");
  surroundings_.environment = {"HOROVOD_START_TIMEOUT=60"};
  EXPECT_EQ(Words("-np 2 x"), "launch --np 2 --start-timeout 60 -- x");
  EXPECT_EQ(Words("-np 2 --start-timeout 5 --dry-run x"),
            "launch --np 2 --dry-run --start-timeout 5 -- x");
}

TEST_F(HorovodrunTest, MpiIsAskedFor) {
  EXPECT_EQ(Exports("--mpi"), "HOROVOD_CONTROLLER=mpi HOROVOD_CPU_OPERATIONS=mpi");
  EXPECT_EQ(Exports("--gloo"), "");
  EXPECT_THAT(Exports("--gloo --mpi"), HasSubstr("contradict each other"));
}

// Each flag of the table, as horovod/runner/common/util/config_parser.py has it.
TEST_F(HorovodrunTest, EveryKnobHasItsVariable) {
  const std::map<std::string, std::string> kFlags = {
      {"--fusion-threshold-mb 32", "HOROVOD_FUSION_THRESHOLD=33554432"},
      {"--cycle-time-ms 3.5", "HOROVOD_CYCLE_TIME=3.5"},
      {"--cycle-time-ms 3", "HOROVOD_CYCLE_TIME=3.0"},
      {"--cache-capacity 1024", "HOROVOD_CACHE_CAPACITY=1024"},
      {"--hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE=1"},
      {"--no-hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE=0"},
      {"--hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER=1"},
      {"--no-hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER=0"},
      {"--torus-allreduce", "HOROVOD_TORUS_ALLREDUCE=1"},
      {"--no-torus-allreduce", "HOROVOD_TORUS_ALLREDUCE=0"},
      {"--autotune", "HOROVOD_AUTOTUNE=1"},
      {"--autotune --no-autotune", ""},
      {"--no-autotune --autotune", "HOROVOD_AUTOTUNE=1"},
      {"--autotune-log-file f", ""},
      {"--autotune --autotune-log-file f", "HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_LOG=f"},
      {"--autotune --autotune-warmup-samples 3",
       "HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_WARMUP_SAMPLES=3"},
      {"--autotune --autotune-steps-per-sample 4",
       "HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=4"},
      {"--autotune --autotune-bayes-opt-max-samples 5",
       "HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES=5"},
      {"--autotune --autotune-gaussian-process-noise 0.8",
       "HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE=0.8"},
      {"--timeline-filename t", "HOROVOD_TIMELINE=t"},
      {"--timeline-mark-cycles", ""},
      {"--timeline-filename t --timeline-mark-cycles",
       "HOROVOD_TIMELINE=t HOROVOD_TIMELINE_MARK_CYCLES=1"},
      {"--timeline-filename t --no-timeline-mark-cycles",
       "HOROVOD_TIMELINE=t HOROVOD_TIMELINE_MARK_CYCLES=0"},
      {"--no-stall-check", "HOROVOD_STALL_CHECK_DISABLE=1"},
      {"--stall-check", "HOROVOD_STALL_CHECK_DISABLE=0"},
      {"--stall-check-warning-time-seconds 60", "HOROVOD_STALL_CHECK_TIME_SECONDS=60"},
      {"--stall-check-shutdown-time-seconds 0", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=0"},
      {"--mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE=1"},
      {"--no-mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE=0"},
      {"--num-nccl-streams 2", "HOROVOD_NUM_NCCL_STREAMS=2"},
      {"--thread-affinity 1", "HOROVOD_THREAD_AFFINITY=1"},
      {"--gloo-timeout-seconds 30", "HOROVOD_GLOO_TIMEOUT_SECONDS=30"},
      {"--log-level INFO", "HOROVOD_LOG_LEVEL=INFO"},
      {"--log-without-timestamp", "HOROVOD_LOG_HIDE_TIME=1"},
      {"--log-hide-timestamp", "HOROVOD_LOG_HIDE_TIME=1"},
      {"--log-with-timestamp", "HOROVOD_LOG_HIDE_TIME=0"},
      {"--no-log-hide-timestamp", "HOROVOD_LOG_HIDE_TIME=0"},
  };
  std::string all;
  for (const auto& [flags, exports] : kFlags) {
    EXPECT_EQ(Exports(flags), exports) << flags;
    absl::StrAppend(&all, flags, " ");
  }
  for (const HorovodKnob& knob : HorovodKnobs()) {
    EXPECT_THAT(all, HasSubstr(std::string(knob.flag.substr(0, knob.flag.find(',')))));
  }
}

TEST_F(HorovodrunTest, KnobsHaveBounds) {
  EXPECT_THAT(Exports("--fusion-threshold-mb -1"), HasSubstr("is not a whole number"));
  EXPECT_THAT(Exports("--fusion-threshold-mb 1.5"), HasSubstr("is not a whole number"));
  EXPECT_THAT(Exports("--fusion-threshold-mb 9223372036854775807"), HasSubstr("is not a whole"));
  EXPECT_THAT(Exports("--cycle-time-ms x"), HasSubstr("is not a number"));
  EXPECT_THAT(Exports("--cycle-time-ms nan"), HasSubstr("is not a number"));
  EXPECT_THAT(Exports("--autotune-gaussian-process-noise 2"), HasSubstr("from 0 to 1"));
  EXPECT_THAT(Exports("--log-level LOUD"), HasSubstr("is not TRACE, DEBUG"));
}

TEST_F(HorovodrunTest, TheFileSaysWhatTheLineDoesNot) {
  files_["c.yaml"] = R"(
controller: mpi
params: {fusion_threshold_mb: 32, cycle_time_ms: 3, cache_capacity: 7,
         hierarchical_allreduce: yes, hierarchical_allgather: false, torus_allreduce: no}
autotune: {enabled: true, log_file: log, warmup_samples: 1, steps_per_sample: 2,
           bayes_opt_max_samples: 3, gaussian_process_noise: 0.5}
timeline: {filename: t.json, mark_cycles: true}
stall_check: {enabled: false, warning_time_seconds: 1, shutdown_time_seconds: 2}
library_options: {mpi_threads_disable: true, num_nccl_streams: 2, thread_affinity: 1,
                  gloo_timeout_seconds: 9}
logging: {level: DEBUG, with_timestamp: false}
)";
  EXPECT_EQ(Exports("--config-file c.yaml"),
            "HOROVOD_CONTROLLER=mpi HOROVOD_CPU_OPERATIONS=mpi "
            "HOROVOD_FUSION_THRESHOLD=33554432 HOROVOD_CYCLE_TIME=3 HOROVOD_CACHE_CAPACITY=7 "
            "HOROVOD_HIERARCHICAL_ALLREDUCE=1 HOROVOD_HIERARCHICAL_ALLGATHER=0 "
            "HOROVOD_TORUS_ALLREDUCE=0 HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_LOG=log "
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES=1 HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=2 "
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES=3 HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE=0.5 "
            "HOROVOD_TIMELINE=t.json HOROVOD_TIMELINE_MARK_CYCLES=1 HOROVOD_STALL_CHECK_DISABLE=1 "
            "HOROVOD_STALL_CHECK_TIME_SECONDS=1 HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=2 "
            "HOROVOD_MPI_THREADS_DISABLE=1 HOROVOD_NUM_NCCL_STREAMS=2 HOROVOD_THREAD_AFFINITY=1 "
            "HOROVOD_GLOO_TIMEOUT_SECONDS=9 HOROVOD_LOG_LEVEL=DEBUG HOROVOD_LOG_HIDE_TIME=1");
  const std::string less = Exports(
      "--cycle-time-ms 1 --gloo --no-autotune --stall-check --config-file c.yaml --log-level INFO");
  EXPECT_THAT(less, HasSubstr("HOROVOD_CYCLE_TIME=1.0"));
  EXPECT_THAT(less, HasSubstr("HOROVOD_STALL_CHECK_DISABLE=0"));
  EXPECT_THAT(less, HasSubstr("HOROVOD_LOG_LEVEL=INFO"));
  EXPECT_THAT(less, ::testing::Not(HasSubstr("AUTOTUNE")));
  EXPECT_THAT(less, ::testing::Not(HasSubstr("CONTROLLER")));
}

TEST_F(HorovodrunTest, WrongFilesAreErrors) {
  EXPECT_EQ(Exports("--config-file none"), "--config-file: cannot read none");
  const std::map<std::string, std::string> kFiles = {
      {"[", "F:2:1: not YAML"},
      {"", "F must be a map"},
      {"params: 1", "F: params must be a map"},
      {"params: {cycle_time_ms: fast}", "F: params.cycle_time_ms: \"fast\" is not a number"},
      {"params: {cache_capacity: [1]}", "F: params.cache_capacity: \"?\" is not a whole number"},
      {"params: {hierarchical_allreduce: 'yes'}", "is not true or false"},
      {"timeline: {filename: 7}", "F: timeline.filename: \"7\" is not text"},
      {"controller: smoke", "F: controller: \"smoke\" is not gloo or mpi"},
  };
  for (const auto& [text, error] : kFiles) {
    files_["F"] = text;
    EXPECT_THAT(Exports("--config-file F"), HasSubstr(error)) << text;
  }
  files_["F"] = "params: {cycle: 1}\nautotune:\nmore: {x: 1}\n";
  const auto noted = Translate("-np 1 --config-file F a");
  ASSERT_TRUE(noted.ok()) << noted.status();
  EXPECT_THAT(noted->notes,
              ElementsAre("dtrain: F: params.cycle, more ignored: horovodrun has no such keys"));
}

TEST_F(HorovodrunTest, ElasticJobs) {
  const auto words = [this](const std::string& flags) {
    const auto line = Translate(absl::StrCat("-np 2 ", flags, " a"));
    return line.ok() ? absl::StrJoin(line->programs[0].flags, " ")
                     : std::string(line.status().message());
  };
  EXPECT_EQ(words("-H a:2,b:2 --min-np 1"),
            "--np 2 --hosts a:2,b:2 --elastic horovod --min-np 1 --cool-down never");
  EXPECT_EQ(words("-H a:2,b:2 --min-num-proc 1 --max-num-proc 4 --reset-limit 3 "
                  "--elastic-timeout 60 --slots 4"),
            "--np 2 --hosts a:2,b:2 --elastic horovod --min-np 1 --max-np 4 --reset-limit 3 "
            "--join-timeout 60 --cool-down never");
  EXPECT_THAT(words("--mpi --min-np 1"), HasSubstr("elastic Horovod works with Gloo only"));
  EXPECT_THAT(words("--gloo --host-discovery-script ./d.sh"),
              HasSubstr("--elastic horovod --discover ./d.sh --cool-down never"));
}

TEST_F(HorovodrunTest, FlagsOfElasticJobsAreIgnoredInOthersAsHorovodrunDoes) {
  const auto line = Translate("-np 1 --max-np 4 --elastic-timeout 60 a");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(absl::StrJoin(line->programs[0].flags, " "), "--np 1");
  EXPECT_THAT(line->notes, ElementsAre(HasSubstr("--max-np, --elastic-timeout ignored")));
}

TEST_F(HorovodrunTest, WhatItCannotDoItRefuses) {
  for (const char* flags : {"--jsrun", "--mpi-args=-v", "--binding-args x", "-cb", "--check-build",
                            "--version", "-v"}) {
    EXPECT_THAT(Exports(flags), HasSubstr("is not supported")) << flags;
  }
  EXPECT_THAT(Exports("--autotune-b 1 --timeline x"), HasSubstr("--timeline could be"));
  EXPECT_THAT(Exports("-zz"), HasSubstr("unknown flag -zz"));
  EXPECT_THAT(Translate("-np 1 a")->notes, IsEmpty());
}

}  // namespace
}  // namespace dtrain::faces
