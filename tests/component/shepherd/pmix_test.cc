// SPDX-License-Identifier: Apache-2.0
// A node's ranks and its PMIx server, which is real: libpmix, and Open MPI as its client.
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "common/os/process_tree.h"
#include "harness.h"

namespace dtrain::shepherd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kProgram[] = R"(
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size, sum = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("rank %d of %d sum %d\n", rank, size, sum);
  fflush(stdout);
  if (argc > 1 && rank == 1) MPI_Abort(MPI_COMM_WORLD, atoi(argv[1]));
  if (argc > 2) pause();
  MPI_Finalize();
  return 0;
}
)";

// Plays the launcher of a job on one node.
class ShepherdPmixTest : public ShepherdTest {
 protected:
  void SetUp() override {
    char name[] = "/tmp/dtrain-pmix-test-XXXXXX";
    folder_ = mkdtemp(name);
    setenv("TMPDIR", folder_.c_str(), 1);
    unsetenv("XDG_RUNTIME_DIR");
  }
  void TearDown() override {
    EXPECT_THAT(Folders(), IsEmpty()) << "left behind by the server";
    (void)!system(absl::StrCat("rm -rf ", folder_).c_str());
    unsetenv("TMPDIR");
  }
  // The server's, by their names.
  std::vector<std::string> Folders() const {
    std::vector<std::string> found;
    DIR* directory = opendir(folder_.c_str());
    while (const dirent* entry = readdir(directory)) {
      const std::string name = entry->d_name;
      if (name.rfind("dtrain-pmix-", 0) == 0) found.push_back(name);
    }
    closedir(directory);
    return found;
  }
  v1::JobPart Served(v1::JobPart part) {
    part.set_pmix(true);
    return part;
  }
  // A script in a shell that can connect: to PMIx on descriptor 5.
  v1::JobPart Connecting(int workers, const std::string& script) {
    return Served(Part(workers, {"/bin/bash", "-c",
                                 "exec 5<>/dev/tcp/127.0.0.1/${PMIX_SERVER_URI##*:}\n" + script}));
  }
  v1::JobPart OpenMpi(int workers, std::vector<std::string> arguments) {
    std::ofstream(folder_ + "/t.c") << kProgram;
    EXPECT_EQ(system(absl::StrCat("mpicc.openmpi -o ", folder_, "/t ", folder_, "/t.c").c_str()),
              0);
    v1::JobPart part = Served(Part(workers, {folder_ + "/t"}));
    for (std::string& argument : arguments) part.mutable_programs(0)->add_argv(std::move(argument));
    v1::EnvVar& home = *part.add_env();
    home.set_name("HOME");
    home.set_value(folder_);
    return part;
  }
  pid_t ServerPid() const {
    for (const os::ProcessInfo& info : os::Descendants(shepherd_pid_)) {
      std::ifstream file(absl::StrCat("/proc/", info.pid, "/comm"));
      std::string name;
      if (std::getline(file, name) && name == "dtrain-pmix") return info.pid;
    }
    return 0;
  }

  void OnEvent(const v1::JobEvent& event) override {
    if (!event.has_pmix() || !answer_) return;
    v1::JobRequest request;
    v1::PmixDown& down = *request.mutable_pmix();
    if (event.pmix().has_ask()) {
      v1::PmixNode& node = *down.mutable_job()->add_nodes();
      node.set_host("here");
      for (const v1::WorkerSpec& worker : part_.workers()) node.add_ranks(worker.rank());
      down.mutable_job()->set_universe_size(part_.universe_size());
    } else if (event.pmix().has_fence()) {
      *down.mutable_fence_done()->mutable_ranks() = event.pmix().fence().ranks();
      down.mutable_fence_done()->set_data(event.pmix().fence().data());
    } else {
      return;
    }
    Send(request);
  }
  bool HasJoined(uint32_t rank) const {
    return std::any_of(pmix_.begin(), pmix_.end(), [rank](const v1::PmixUp& up) {
      return std::count(up.joined().ranks().begin(), up.joined().ranks().end(), rank) > 0;
    });
  }

  std::string folder_;
  bool answer_ = true;
};

