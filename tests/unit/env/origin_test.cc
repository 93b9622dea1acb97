// SPDX-License-Identifier: Apache-2.0
#include "launcher/env/origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "agent/shepherd/worker_env.h"
#include "launcher/cli/flag_table.h"

namespace dtrain::env {
namespace {

v1::JobPart Part() {
  v1::JobPart part;
  part.set_job_id("j1");
  part.set_world_size(4);
  part.set_node_count(2);
  part.set_host("node0");
  part.add_programs()->add_argv("x");
  part.mutable_network()->set_address("10.0.0.1");
  part.mutable_network()->set_interface_name("eth0");
  part.mutable_network()->set_master_address("10.0.0.1");
  part.mutable_network()->set_coordinator_port(61441);
  part.mutable_network()->set_rendezvous_port(5000);
  for (const uint32_t rank : {0, 1}) {
    v1::WorkerSpec& worker = *part.add_workers();
    worker.set_rank(rank);
    worker.set_local_rank(rank);
    worker.set_set_visible_gpus(true);
    worker.add_gpu_uuids("GPU-1");
    worker.add_own_gpus(0);
    worker.set_narrowed_gpus(true);
  }
  return part;
}

// Whatever a worker is given has a reason.
TEST(OriginTest, EveryVariableOfOursIsKnown) {
  v1::JobPart part = Part();
  part.mutable_programs(0)->set_working_directory("/home/me");
  for (int contract = v1::Contract_MIN + 1; contract <= v1::Contract_MAX; ++contract) {
    part.add_contracts(static_cast<v1::Contract>(contract));
  }
  const shepherd::WorkerEnv env(part, {});
  const auto variables =
      env.Of(part.workers(1),
             {.pmi = 3, .page = 4, .pmix = 77, .traits = {.crowded = true}, .shepherd = "1:2:x"});
  ASSERT_GT(variables.size(), 60u);
  for (const std::string& variable : variables) {
    const size_t equals = variable.find('=');
    EXPECT_NE(OriginOf(variable.substr(0, equals), variable.substr(equals + 1), v1::JobPart()),
              "the node's own")
        << variable;
  }
}

TEST(OriginTest, TheStrongestSourceIsNamed) {
  v1::JobPart part = Part();
  v1::EnvVar& mine = *part.add_env();
  mine.set_name("OMP_NUM_THREADS");
  mine.set_value("3");
  part.add_explicit_env("RANK");
  part.mutable_programs(0)->add_explicit_env("OWN");
  EXPECT_EQ(OriginOf("OMP_NUM_THREADS", "3", part), "forwarded from your environment");
  EXPECT_EQ(OriginOf("OMP_NUM_THREADS", "1", part), "torchrun's (--contract torch)");
  EXPECT_EQ(OriginOf("RANK", "9", part), "given with -x or --env-file");
  EXPECT_EQ(OriginOf("OWN", "9", part), "given with -x or --env-file");
  EXPECT_EQ(OriginOf("LS_COLORS", "9", part), "the node's own");
}

TEST(OriginTest, TheListIsInGroupsAndCanBePasted) {
  EXPECT_EQ(FormatEnvironment({"RANK=0", "HOME=/root", "DTRAIN_RANK=0", "ODD=it's\nodd", "junk"},
                              v1::JobPart()),
            "# dtrain's\nDTRAIN_RANK=0\n\n# torchrun's (--contract torch)\nRANK=0\n\n"
            "# the node's own\nHOME=/root\nODD='it'\\''s\nodd'\n");
}

TEST(OriginTest, CachesOnTheNodesDiskAreOurs) {
  const v1::JobPart part = Part();
  const shepherd::WorkerEnv env(part, {});
  size_t found = 0;
  for (const std::string& variable : env.Of(part.workers(1), {.traits = {.caches = "/c"}})) {
    if (!absl::StrContains(variable, "=/c/")) continue;
    ++found;
    EXPECT_THAT(OriginOf(variable.substr(0, variable.find('=')), "", v1::JobPart()),
                testing::HasSubstr("--node-caches"));
  }
  EXPECT_EQ(found, 4u);
}

TEST(OriginTest, HowAWorkerBegins) {
  EXPECT_EQ(
      FormatProcess("7 (c a) t) R 1 7 7 0 -1 4194304 98 0 0 0 0 0 0 0 30 10 1 0 5\n"
                    "Name:\tcat\nUmask:\t0077\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n"
                    "Limit                     Soft Limit           Hard Limit           Units\n"
                    "Max stack size            8388608              unlimited            bytes\n"
                    "Max open files            1024                 524288               files\n"),
      "\n# as this shell, on all hosts\n# nice 10, umask 0077\n\n# its CPUs (--bind)\n# 0-1\n"
      "\n# its limits: the host's; open files as this shell\n# stack size 8388608, open files "
      "1024\n");
  EXPECT_EQ(FormatProcess(""), "");
}

}  // namespace
}  // namespace dtrain::env
