// SPDX-License-Identifier: Apache-2.0
// Workers in containers, with runtimes that only write down what they are told, and can be unkind.
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "agent/containers/removal.h"
#include "common/base/exit_code.h"
#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// "run" runs the program, as its child, without any container.
constexpr char kRunsIt[] = R"(
while [ "$1" != img ]; do shift; done; shift; "$@"; exit $?)";

class ContainersTest : public ShepherdTest {
 protected:
  ContainersTest() {
    char name[] = "/tmp/dtrain-containers-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~ContainersTest() override { (void)!system(absl::StrCat("rm -rf ", directory_).c_str()); }

  // A runtime on the PATH: what it does for each of its commands, by the first word.
  void Fake(const std::string& name, const std::map<std::string, std::string>& commands) {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::ofstream file(path);
    // In one write, as several run at once.
    file << "#!/bin/sh\nprintf '%s \\n' \"$*\" >>" << directory_
         << "/calls\ncommand=$1\ncase $command in\n";
    for (const auto& [command, script] : commands) file << command << ") " << script << ";;\n";
    file << "*) exit 0;;\nesac\n";
    file.close();
    chmod(path.c_str(), 0755);
  }
  v1::JobPart InContainers(int workers, const std::string& script) {
    v1::JobPart part = Shell(workers, script);
    part.mutable_programs(0)->mutable_container()->set_image("img");
    part.mutable_programs(0)->set_working_directory(directory_);
    return part;
  }
  void Go(v1::JobPart part) {
    Start(std::move(part), [this] {
      setenv("PATH", absl::StrCat(directory_, ":/usr/bin:/bin").c_str(), 1);
      setenv("HOME", "/of/the/node", 1);
    });
  }
  std::vector<std::string> Calls(const std::string& beginning = "") {
    std::ifstream file(absl::StrCat(directory_, "/calls"));
    std::stringstream text;
    text << file.rdbuf();
    std::vector<std::string> out;
    for (absl::string_view line : absl::StrSplit(text.str(), '\n', absl::SkipEmpty())) {
      if (absl::StartsWith(line, beginning)) out.emplace_back(line);
    }
    return out;
  }
  // No event tells of it.
  bool UntilCalled(const std::string& beginning) {
    const TimePoint end = Clock::now() + kLimit;
    while (Calls(beginning).empty() && Clock::now() < end) {
      (void)Until([] { return false; }, std::chrono::milliseconds(5));
    }
    return !Calls(beginning).empty();
  }
  std::string Name(int rank) {
    return absl::StrCat("dtrain-", geteuid(), ".", job_id_, ".0.", rank);
  }
  std::string directory_;
};

TEST_F(ContainersTest, EachRankRunsInOneOfItsOwnWithItsVariablesByName) {
  Fake("podman", {{"run", kRunsIt}});
  v1::JobPart part = InContainers(2, "echo $RANK $TOKEN $HOME; exit $((RANK + 5))");
  v1::EnvVar& token = *part.add_env();
  token.set_name("TOKEN");
  token.set_value("a secret");
  part.mutable_programs(0)->mutable_container()->add_mounts("/tmp:/data:ro");
  part.mutable_programs(0)->mutable_container()->add_options("--memory=1g");
  Go(std::move(part));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, IsEmpty());
  EXPECT_EQ(Out(0), "0 a secret /of/the/node\n");  // there is no container
  EXPECT_EQ(exits_[1].exit_code(), 6);
  EXPECT_THAT(preparing_, IsEmpty()) << "the image is there";
  EXPECT_THAT(Calls("image"), ElementsAre("image exists img "));
  const std::vector<std::string> runs = Calls("run");
  ASSERT_THAT(runs, SizeIs(2));
  for (const std::string& run : runs) {
    EXPECT_THAT(run, AllOf(HasSubstr(" --env RANK "), HasSubstr(" --env TOKEN "),
                           HasSubstr(" --env PMI_FD "), HasSubstr(" --env OMPI_MCA_btl "),
                           HasSubstr(" --preserve-fds 2 "),
                           HasSubstr(absl::StrCat(" --workdir ", directory_, " ")),
                           HasSubstr(" -v /tmp:/data:ro "), HasSubstr(" --memory=1g img /bin/sh"),
                           Not(HasSubstr("secret")), Not(HasSubstr("--env HOME"))));
  }
  EXPECT_THAT(runs, Contains(HasSubstr(Name(0))));
  EXPECT_THAT(runs, Contains(HasSubstr(Name(1))));
}

TEST_F(ContainersTest, AnImageIsFetchedOnceBeforeAnyRankStarts) {
  Fake("podman", {{"image", absl::StrCat("exit 1")},
                  {"pull", absl::StrCat("while [ ! -e ", directory_, "/go ]; do sleep 0.02; done")},
                  {"run", kRunsIt}});
  Go(InContainers(3, "exit 0"));
  ASSERT_TRUE(UntilCalled("pull"));
  ASSERT_TRUE(Until([&] { return !preparing_.empty(); }));
  EXPECT_FALSE(started_.has_value());
  EXPECT_THAT(preparing_, ElementsAre("the image img (podman fetches it)"));
  std::ofstream(directory_ + "/go").close();
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(preparing_, ElementsAre("the image img (podman fetches it)", ""));
  EXPECT_THAT(Calls("pull"), ElementsAre("pull img "));
  EXPECT_THAT(Calls("run"), SizeIs(3));
}