TEST_F(ShepherdPmixTest, RanksFindEachOtherAndReduce) {
  Start(OpenMpi(3, {}));
  ASSERT_TRUE(UntilFinished(std::chrono::seconds(60)));
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(exits_[rank].exit_code(), 0) << Err(rank);
    EXPECT_EQ(Out(rank), absl::StrCat("rank ", rank, " of 3 sum 3\n"));
    EXPECT_TRUE(HasJoined(rank));
  }
  EXPECT_TRUE(pmix_[0].has_ask());
  EXPECT_THAT(failures_, IsEmpty());
}

// The word of it comes with the rank's exit, however quick that is.
TEST_F(ShepherdPmixTest, AnAbortHasItsCode) {
  Start(OpenMpi(2, {"42"}));
  ASSERT_TRUE(Until([this] { return exits_.contains(1); }, std::chrono::seconds(60)));
  EXPECT_TRUE(exits_[1].aborted());
  EXPECT_EQ(exits_[1].abort_code(), 42);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_FALSE(exits_[0].aborted());
}

TEST_F(ShepherdPmixTest, WithoutAClientThereIsNoServer) {
  Start(Served(Shell(1, "exec sleep 60")));
  ASSERT_TRUE(UntilStarted());
  EXPECT_EQ(ServerPid(), 0);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(pmix_, IsEmpty());
}

TEST_F(ShepherdPmixTest, AServerThatIsKilledIsAFailureOfTheNode) {
  Start(OpenMpi(2, {"0", "wait"}));
  ASSERT_TRUE(
      Until([this] { return !Out(0).empty() || exits_.size() == 2; }, std::chrono::seconds(60)));
  const pid_t server = ServerPid();
  ASSERT_NE(server, 0);
  ASSERT_EQ(kill(server, SIGKILL), 0);
  ASSERT_TRUE(Until([this] { return !failures_.empty(); }));
  EXPECT_EQ(failures_[0].kind(), v1::NodeFailure::KIND_HELPER);
  EXPECT_EQ(failures_[0].exit_code(), 203);
  EXPECT_THAT(failures_[0].message(), HasSubstr("was killed by signal 9"));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// One that is stopped does not hold the end up.
TEST_F(ShepherdPmixTest, AServerThatIsStoppedIsKilledAtTheEnd) {
  Start(Connecting(1, "exec sleep 60"));
  ASSERT_TRUE(Until([this] { return !pmix_.empty() && ServerPid() != 0; }));
  ASSERT_EQ(kill(ServerPid(), SIGSTOP), 0);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

TEST_F(ShepherdPmixTest, WordsThatAreNoPmixHurtNobody) {
  Start(Connecting(2, "head -c 100000 /dev/urandom >&5; exit 0"));
  ASSERT_TRUE(UntilFinished(std::chrono::seconds(60)));
  EXPECT_THAT(failures_, IsEmpty());
}

// A client that was refused would go on alone.
TEST_F(ShepherdPmixTest, WithoutTheLibraryTheFailureNamesItAndTheClientIsHeld) {
  std::ofstream(folder_ + "/libpmix.so.2") << "not a library";
  v1::JobPart part = Connecting(1, "read -r x <&5; echo let go");
  v1::EnvVar& path = *part.add_env();
  path.set_name("LD_LIBRARY_PATH");
  path.set_value(folder_);
  Start(part);
  ASSERT_TRUE(Until([this] { return !failures_.empty(); }));
  EXPECT_EQ(failures_[0].kind(), v1::NodeFailure::KIND_HELPER);
  EXPECT_EQ(failures_[0].exit_code(), 201);
  EXPECT_THAT(failures_[0].message(),
              AllOf(HasSubstr("this node cannot serve it"), HasSubstr("libpmix.so.2"),
                    HasSubstr("install the library (package libpmix2")));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "");
  EXPECT_THAT(failures_, SizeIs(1));
}

TEST_F(ShepherdPmixTest, ALauncherThatDoesNotAnswerHoldsUpNoEnd) {
  answer_ = false;
  Start(OpenMpi(2, {}));
  ASSERT_TRUE(Until([this] { return !pmix_.empty(); }, std::chrono::seconds(60)));
  Stop(100);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "");
}

}  // namespace
}  // namespace dtrain::shepherd
