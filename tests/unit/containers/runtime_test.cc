// SPDX-License-Identifier: Apache-2.0
#include "agent/containers/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace dtrain::containers {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

FindExecutable NodeWith(std::set<std::string> programs) {
  return [programs = std::move(programs)](const std::string& name) {
    return programs.contains(name) ? "/usr/bin/" + name : std::string();
  };
}

v1::Container Image(const std::string& image, const std::string& runtime = "") {
  v1::Container container;
  container.set_image(image);
  container.set_runtime(runtime);
  return container;
}

TEST(Runtime, IsWhatTheNodeHasAndTheImageNeeds) {
  struct Case {
    std::string image, runtime;
    std::set<std::string> node;
    std::string program, told;
  };
  const std::vector<Case> cases = {
      {"debian:12", "", {"podman", "docker", "apptainer"}, "podman", "debian:12"},
      {"debian:12", "", {"docker", "apptainer"}, "docker", "debian:12"},
      {"debian:12", "", {"apptainer", "enroot"}, "apptainer", "docker://debian:12"},
      {"debian:12", "", {"singularity"}, "singularity", "docker://debian:12"},
      {"debian:12", "docker", {"podman", "docker"}, "docker", "debian:12"},
      {"debian:12", "apptainer", {"podman", "apptainer"}, "apptainer", "docker://debian:12"},
      {"/images/a.sif", "", {"podman", "apptainer"}, "apptainer", "/images/a.sif"},
      {"/images/tree", "apptainer", {"apptainer"}, "apptainer", "/images/tree"},
      {"docker://debian:12", "", {"podman", "apptainer"}, "apptainer", "docker://debian:12"},
      {"oras://r.io/a", "", {"podman", "singularity"}, "singularity", "oras://r.io/a"},
      {"/images/a.sqsh", "", {"podman", "enroot"}, "enroot", "/images/a.sqsh"},
      {"pytorch", "enroot", {"podman", "enroot"}, "enroot", "pytorch"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.image + " " + each.runtime);
    const auto chosen = Choose(Image(each.image, each.runtime), NodeWith(each.node));
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(chosen->name, each.program);
    EXPECT_EQ(chosen->program, "/usr/bin/" + each.program);
    EXPECT_EQ(chosen->image, each.told);
  }
}

TEST(Runtime, ANodeWithoutAnyIsToldWhatWasLookedFor) {
  const auto none = Choose(Image("debian:12"), NodeWith({}));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()),
              AllOf(HasSubstr("debian:12"), HasSubstr("no podman, no docker, no apptainer"),
                    HasSubstr("install one of them")));
  const auto sif = Choose(Image("a.sif"), NodeWith({"podman", "docker"}));
  EXPECT_THAT(std::string(sif.status().message()),
              HasSubstr("this node has no apptainer, no singularity on the PATH of its agent"));
  const auto named = Choose(Image("debian:12", "docker"), NodeWith({"podman"}));
  EXPECT_THAT(std::string(named.status().message()),
              AllOf(HasSubstr("no docker"), HasSubstr("--container-runtime")));
}

TEST(Runtime, AnImageThatOneDoesNotRunIsRefusedWithWhatItRuns) {
  const auto podman = Choose(Image("/a.sif", "podman"), NodeWith({"podman"}));
  EXPECT_EQ(podman.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(podman.status().message()), HasSubstr("images of a registry"));
  const auto enroot = Choose(Image("debian:12", "enroot"), NodeWith({"enroot"}));
  EXPECT_THAT(std::string(enroot.status().message()), HasSubstr("enroot import docker://IMAGE"));
  const auto apptainer = Choose(Image("/a.sqsh", "apptainer"), NodeWith({"apptainer"}));
  EXPECT_EQ(apptainer.status().code(), absl::StatusCode::kInvalidArgument);
  const auto only = Choose(Image("debian:12"), NodeWith({"enroot"}));
  EXPECT_THAT(std::string(only.status().message()),
              HasSubstr("it has enroot, which cannot run this image"));
}

}  // namespace
}  // namespace dtrain::containers