TEST_F(ContainersTest, AFetchThatFailsSaysWhatTheRuntimeSaid) {
  Fake("podman", {{"image", "exit 1"}, {"pull", "echo one; echo no such registry >&2; exit 125"}});
  Go(InContainers(2, "exit 0"));
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].exit_code(), kExitStartAgents);
  EXPECT_THAT(failures_[0].message(),
              HasSubstr("cannot fetch the image img: `podman pull img` exited with code 125: one | "
                        "no such registry; is its name right"));
  EXPECT_THAT(exits_, IsEmpty());
}

TEST_F(ContainersTest, AStopEndsAFetchThatHangs) {
  Fake("podman", {{"image", "exit 1"}, {"pull", "trap '' TERM; sleep 1000"}});
  Go(InContainers(2, "exit 0"));
  ASSERT_TRUE(UntilCalled("pull"));
  Stop(60000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, IsEmpty());
  EXPECT_THAT(Calls("run"), IsEmpty());
}

TEST_F(ContainersTest, AFetchEndsWithTheAgent) {
  Fake("podman", {{"image", "exit 1"}, {"pull", "exec sleep 1000"}});
  Go(InContainers(1, "exit 0"));
  ASSERT_TRUE(UntilCalled("pull"));
  channel_.reset();
  EXPECT_TRUE(ShepherdExited());
}

TEST_F(ContainersTest, ANodeWithoutARuntimeSaysWhatWasLookedFor) {
  v1::JobPart part = InContainers(1, "exit 0");
  part.mutable_programs(0)->mutable_container()->set_runtime("enroot");
  Go(std::move(part));
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_THAT(failures_[0].message(),
              HasSubstr("cannot run the image img: this node has no enroot on the PATH"));
}

TEST_F(ContainersTest, AMountThatIsNotThereIsNamed) {
  Fake("podman", {});
  v1::JobPart part = InContainers(1, "exit 0");
  part.mutable_programs(0)->mutable_container()->add_mounts("/no/such/place:/data");
  Go(std::move(part));
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_THAT(failures_[0].message(), AllOf(HasSubstr("cannot mount /no/such/place"),
                                            HasSubstr("No such file or directory")));
  EXPECT_THAT(Calls(), IsEmpty());
}

TEST_F(ContainersTest, ADirectoryOfTheImageIsWorkedInWithoutAMount) {
  Fake("podman", {{"run", kRunsIt}});
  v1::JobPart part = InContainers(1, "pwd");
  part.mutable_programs(0)->set_working_directory("/only/in/the/image");
  Go(std::move(part));
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(Calls("run"), SizeIs(1));
  EXPECT_THAT(Calls("run")[0], AllOf(HasSubstr(" --workdir /only/in/the/image "),
                                     Not(HasSubstr("-v /only/in/the/image"))));
}

TEST_F(ContainersTest, WhatTheRuntimeSaysOfAProgramIsTheNodesFailureOnce) {
  Fake("podman", {{"run",
                   "echo 'Error: crun: executable file `nosuch` not found in $PATH: No such "
                   "file or directory' >&2; exit 127"}});
  Go(InContainers(2, "exit 0"));
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].exit_code(), kExitNotFound);
  EXPECT_THAT(failures_[0].message(),
              AllOf(HasSubstr("cannot run /bin/sh in a container of the image img: podman says: "
                              "Error: crun: executable file"),
                    HasSubstr("looked for in the image")));
  EXPECT_EQ(exits_[1].exit_code(), 127);
}

