// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "agent/containers/removal.h"

namespace dtrain::containers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const Chosen kPodman = {Runtime::kPodman, "podman", "/usr/bin/podman", "img:1"};
const Chosen kDocker = {Runtime::kDocker, "docker", "/usr/bin/docker", "img:1"};
const Chosen kApptainer = {Runtime::kApptainer, "apptainer", "/usr/bin/apptainer", "docker://img"};
const Chosen kSingularity = {Runtime::kApptainer, "singularity", "/usr/bin/singularity", "a.sif"};
const Chosen kEnroot = {Runtime::kEnroot, "enroot", "/usr/bin/enroot", "/a.sqsh"};

Needs Rank3() {
  Needs run;
  run.name = "dtrain-1.0.3";
  run.argv = {"python3", "train.py", "--x", "a b"};
  run.variables = {"PMI_FD", "RANK"};
  run.descriptors = 2;
  run.working_directory = "/work";
  run.mounts = {{"/work", "/work", false}, {"/data", "/in", true}};
  run.options = {"--shm-size=1g"};
  run.gpu_uuids = {"GPU-a", "GPU-b"};
  run.has_init = true;
  run.open_files = {1024, 4096};
  run.processes = {100, RLIM_INFINITY};
  run.core = {0, RLIM_INFINITY};
  run.uid = 1000;
  run.gid = 100;
  run.groups = {100, 44};
  run.cpulist = "0-3";
  return run;
}

std::string Line(const std::vector<std::string>& words) { return absl::StrJoin(words, " "); }

TEST(ContainerCommand, Podman) {
  Needs run = Rank3();
  run.devices = {"/dev/infiniband"};
  run.environment_file = "/proc/self/fd/5";
  EXPECT_EQ(Line(RunCommand(kPodman, run)),
            "/usr/bin/podman run --rm -i --name dtrain-1.0.3 --pull never --entrypoint  "
            "--network host --ipc host --uts host --security-opt label=disable "
            "--cgroups disabled --log-driver passthrough --init "
            "--ulimit nofile=1024:4096 --ulimit nproc=100:-1 --preserve-fds 2 "
            "--workdir /work -v /work:/work -v /data:/in:ro --device /dev/infiniband "
            "--device nvidia.com/gpu=GPU-a --device nvidia.com/gpu=GPU-b "
            "--env PMI_FD --env RANK --env-file /proc/self/fd/5 "
            "--shm-size=1g img:1 python3 train.py --x a b");
}

TEST(ContainerCommand, PodmanWithoutWhatTheNodeDoesNotHave) {
  Needs run = Rank3();
  run.has_init = false;
  run.descriptors = 0;
  run.working_directory = "";
  run.gpu_uuids.clear();
  const std::string line = Line(RunCommand(kPodman, run));
  for (const char* word : {"--init", "--preserve-fds", "--workdir", "nvidia", "--env-file"}) {
    EXPECT_THAT(line, Not(HasSubstr(word)));
  }
}

TEST(ContainerCommand, DockerRunsAsTheUserAndTakesLimitsCoresAndGpusByWords) {
  EXPECT_EQ(Line(RunCommand(kDocker, Rank3())),
            "/usr/bin/docker run --rm -i --name dtrain-1.0.3 --pull never --entrypoint  "
            "--network host --ipc host --uts host --security-opt label=disable "
            "--pid host --user 1000:100 --group-add 44 --log-driver none "
            "--ulimit nofile=1024:4096 --ulimit core=0:-1 --ulimit memlock=-1:-1 "
            "--cpuset-cpus 0-3 --workdir /work -v /work:/work -v /data:/in:ro "
            "--gpus \"device=GPU-a,GPU-b\" --env PMI_FD --env RANK "
            "--shm-size=1g img:1 python3 train.py --x a b");
}

TEST(ContainerCommand, ApptainerKeepsTheNodesVariablesOut) {
  EXPECT_EQ(Line(RunCommand(kApptainer, Rank3())),
            "/usr/bin/apptainer --quiet exec --cleanenv --nv --no-eval --pwd /work "
            "--bind /work:/work --bind /data:/in:ro --shm-size=1g docker://img "
            "python3 train.py --x a b");
  Needs run = Rank3();
  run.gpu_uuids.clear();
  EXPECT_EQ(Line(RunCommand(kSingularity, run)),
            "/usr/bin/singularity --quiet exec --cleanenv --pwd /work --bind /work:/work "
            "--bind /data:/in:ro --shm-size=1g a.sif python3 train.py --x a b");
}

