// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/ending.h"

#include <gtest/gtest.h>

#include <csignal>

namespace dtrain::containers {
namespace {

const Chosen kPodmanOnNode = {Runtime::kPodman, "podman", "/usr/bin/podman", "img"};

TEST(ContainerEnding, ASignalOfTheProgramIsToldByTheClientsCode) {
  EXPECT_EQ(ProgramStatus({.code = 139}).signal, SIGSEGV);
  EXPECT_EQ(ProgramStatus({.code = 137}).signal, SIGKILL);
  EXPECT_EQ(ProgramStatus({.code = 137}).code, 0);
  EXPECT_EQ(ProgramStatus({.code = 7}).code, 7);
  EXPECT_EQ(ProgramStatus({.code = 128}).code, 128);
  EXPECT_EQ(ProgramStatus({.code = 255}).code, 255);
  EXPECT_EQ(ProgramStatus({.code = 0, .signal = SIGKILL}).signal, SIGKILL);
}

// As podman 4.3 and catatonit 0.1.7, docker 28, apptainer 1.4 and enroot 3.5 have said or say.
TEST(ContainerEnding, WhoseFailureItIsShowsInTheLastLine) {
  struct Case {
    Runtime runtime;
    int code;
    const char* tail;
    int job;  // 0: the program's own failure
  };
  const Case cases[] = {
      {Runtime::kPodman, 1, "ERROR (catatonit:2): failed to exec pid1: No such file or directory\n",
       127},
      {Runtime::kPodman, 1, "ERROR (catatonit:2): failed to exec pid1: Permission denied\n", 126},
      {Runtime::kPodman, 126,
       "Error: crun: open executable: Permission denied: OCI permission "
       "denied\n",
       126},
      {Runtime::kPodman, 127,
       "Error: crun: executable file `nosuch` not found in $PATH: No such file or directory: OCI "
       "runtime attempted to invoke a command that was not found\n",
       127},
      {Runtime::kPodman, 126,
       "Error: crun: setrlimit `RLIMIT_NPROC`: Operation not permitted: OCI permission denied\n",
       200},
      {Runtime::kPodman, 126, "Error: workdir \"/nosuch\" does not exist on container ab\n", 200},
      {Runtime::kPodman, 125, "Error: nosuchimage: image not known\n", 200},
      {Runtime::kPodman, 125, "Error: unknown flag: --nosuch\nSee 'podman run --help'\n", 200},
      {Runtime::kPodman, 125, "mine\nSee 'podman run --help'\n", 0},
      {Runtime::kPodman, 127, "sh: nosuch: not found\n", 0},
      {Runtime::kPodman, 1, "Error: of the program\n", 0},
      {Runtime::kPodman, 125, "", 0},
      {Runtime::kDocker, 127,
       "docker: Error response from daemon: failed to create task for container: exec: \"nosuch\": "
       "executable file not found in $PATH\n\nRun 'docker run --help' for more information\n",
       127},
      {Runtime::kDocker, 125,
       "docker: Error response from daemon: could not select device driver with capabilities: "
       "[[gpu]]\n\nRun 'docker run --help' for more information\n",
       200},
      {Runtime::kDocker, 125, "mine\n", 0},
      {Runtime::kApptainer, 255, "FATAL:   stat /nosuch: no such file or directory\n", 127},
      {Runtime::kApptainer, 255, "FATAL:   \"nosuch\": executable file not found in $PATH\n", 127},
      {Runtime::kApptainer, 255, "FATAL:   could not open image /a.sif: no such file\n", 200},
      {Runtime::kApptainer, 255, "died\n", 0},
      {Runtime::kEnroot, 1, "[ERROR] No such file or directory: /a.sqsh\n", 200},
      {Runtime::kEnroot, 1,
       "enroot-switchroot: failed to execute: nosuch: No such file or "
       "directory\n",
       127},
      {Runtime::kEnroot, 1, "died\n", 0},
      {Runtime::kEnroot, 1, "[2026-01-01 10:00:00,1] [ERROR] [engine.py:9] loss is NaN\n", 0},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.tail);
    Chosen chosen = kPodmanOnNode;
    chosen.runtime = each.runtime;
    const auto why = WhyNotStarted(chosen, {.code = each.code}, each.tail);
    EXPECT_EQ(why ? why->exit_code : 0, each.job) << (why ? why->why : "");
  }
}

TEST(ContainerEnding, AProgramThatSucceedsOrIsKilledDidBegin) {
  EXPECT_FALSE(WhyNotStarted(kPodmanOnNode, {.code = 0}, "Error: x\n"));
  EXPECT_FALSE(WhyNotStarted(kPodmanOnNode, {.code = 0, .signal = SIGKILL}, "Error: x\n"));
}

}  // namespace
}  // namespace dtrain::containers
