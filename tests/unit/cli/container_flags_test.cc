// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/cli/options.h"

namespace dtrain::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ContainerFlagsTest : public ::testing::Test {
 protected:
  ContainerFlagsTest() {
    surroundings_.working_directory = "/here";
    surroundings_.read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      if (path == "/config" && !config_.empty()) return config_;
      return absl::NotFoundError(path);
    };
  }
  absl::StatusOr<Command> Parse(std::vector<std::string> args) {
    args.insert(args.begin(), "launch");
    return ParseLaunch(args, surroundings_);
  }
  v1::Program Program(std::vector<std::string> args, int which = 0) {
    absl::StatusOr<Command> command = Parse(std::move(args));
    EXPECT_TRUE(command.ok()) << command.status();
    return command.ok() ? command->launch.job.part.programs(which) : v1::Program();
  }
  std::string Error(std::vector<std::string> args) {
    return std::string(Parse(std::move(args)).status().message());
  }
  Surroundings surroundings_;
  std::string config_;
};

TEST_F(ContainerFlagsTest, NoneIsUsedUnlessAskedFor) {
  EXPECT_FALSE(Program({"x"}).has_container());
}

TEST_F(ContainerFlagsTest, AllOfThem) {
  const v1::Container container =
      Program({"--container", "r.io/img:1", "--container-runtime", "docker", "--container-mount",
               "/a", "--container-mount=/b:/c:ro", "--container-option=--x", "--container-option",
               "y", "prog"})
          .container();
  EXPECT_EQ(container.image(), "r.io/img:1");
  EXPECT_EQ(container.runtime(), "docker");
  EXPECT_THAT(container.mounts(), ElementsAre("/a", "/b:/c:ro"));
  EXPECT_THAT(container.options(), ElementsAre("--x", "y"));
}

TEST_F(ContainerFlagsTest, AnImageIsNeededOnACommandLine) {
  EXPECT_THAT(Error({"--container-mount", "/a", "x"}),
              HasSubstr("--container-mount has no meaning without --container IMAGE"));
  EXPECT_THAT(Error({"--container-option", "a", "x"}), HasSubstr("--container-option"));
  EXPECT_THAT(Error({"--container-runtime", "podman", "x"}), HasSubstr("--container-runtime"));
  EXPECT_THAT(
      Error({"-np", "1", "--container", "i", "x", ":", "-np", "1", "--container-mount", "/a", "y"}),
      HasSubstr("program 2: --container-mount has no meaning"));
}

TEST_F(ContainerFlagsTest, StagedCodeReachesThemAndComparedCodeDoesNot) {
  EXPECT_EQ(Error({"--stage", "/code", "--container", "i", "x"}), "");
  EXPECT_THAT(Error({"--verify-code", "/code", "--container", "i", "x"}),
              HasSubstr("and not what their containers run"));
}

TEST_F(ContainerFlagsTest, OfAConfigurationMountsWaitForAnImageAndAnImageIsForAll) {
  surroundings_.environment = {"DTRAIN_CONFIG=/config"};
  config_ = "container-mount = [\"/a\", \"/b\"]\ncontainer-runtime = \"podman\"\n";
  EXPECT_FALSE(Program({"x"}).has_container());
  v1::Container container =
      Program({"--container", "i", "--container-mount", "/c", "x"}).container();
  EXPECT_THAT(container.mounts(), ElementsAre("/a", "/b", "/c"));
  EXPECT_EQ(container.runtime(), "podman");
  container = Program({"--container", "i", "--container-runtime", "auto", "x"}).container();
  EXPECT_EQ(container.runtime(), "");

  config_ = "container = \"shared\"\n";
  const std::vector<std::string> two = {"-np", "1",           "x",   ":", "-np",
                                        "1",   "--container", "own", "y"};
  EXPECT_EQ(Program(two, 0).container().image(), "shared");
  EXPECT_EQ(Program(two, 1).container().image(), "own");

  surroundings_.environment = {"DTRAIN_CONTAINER=i", "DTRAIN_CONTAINER_MOUNT=/a,/b"};
  EXPECT_THAT(Program({"x"}).container().mounts(), ElementsAre("/a", "/b"));
}

TEST_F(ContainerFlagsTest, OfACommandLineEachProgramHasItsOwn) {
  const std::vector<std::string> two = {"-np", "1", "--container", "i", "x", ":", "-np", "1", "y"};
  EXPECT_TRUE(Program(two, 0).has_container());
  EXPECT_FALSE(Program(two, 1).has_container());
}

TEST_F(ContainerFlagsTest, ValuesThatCannotBeAreRefused) {
  const std::vector<std::string> image = {"--container", "i"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = image;
    all.insert(all.end(), more.begin(), more.end());
    all.push_back("x");
    return Error(all);
  };
  EXPECT_THAT(Error({"--container=--privileged", "x"}), HasSubstr("is not the name of an image"));
  EXPECT_THAT(Error({"--container", "a b", "x"}), HasSubstr("is not the name of an image"));
  EXPECT_THAT(with({"--container-runtime", "lxc"}), HasSubstr("is not auto, podman, docker"));
  EXPECT_THAT(with({"--container-mount", "a:/b"}), HasSubstr("with full paths"));
  EXPECT_THAT(with({"--container-mount", "/a:b"}), HasSubstr("with full paths"));
  EXPECT_THAT(with({"--container-mount", "/a:/b:rx"}), HasSubstr(":ro or :rw"));
  EXPECT_THAT(with({"--container-mount", "/a:/b:ro:x"}), HasSubstr("SRC[:DST[:ro]]"));
  EXPECT_THAT(with({"--container-mount", "/a,b"}), HasSubstr("a comma"));
}

}  // namespace
}  // namespace dtrain::cli