TEST(ContainerCommand, EnrootGoesToTheDirectoryByAShell) {
  EXPECT_EQ(Line(RunCommand(kEnroot, Rank3())),
            "/usr/bin/enroot start --rw --mount /work:/work:none:x-create=auto,rbind "
            "--mount /data:/in:none:x-create=auto,rbind,ro --env PMI_FD --env RANK "
            "--shm-size=1g /a.sqsh /bin/sh -c cd \"$1\" && shift && exec \"$@\" sh /work "
            "python3 train.py --x a b");
}

TEST(ContainerCommand, ImagesAreLookedForAndFetched) {
  EXPECT_THAT(LookCommand(kPodman), ElementsAre("/usr/bin/podman", "image", "exists", "img:1"));
  EXPECT_THAT(FetchCommand(kPodman), ElementsAre("/usr/bin/podman", "pull", "img:1"));
  EXPECT_THAT(LookCommand(kDocker),
              ElementsAre("/usr/bin/docker", "image", "inspect", "--format", "{{.Id}}", "img:1"));
  EXPECT_THAT(FetchCommand(kDocker), ElementsAre("/usr/bin/docker", "pull", "img:1"));
  EXPECT_THAT(LookCommand(kApptainer), IsEmpty());
  EXPECT_THAT(FetchCommand(kApptainer), SizeIs(7));
  EXPECT_THAT(FetchCommand(kSingularity), IsEmpty()) << "it is a file";
  EXPECT_THAT(FetchCommand(kEnroot), IsEmpty());
}

TEST(ContainerCommand, MountsHaveATargetAndMayBeReadOnly) {
  EXPECT_EQ(ParseMount("/a").target, "/a");
  EXPECT_FALSE(ParseMount("/a").read_only);
  EXPECT_EQ(ParseMount("/a:/b").target, "/b");
  EXPECT_TRUE(ParseMount("/a:/b:ro").read_only);
  EXPECT_FALSE(ParseMount("/a:/b:rw").read_only);
}

TEST(ContainerCommand, ContainersAreRemovedByNameWhereThereAreRecords) {
  EXPECT_THAT(RemoveCommand(kPodman, {"a", "b"}),
              ElementsAre("/usr/bin/podman", "rm", "--force", "--ignore", "a", "b"));
  EXPECT_THAT(RemoveCommand(kDocker, {"a"}), ElementsAre("/usr/bin/docker", "rm", "--force", "a"));
  EXPECT_THAT(RemoveCommand(kPodman, {}), IsEmpty());
  EXPECT_THAT(RemoveCommand(kApptainer, {"a"}), IsEmpty());
  EXPECT_THAT(RemoveCommand(kEnroot, {"a"}), IsEmpty());
}

TEST(ContainerCommand, NamesAreTheRanksAndOnlyThoseInContainersAreRemoved) {
  v1::JobPart part;
  part.set_job_id("dtrain-0a/b");
  part.set_attempt(1);
  part.add_programs()->mutable_container()->set_image("one");
  part.add_programs();
  for (uint32_t rank = 4; rank < 7; ++rank) {
    v1::WorkerSpec& worker = *part.add_workers();
    worker.set_rank(rank);
    worker.set_program(rank == 6 ? 1 : 0);
  }
  const auto all = RemovablesOf(1000, part);
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].container.image(), "one");
  EXPECT_THAT(all[0].names,
              ElementsAre("dtrain-1000.dtrain-0a_b.1.4", "dtrain-1000.dtrain-0a_b.1.5"));
  const std::vector<uint32_t> killed = {5, 6};
  EXPECT_THAT(RemovablesOf(1000, part, &killed)[0].names,
              ElementsAre("dtrain-1000.dtrain-0a_b.1.5"));
  EXPECT_NE(ContainerName(1000, part, 4), ContainerName(1001, part, 4)) << "another user's job";
}

}  // namespace
}  // namespace dtrain::containers
