// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::containers {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

const Chosen kPodmanHere = {Runtime::kPodman, "podman", "/usr/bin/podman", "x"};
const Chosen kApptainerHere = {Runtime::kApptainer, "apptainer", "/usr/bin/apptainer", "x.sif"};
const Chosen kEnrootHere = {Runtime::kEnroot, "enroot", "/usr/bin/enroot", "x.sqsh"};

TEST(ContainerEnvironment, WhatBelongsToTheHostStaysThere) {
  for (const char* name :
       {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV",
        "CONDA_PREFIX", "HOME", "SHELL", "TMPDIR", "XDG_RUNTIME_DIR", "HOSTNAME", "USER",
        "SSH_CONNECTION", "CUDA_HOME", "DOCKER_HOST", "CONTAINERS_STORAGE_CONF", "MODULEPATH"}) {
    EXPECT_TRUE(IsOfHost(name)) << name;
  }
  for (const char* name : {"RANK", "PMI_FD", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "LANG", "PWD",
                           "WANDB_API_KEY", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"}) {
    EXPECT_FALSE(IsOfHost(name)) << name;
  }
}

TEST(ContainerEnvironment, TheRestGoesInByNameAndItsClientHasWhatTheNodeHas) {
  const auto carried =
      Carry(kPodmanHere,
            {"HOME=/home/launcher", "PATH=/launcher/bin", "PYTHONPATH=/x", "RANK=3", "TOKEN=a\nb"},
            {"HOME=/root", "PATH=/node/bin", "PYTHONHOME=/y", "SECRET=of the agent"}, {});
  ASSERT_TRUE(carried.ok()) << carried.status();
  EXPECT_THAT(carried->client, ElementsAre("HOME=/root", "PATH=/node/bin", "RANK=3", "TOKEN=a\nb"));
  EXPECT_THAT(carried->names, ElementsAre("RANK", "TOKEN"));
  EXPECT_EQ(carried->file, "");
}

TEST(ContainerEnvironment, WhatTheUserGaveGoesInWhateverItIs) {
  const auto carried =
      Carry(kPodmanHere, {"HOME=/data", "PATH=/opt/bin", "PYTHONPATH=/code", "LD_PRELOAD=/a.so"},
            {"HOME=/root", "PATH=/bin"}, {"HOME", "PATH", "PYTHONPATH"});
  ASSERT_TRUE(carried.ok()) << carried.status();
  // The client keeps its own, so these come in a file.
  EXPECT_THAT(carried->client, ElementsAre("HOME=/root", "PATH=/bin", "PYTHONPATH=/code"));
  EXPECT_THAT(carried->names, ElementsAre("PYTHONPATH"));
  EXPECT_EQ(carried->file, "HOME=/data\nPATH=/opt/bin\n");
}

TEST(ContainerEnvironment, AFileHasNoValueOfSeveralLines) {
  const auto carried = Carry(kPodmanHere, {"PATH=a\nb"}, {}, {"PATH"});
  ASSERT_FALSE(carried.ok());
  EXPECT_THAT(std::string(carried.status().message()), HasSubstr("PATH"));
}

TEST(ContainerEnvironment, ApptainerHasVariablesForIt) {
  const auto carried =
      Carry(kApptainerHere, {"PATH=/opt/bin", "RANK=0"}, {"PATH=/bin", "HOME=/root"}, {"PATH"});
  ASSERT_TRUE(carried.ok()) << carried.status();
  EXPECT_THAT(carried->client, ElementsAre("APPTAINERENV_PATH=/opt/bin", "APPTAINERENV_RANK=0",
                                           "HOME=/root", "PATH=/bin", "RANK=0"));
  EXPECT_EQ(carried->file, "");
}

TEST(ContainerEnvironment, ApptainerHasAHomeOfItsOwn) {
  const auto carried = Carry(kApptainerHere, {"HOME=/data"}, {"HOME=/root"}, {"HOME"});
  ASSERT_FALSE(carried.ok());
  EXPECT_THAT(std::string(carried.status().message()),
              HasSubstr("apptainer itself sets it; set it in the program's command instead (env "
                        "HOME=… COMMAND)"));
  EXPECT_TRUE(Carry(kApptainerHere, {"HOME=/home/launcher"}, {"HOME=/root"}, {}).ok());
}

// `export a.b=1` is an error in its shell, and nothing that follows would be set.
TEST(ContainerEnvironment, ApptainerTakesNoDots) {
  const auto carried = Carry(kApptainerHere, {"A.B=1", "C=2"}, {}, {});
  ASSERT_TRUE(carried.ok()) << carried.status();
  EXPECT_THAT(carried->client, Contains("APPTAINERENV_C=2"));
  EXPECT_THAT(carried->client, Not(Contains(HasSubstr("A.B"))));
}

TEST(ContainerEnvironment, SingularitysShellLeavesValuesAsTheyAre) {
  Chosen singularity = kApptainerHere;
  singularity.name = "singularity";
  const auto carried = Carry(singularity, {R"(A=$b `c` \"d")"}, {"PATH=/bin"}, {});
  ASSERT_TRUE(carried.ok()) << carried.status();
  EXPECT_THAT(carried->client,
              ElementsAre(R"(A=$b `c` \"d")", "PATH=/bin", R"(SINGULARITYENV_A=\$b \`c\` \\"d")"));
}

TEST(ContainerEnvironment, EnrootTakesLinesOfNobody) {
  const auto carried = Carry(kEnrootHere, {"A=1", "B=1\n2"}, {}, {});
  ASSERT_TRUE(carried.ok()) << carried.status();
  EXPECT_THAT(carried->names, ElementsAre("A"));
  EXPECT_FALSE(Carry(kEnrootHere, {"B=1\n2"}, {}, {"B"}).ok());
  EXPECT_FALSE(Carry(kEnrootHere, {"PATH=/x"}, {}, {"PATH"}).ok());
}

TEST(ContainerEnvironment, NamesThatMeanSomethingElseToARuntimeStayOut) {
  const auto carried =
      Carry(kPodmanHere, {"A*=1", "B C=2", "BASH_FUNC_x%%=() { :; }", "1=3", "G=4"}, {}, {});
  ASSERT_TRUE(carried.ok()) << carried.status();
  EXPECT_THAT(carried->names, ElementsAre("G"));
}

TEST(ContainerEnvironment, AClientThatFetchesHasProxiesAndAPath) {
  const auto variables = ClientEnvironment({"https_proxy=http://p", "HOME=/root", "X=1"});
  EXPECT_THAT(variables, Contains("https_proxy=http://p"));
  EXPECT_THAT(variables, Contains("HOME=/root"));
  EXPECT_THAT(variables, Contains(StartsWith("PATH=/usr/local/sbin:")));
  EXPECT_THAT(variables, Not(Contains("X=1")));
}

TEST(ContainerEnvironment, EnrootLearnsOfGpusByVariables) {
  EXPECT_THAT(GpuVariables(Runtime::kEnroot, {"GPU-a", "GPU-b"}),
              ElementsAre("NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b",
                          "NVIDIA_DRIVER_CAPABILITIES=compute,utility"));
  EXPECT_THAT(GpuVariables(Runtime::kEnroot, {}), IsEmpty());
  EXPECT_THAT(GpuVariables(Runtime::kPodman, {"GPU-a"}), IsEmpty());
}

}  // namespace
}  // namespace dtrain::containers
