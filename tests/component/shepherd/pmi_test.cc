// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>

#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// Plays the launcher of a job on one node: releases each fence with what was put.
class PmiTest : public ShepherdTest {
 protected:
  void OnEvent(const v1::JobEvent& event) override {
    if (event.kind_case() == v1::JobEvent::kExit &&
        (event.exit().exit_code() != 0 || event.exit().aborted())) {
      Stop(0);
    }
    if (event.kind_case() != v1::JobEvent::kFenceEnter || !release_) return;
    v1::JobRequest request;
    v1::FenceRelease* release = request.mutable_fence_release();
    release->set_sequence(event.fence_enter().sequence());
    *release->mutable_entries() = event.fence_enter().entries();
    Send(request);
  }
  // Shell functions of a PMI client: `ask LINE` prints the answer; PMI-2's `frame BODY` and `body`,
  // which reads one, too.
  v1::JobPart Client(int workers, const std::string& script) {
    return Shell(workers,
                 "ask() { echo \"$1\" >&$PMI_FD; read -r answer <&3; echo \"$answer\"; }\n"
                 "body() { n=$(head -c 6 <&3); head -c $n <&3; echo; }\n"
                 "frame() { printf '%6d%s' ${#1} \"$1\" >&3; body; }\n"
                 "two='cmd=init pmi_version=2 pmi_subversion=0'\n"
                 "k=kvsname=" +
                     job_id_ + "_0\n" + script);
  }
  bool release_ = true;
};