TEST_F(ContainersTest, AProgramThatExitsLikeARuntimeIsItself) {
  Fake("podman", {{"run", kRunsIt}});
  Go(InContainers(1, "echo mine >&2; exit 125"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, IsEmpty());
  EXPECT_EQ(exits_[0].exit_code(), 125);
}

TEST_F(ContainersTest, ASignalInsideIsTheRanks) {
  Fake("podman", {{"run", kRunsIt}});
  Go(InContainers(1, "kill -SEGV $$"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGSEGV);
}

TEST_F(ContainersTest, AClientThatSucceedsRemovesItsContainerItself) {
  Fake("podman", {{"run", kRunsIt}});
  Go(InContainers(2, "exit 0"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(Calls("rm"), IsEmpty());
}

// Podman's does so if it is told before it passes signals on; the container stays.
TEST_F(ContainersTest, TheContainerOfAClientThatGaveUpIsRemoved) {
  Fake("podman", {{"run", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done"}});
  Go(InContainers(1, "exit 0"));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(60);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(Calls("rm"), ElementsAre(StartsWith(absl::StrCat("rm --force --ignore ", Name(0)))));
}

TEST_F(ContainersTest, TheContainersOfKilledClientsAreRemoved) {
  Fake("podman", {{"run", kRunsIt}});
  Go(InContainers(3, "[ $RANK = 1 ] && exit 0; trap '' TERM; echo ready; exec sleep 1000"));
  ASSERT_TRUE(Until([&] { return Out(0) == "ready\n" && Out(2) == "ready\n" && !exits_.empty(); }));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, IsEmpty());
  ASSERT_THAT(Calls("rm"), SizeIs(1));
  EXPECT_THAT(Calls("rm")[0], AllOf(StartsWith("rm --force --ignore "), HasSubstr(Name(0)),
                                    HasSubstr(Name(2)), Not(HasSubstr(Name(1)))));
}

TEST_F(ContainersTest, ARemovalThatFailsIsToldWithWhatToDo) {
  Fake("podman", {{"run", kRunsIt}, {"rm", "echo the store is locked; exit 125"}});
  Go(InContainers(1, "echo ready; exec sleep 1000"));
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].exit_code(), kExitCleanup);
  EXPECT_EQ(failures_[0].kind(), v1::NodeFailure::KIND_CLEANUP);
  EXPECT_THAT(failures_[0].message(),
              AllOf(HasSubstr("may be left"), HasSubstr("the store is locked"),
                    HasSubstr(absl::StrCat("run `podman rm --force --ignore ", Name(0), "`"))));
}

// The test before shows that the shepherd tells what a removal says.
TEST_F(ContainersTest, ARemovalThatHangsIsCutOff) {
  Fake("podman", {{"rm", "trap '' TERM; exec sleep 1000"}});
  const v1::JobPart part = InContainers(1, "");
  std::optional<std::string> why;
  containers::Removal removal(
      loop_, containers::RemovablesOf(geteuid(), part),
      {absl::StrCat("PATH=", directory_, ":/usr/bin:/bin")}, nullptr,
      [&](std::string text) { why = std::move(text); }, std::chrono::milliseconds(200));
  ASSERT_TRUE(Until([&] { return why.has_value(); }));
  EXPECT_THAT(*why, HasSubstr("did not end in time and was killed"));
}

TEST_F(ContainersTest, DockerGetsNeitherDescriptorsNorTheirVariables) {
  Fake("docker", {{"run", kRunsIt}});
  v1::JobPart part = InContainers(1, "ls /proc/self/fd; echo [$PMI_FD$DTRAIN_PAGE_FD]");
  part.mutable_programs(0)->mutable_container()->set_runtime("docker");
  part.mutable_workers(0)->set_set_visible_gpus(true);
  part.mutable_workers(0)->add_gpu_uuids("GPU-a");
  Go(std::move(part));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(Out(), HasSubstr("[]\n"));
  ASSERT_THAT(Calls("run"), SizeIs(1));
  EXPECT_THAT(Calls("run")[0],
              AllOf(HasSubstr(" --gpus \"device=GPU-a\" "), HasSubstr(" --pid host "),
                    HasSubstr(absl::StrCat(" --user ", geteuid(), ":", getegid(), " ")),
                    Not(HasSubstr("--env PMI_FD")), Not(HasSubstr("--env DTRAIN_PAGE_FD"))));
  EXPECT_THAT(warnings_, Contains(HasSubstr("containers of docker inherit no descriptors")));
}

TEST_F(ContainersTest, WhatTheUserGaveReplacesWhatTheImageHas) {
  // The file of variables is in a descriptor of the client's.
  Fake("podman", {{"run", R"(
for word; do [ "$last" = --env-file ] && cat "$word"; last=$word; done)"}});
  v1::JobPart part = InContainers(1, "exit 0");
  for (const auto& [name, value] : {std::pair("PATH", "/opt/bin:/bin"), {"HOME", "/data"}}) {
    v1::EnvVar& variable = *part.add_env();
    variable.set_name(name);
    variable.set_value(value);
    part.add_explicit_env(name);
  }
  Go(std::move(part));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "HOME=/data\nPATH=/opt/bin:/bin\n");
  EXPECT_THAT(Calls("run")[0], HasSubstr(" --env-file /proc/self/fd/5 "));
}

TEST_F(ContainersTest, ProgramsOfOneJobMayRunInDifferentOnesOrNone) {
  Fake("podman", {{"run", kRunsIt}, {"image", "exit 0"}});
  v1::JobPart part = InContainers(2, "echo in");
  v1::Program& plain = *part.add_programs();
  for (const char* word : {"/bin/echo", "out"}) plain.add_argv(word);
  part.mutable_workers(1)->set_program(1);
  Go(std::move(part));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(0), "in\n");
  EXPECT_EQ(Out(1), "out\n");
  EXPECT_THAT(Calls("run"), SizeIs(1));
}

}  // namespace
}  // namespace dtrain::shepherd