TEST_F(PmiTest, ValuesCrossABarrier) {
  Start(Client(3,
               "ask 'cmd=init pmi_version=1 pmi_subversion=1' >&2\n"
               "ask \"cmd=put $k key=r$PMI_RANK value=v$PMI_RANK\" >&2\n"
               "ask cmd=barrier_in\n"
               "ask \"cmd=get $k key=r$(( (PMI_RANK + 1) % PMI_SIZE ))\"\n"
               "ask cmd=barrier_in\n"
               "ask cmd=finalize\n"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(fences_, SizeIs(2));
  EXPECT_EQ(fences_[0].entries_size(), 3);
  EXPECT_EQ(Out(2),
            "cmd=barrier_out\ncmd=get_result rc=0 msg=success value=v0\n"
            "cmd=barrier_out\ncmd=finalize_ack\n");
  for (auto& [rank, exit] : exits_) EXPECT_FALSE(exit.aborted());
}

// libdtrain does so, a few dozen at a time.
TEST_F(PmiTest, RequestsThatComeTogetherAreAnsweredInOrder) {
  Start(Client(1,
               "ask \"cmd=put $k key=a value=first\"; ask \"cmd=put $k key=b value=second\"\n"
               "printf \"cmd=get $k key=a\\ncmd=get $k key=b\\n%.0s\" $(seq 500) >&3 &\n"
               "head -n 1000 <&3 | uniq -c | awk '{print $1, $NF}' "
               "| sort | uniq -c | awk '{print $1, $2, $3}'\n"
               "wait; ask cmd=finalize\n"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(0),
            "cmd=put_result rc=0 msg=success\ncmd=put_result rc=0 msg=success\n"
            "500 1 value=first\n500 1 value=second\ncmd=finalize_ack\n");
}

TEST_F(PmiTest, AnAbortIsToldWithTheExit) {
  Start(Client(2, "[ $PMI_RANK = 1 ] && { echo cmd=abort exitcode=7 >&3; exit 7; }; sleep 600"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_TRUE(exits_[1].aborted());
  EXPECT_EQ(exits_[1].abort_code(), 7);
  EXPECT_EQ(exits_[1].exit_code(), 7);
  EXPECT_FALSE(exits_[0].aborted());
  EXPECT_TRUE(exits_[0].told_to_stop());
}

// The shepherd is stopped meanwhile. Then it hears of the exit before it has read all of the
// message, which takes it ten reads.
TEST_F(PmiTest, AnAbortThatIsHeardAfterASuccessfulExitCounts) {
  v1::JobPart part =
      Client(1,
             "ask \"$two\"\n"
             "abort=\"cmd=abort;exitcode=0;message=$(printf '%40000d' 0)\"\n"
             "read -r go; kill -STOP $PPID; printf '%6d%s' ${#abort} \"$abort\" >&3\n"
             "exit 0");
  part.mutable_workers(0)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  Start(std::move(part));
  ASSERT_TRUE(UntilStarted());
  const std::vector<os::UniqueFd> workers = WorkerPidfds();
  ASSERT_EQ(workers.size(), 1u);
  bool ended = false;
  loop::FdWatch watch(loop_, workers[0].get());
  watch.OnReadable([&] { ended = true; });
  Stdin(0, "go\n", /*end=*/false);
  ASSERT_TRUE(Until([&] { return ended; }));
  ASSERT_TRUE(os::SendSignal(shepherd_.get(), SIGCONT).ok());
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].exit_code(), 0);
  EXPECT_EQ(exits_[0].signal(), 0);
  EXPECT_TRUE(exits_[0].aborted());
  EXPECT_EQ(exits_[0].abort_code(), 0);
}

TEST_F(PmiTest, AnAbortThatDoesNotExitIsKilled) {
  Start(Client(1, "echo cmd=abort exitcode=7 >&3; sleep 600"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_TRUE(exits_[0].aborted());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
  // It was given time to end, and told when it asked.
  EXPECT_GT(exits_[0].unix_nanos() - exits_[0].abort_unix_nanos(), 100'000'000);
  EXPECT_LT(exits_[0].unix_nanos() - exits_[0].abort_unix_nanos(), 60'000'000'000);
}

TEST_F(PmiTest, WhoAbortsAgainAndAgainIsKilled) {
  Start(Client(1, "while :; do echo cmd=abort exitcode=7 >&3; sleep 0.05; done"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_TRUE(exits_[0].aborted());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
}

// C5
TEST_F(PmiTest, GarbageCutsOffItsRankAlone) {
  Start(Client(2,
               "if [ $PMI_RANK = 0 ]; then head -c 100000 /dev/urandom >&3; cat <&3; exit 0; fi\n"
               "ask cmd=get_maxes; ask cmd=barrier_in; ask cmd=finalize"));
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("rank 0"));
  EXPECT_THAT(Out(1), HasSubstr("cmd=barrier_out\ncmd=finalize_ack\n"));
}

TEST_F(PmiTest, BothVersionsCrossTheSameFence) {
  Start(Client(2,
               "if [ $PMI_RANK = 0 ]; then\n"
               "ask \"$two\"; frame 'cmd=fullinit;'\n"
               "frame 'cmd=kvs-put;key=r0;value=v;;0;'; frame 'cmd=kvs-fence;'\n"
               "frame 'cmd=kvs-get;key=r1;'; frame 'cmd=kvs-fence;'; frame 'cmd=finalize;'\n"
               "else\n"
               "ask \"cmd=put $k key=r1 value=v1\"; ask cmd=barrier_in\n"
               "ask \"cmd=get $k key=r0\"; ask cmd=barrier_in; ask cmd=finalize\n"
               "fi"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(fences_, SizeIs(2));
  EXPECT_EQ(Out(0),
            "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n"
            "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=0;size=2;appnum=0;"
            "debugged=FALSE;pmiverbose=FALSE;\n"
            "cmd=kvs-put-response;rc=0;\ncmd=kvs-fence-response;rc=0;\n"
            "cmd=kvs-get-response;rc=0;found=TRUE;value=v1;\n"
            "cmd=kvs-fence-response;rc=0;\ncmd=finalize-response;rc=0;\n");
  EXPECT_EQ(Out(1),
            "cmd=put_result rc=0 msg=success\ncmd=barrier_out\n"
            "cmd=get_result rc=0 msg=success value=v;0\ncmd=barrier_out\ncmd=finalize_ack\n");
  EXPECT_THAT(warnings_, SizeIs(0));
}

TEST_F(PmiTest, FramesMayComeInPiecesOrTogether) {
  Start(Client(1,
               "ask \"$two\"\n"
               "printf '    13cmd=fullinit;    14cmd=job-getid;' | dd bs=1 status=none >&3\n"
               "body; body\n"
               "{ for i in $(seq 100); do printf '14    cmd=job-getid;'; done; } >&3 &\n"
               "for i in $(seq 100); do body; done | uniq -c | awk '{print $1}'\n"
               "wait; frame 'cmd=finalize;'\n"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(Out(0), HasSubstr(absl::StrCat("\ncmd=job-getid-response;rc=0;jobid=", job_id_,
                                             "_0;\n100\ncmd=finalize-response;rc=0;\n")));
}

TEST_F(PmiTest, GarbageInsteadOfAFrameCutsOffItsRankAlone) {
  Start(Client(3,
               "ask \"$two\"; frame 'cmd=fullinit;'\n"
               "case $PMI_RANK in\n"
               "0) printf '   -12cmd=kvs-put;' >&3; cat <&3; exit 0;;\n"
               "1) printf ' 65536cmd=kvs-put;' >&3; exit 0;;\n"
               "esac\n"
               "frame 'cmd=kvs-fence;'; frame 'cmd=finalize;'"));
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("rank 0 was cut off from PMI (PMI_FD): it sent a frame whose "
                                      "length is not a number from 1 to 65536: \"   -12\""));
  EXPECT_THAT(Out(2), HasSubstr("cmd=kvs-fence-response;rc=0;\ncmd=finalize-response;rc=0;\n"));
}

TEST_F(PmiTest, AnAbortWithoutACodeTakesThatOfTheExit) {
  Start(Client(2,
               "ask \"$two\"\n"
               "[ $PMI_RANK = 0 ] || { printf '    23cmd=abort;isworld=TRUE;' >&3; exit 7; }\n"
               "sleep 600"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_TRUE(exits_[1].aborted());
  EXPECT_EQ(exits_[1].abort_code(), 7);
  EXPECT_TRUE(exits_[0].told_to_stop());
}

TEST_F(PmiTest, AnAbortWithoutACodeOrAnExitIsKilled) {
  Start(Client(1, "ask \"$two\"; printf '    23cmd=abort;isworld=TRUE;' >&3; sleep 600"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_TRUE(exits_[0].aborted());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
  EXPECT_EQ(exits_[0].abort_code(), 1);
}

TEST_F(PmiTest, AClientThatNeverReadsBlocksNobody) {
  Start(Client(2,
               "if [ $PMI_RANK = 0 ]; then yes cmd=get_maxes >&3 & read -r x; sleep 0.2; kill $!; "
               "exit 0; fi\n"
               "for i in 1 2 3 4 5; do ask cmd=get_appnum; done"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].exit_code(), 0);
  EXPECT_EQ(exits_[1].exit_code(), 0);
}

TEST_F(PmiTest, AFenceThatIsNeverReleasedCanBeStopped) {
  release_ = false;
  Start(Client(2, "ask cmd=barrier_in"));
  ASSERT_TRUE(Until([&] { return !fences_.empty(); }));
  Stop(60000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGTERM);
}

// MPICH as Debian ships it, unmodified.
class MpichTest : public PmiTest {
 protected:
  void Run(int workers, const std::string& mapping, const std::string& argument) {
    if (access("/usr/bin/mpicc.mpich", X_OK) != 0) GTEST_SKIP() << "mpich is not installed";
    if (system("ldd /usr/lib/*/libmpich.so | grep -q libpmix") == 0) {
      GTEST_SKIP() << "this release's MPICH speaks PMIx only";  // Ubuntu 24.04
    }
    char name[] = "/tmp/dtrain-mpich-XXXXXX";
    std::string directory = mkdtemp(name);
    std::ofstream(directory + "/t.c") << R"(
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size, sum = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("rank %d of %d sum %d\n", rank, size, sum);
  fflush(stdout);
  if (argc > 1 && rank == 1) MPI_Abort(MPI_COMM_WORLD, atoi(argv[1]));
  MPI_Finalize();
  return 0;
}
)";
    ASSERT_EQ(system(absl::StrCat("mpicc.mpich -o ", directory, "/t ", directory, "/t.c").c_str()),
              0);
    v1::JobPart part = Part(workers, {directory + "/t"});
    if (!argument.empty()) part.mutable_programs(0)->add_argv(argument);
    part.set_process_mapping(mapping);
    Start(part);
    EXPECT_TRUE(UntilFinished(std::chrono::seconds(60)));
    (void)!system(absl::StrCat("rm -rf ", directory).c_str());
  }
};

TEST_F(MpichTest, RanksFindEachOtherAndReduce) {
  Run(4, "(vector,(0,1,4))", "");
  if (IsSkipped()) return;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(exits_[rank].exit_code(), 0) << Err(rank);
    EXPECT_EQ(Out(rank), absl::StrCat("rank ", rank, " of 4 sum 6\n"));
  }
}

TEST_F(MpichTest, TheMappingMayBeMissing) {
  Run(2, "", "");
  if (IsSkipped()) return;
  EXPECT_EQ(Out(1), "rank 1 of 2 sum 1\n");
}

TEST_F(MpichTest, MpiAbortGivesItsCode) {
  Run(2, "(vector,(0,1,2))", "7");
  if (IsSkipped()) return;
  EXPECT_TRUE(exits_[1].aborted());
  EXPECT_EQ(exits_[1].abort_code(), 7);
  EXPECT_THAT(Err(1), Not(HasSubstr("[cli_")));  // the client library is content
}

}  // namespace
}  // namespace dtrain::shepherd
