// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/failure_report.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/report/facts_fixture.h"

namespace dtrain::report {
namespace {

using testing::HasSubstr;
using testing::Not;

class FailureReportTest : public FactsTest {
 protected:
  void WorkerFailed(uint32_t rank, int exit_code) {
    verdict_.kind = job::Verdict::Kind::kWorker;
    verdict_.rank = Rank(rank);
    verdict_.exit_code = exit_code;
  }
};

TEST_F(FailureReportTest, ASuccessNeedsNoWords) {
  verdict_.kind = job::Verdict::Kind::kSuccess;
  EXPECT_EQ(FailureReport(Facts()), "");
}

TEST_F(FailureReportTest, TellsWhoFailedFirstWhereHowAndWhen) {
  WorkerFailed(3, 7);
  v1::WorkerExit& exit = End(3);
  exit.set_exit_code(7);
  exit.set_monotonic_nanos(12'340'000'000);
  exit.set_stderr_tail("Traceback:\n  boom\n");
  End(0).set_signal(15);
  End(1).set_exit_code(1);
  End(2);
  secondary_deaths_ = 2;
  EXPECT_EQ(FailureReport(Facts()),
            "dtrain: rank 3 on node2 (pid 4703) exited with code 7 after 12.3 s; the end of its "
            "stderr:\n"
            "  | Traceback:\n"
            "  |   boom\n"
            "dtrain: 2 other ranks failed or were stopped afterwards: 0, 1\n"
            "dtrain: exit code 7");
}

// By a traceback that came before another rank's exit; or it has ended after all.
TEST_F(FailureReportTest, TellsOfACauseThatHadNotEnded) {
  WorkerFailed(3, 1);
  verdict_.exited_first = Rank(0);
  End(0).set_exit_code(1);
  ranks_[0].ended_unix_nanos = 1'700'000'000'420'000'000;
  v1::WorkerExit& exit = End(3);
  exit.set_signal(15);
  exit.set_told_to_stop(true);
  exit.set_stderr_tail("ValueError: x\n");
  exit.set_monotonic_nanos(12'340'000'000);
  ranks_[3].seen.sign = job::Sign::kException;
  ranks_[3].seen.unix_nanos = 1'700'000'000'000'000'000;
  EXPECT_THAT(FailureReport(Facts()),
              HasSubstr("dtrain: rank 3 on node2 (pid 4703) raised an exception 0.42 s before rank "
                        "0 exited with code 1, and had not ended itself; the end of its stderr:\n"
                        "  | ValueError: x\n"));
  ranks_[3].seen.sign = job::Sign::kCrash;
  EXPECT_THAT(FailureReport(Facts()), HasSubstr(" crashed 0.42 s before rank 0 exited"));
  ranks_[3].seen.sign = job::Sign::kKilled;
  EXPECT_THAT(FailureReport(Facts()), HasSubstr(" saw its program killed 0.42 s before rank 0"));
  exit.set_signal(6);
  EXPECT_THAT(
      FailureReport(Facts()),
      HasSubstr("rank 3 on node2 (pid 4703) was killed by signal 6 (SIGABRT) after 12.3 s; "));
}

TEST_F(FailureReportTest, NamesTheGpuThatMayHaveCausedIt) {
  WorkerFailed(3, 7);
  End(3).set_exit_code(7);
  gpus_.push_back(
      {NodeId(0), 1, "reported Xid 31 (GPU memory page fault)", job::XidKind::kProgram});
  EXPECT_THAT(FailureReport(Facts()), Not(HasSubstr("Xid")));  // of another host's program
  gpus_.push_back(
      {NodeId(1), 2, "reported Xid 31 (GPU memory page fault)", job::XidKind::kProgram});
  EXPECT_THAT(
      FailureReport(Facts()),
      HasSubstr("\ndtrain: GPU 2 on node2 reported Xid 31 (GPU memory page fault): mostly an "
                "error of the program\n"));
  gpus_.push_back({NodeId(0), 0, "had 2 uncorrected ECC errors", job::XidKind::kHardware});
  EXPECT_THAT(FailureReport(Facts()),
              HasSubstr("\ndtrain: GPU 0 on node1 had 2 uncorrected ECC errors: a likely cause\n"));
  gpus_.push_back({NodeId(1), 3, "reported Xid 79", job::XidKind::kHardware});
  EXPECT_THAT(FailureReport(Facts()),
              HasSubstr("\ndtrain: GPU 3 on node2 reported Xid 79: a likely cause\n"));
  // Who ended it did so himself.
  verdict_.kind = job::Verdict::Kind::kSignal;
  EXPECT_THAT(FailureReport(Facts()), Not(HasSubstr("Xid")));
}

TEST_F(FailureReportTest, OneThatSaidNothingHasNoTail) {
  WorkerFailed(0, 139);
  End(0).set_signal(11);
  ranks_[0].exit.set_core_dumped(true);
  EXPECT_EQ(FailureReport(Facts()),
            "dtrain: rank 0 on node1 (pid 4700) was killed by signal 11 (SIGSEGV), core dumped\n"
            "dtrain: exit code 139");
}

TEST_F(FailureReportTest, NamesTheWayOfTheEnd) {
  v1::WorkerExit exit;
  exit.set_exit_code(1);
  EXPECT_EQ(DescribeEnd(exit), "exited with code 1");
  exit.set_exit_code(0);
  exit.set_signal(9);
  EXPECT_EQ(DescribeEnd(exit), "was killed by signal 9 (SIGKILL)");
  exit.set_out_of_memory(true);
  EXPECT_EQ(DescribeEnd(exit),
            "was killed by the kernel: out of memory (it has no cgroup limit; the node ran out "
            "of memory: use less, or place fewer ranks there)");
  exit.set_memory_limit_bytes(64 << 20);  // D15
  EXPECT_EQ(DescribeEnd(exit),
            "was killed by the kernel: out of memory (the limit of its cgroup is 64 MiB: raise it, "
            "or use less)");
  exit = {};
  exit.set_signal(40);
  EXPECT_EQ(DescribeEnd(exit), "was killed by signal 40");
  exit = {};
  exit.set_aborted(true);
  exit.set_abort_code(3);
  EXPECT_EQ(DescribeEnd(exit), "called abort with code 3");
}

constexpr char kErrorFile[] =
    R"({"message": {"message": "ValueError: \u001b[2Jboom", "extraInfo": {"timestamp": "5",)"
    R"( "py_callstack": "Traceback (most recent call last):\n  in main\nValueError: boom\n"}}})";

TEST_F(FailureReportTest, AnErrorFileNamesTheExceptionAndItsTraceback) {
  WorkerFailed(1, 1);
  End(1).set_exit_code(1);
  End(1).set_error_file(kErrorFile);
  End(1).set_stderr_tail("leaving\n");
  EXPECT_THAT(FailureReport(Facts()), HasSubstr("exited with code 1: ValueError: \\x1b[2Jboom\n"
                                                "dtrain: its traceback:\n"
                                                "  | Traceback (most recent call last):\n"
                                                "  |   in main\n"
                                                "  | ValueError: boom\n"
                                                "dtrain: the end of its stderr:\n"
                                                "  | leaving\n"));
}

TEST_F(FailureReportTest, ATracebackInTheTailIsNotRepeated) {
  WorkerFailed(1, 1);
  End(1).set_exit_code(1);
  End(1).set_error_file(kErrorFile);
  End(1).set_stderr_tail("Traceback (most recent call last):\n  in main\nValueError: boom\n");
  const std::string report = FailureReport(Facts());
  EXPECT_THAT(report, HasSubstr("ValueError: \\x1b[2Jboom; the end of its stderr:\n"));
  EXPECT_THAT(report, Not(HasSubstr("its traceback")));
}

TEST_F(FailureReportTest, AnErrorFileThatSaysNothingIsTold) {
  WorkerFailed(1, 1);
  End(1).set_exit_code(1);
  End(1).set_error_file(std::string(64 << 10, '\0'));
  EXPECT_THAT(FailureReport(Facts()),
              HasSubstr("exited with code 1 (its TORCHELASTIC_ERROR_FILE cannot "
                        "be used: it is not JSON, or cut short)\n"));
}

TEST_F(FailureReportTest, SecondariesThatWereNotAllToldAreOnlyCounted) {
  WorkerFailed(1, 1);
  End(1).set_exit_code(1);
  End(0).set_exit_code(1);
  secondary_deaths_ = 2;
  EXPECT_THAT(FailureReport(Facts()),
              HasSubstr("dtrain: 2 other ranks failed or were stopped afterwards\n"));
}

TEST_F(FailureReportTest, OtherEndsAreToldByTheVerdictItself) {
  verdict_.kind = job::Verdict::Kind::kNode;
  verdict_.message = "node2: nothing heard for 15 s";
  verdict_.exit_code = 202;
  EXPECT_EQ(FailureReport(Facts()), "dtrain: node2: nothing heard for 15 s\ndtrain: exit code 202");
}

// J3, J4, A19: what a worker wrote cannot act on the terminal.
TEST_F(FailureReportTest, TheTailIsHarmlessOnATerminal) {
  EXPECT_EQ(FormatTail("\x1b]52;c;x\x07\n"), "  | \\x1b]52;c;x\\x07");
  EXPECT_EQ(FormatTail("a\tb \\ \xff\n"), "  | a\tb \\ \\xff");
  EXPECT_EQ(FormatTail("10%\r50%\r100%\r\nnext"), "  | 100%\n  | next");
  EXPECT_EQ(FormatTail("\x1b[1;31mred\x1b[0m\x1b[K and \x1b[2Jnot\x1b[\x1b"),
            "  | red and \\x1b[2Jnot\\x1b[\\x1b");
  EXPECT_EQ(FormatTail(""), "");
}

TEST_F(FailureReportTest, TheTailIsTheLastTwentyLines) {
  std::string text;
  for (int i = 0; i < 30; ++i) absl::StrAppend(&text, "line", i, "\n");
  std::string tail = FormatTail(text);
  EXPECT_THAT(tail, Not(HasSubstr("line9\n")));
  EXPECT_EQ(tail.substr(0, 11), "  | line10\n");
  EXPECT_EQ(std::count(tail.begin(), tail.end(), '\n'), 19);
}

// The program did not handle it yet; a script says it with its exit code.
TEST_F(FailureReportTest, NamesWhoSentASignalThatWasPassedOn) {
  WorkerFailed(3, 138);
  End(3).set_signal(10);
  verdict_.passed_on = {10, "bash (pid 17, root)"};
  EXPECT_THAT(
      FailureReport(Facts()),
      HasSubstr("dtrain: rank 3 on node2 (pid 4703) was killed by signal 10 (SIGUSR1), which "
                "dtrain passed on from bash (pid 17, root); a program that has no handler "
                "for it yet ends\n"));
  End(3).set_signal(0);
  End(3).set_exit_code(138);
  verdict_.passed_on.from.clear();
  EXPECT_THAT(FailureReport(Facts()),
              HasSubstr("exited with code 138 (signal 10 (SIGUSR1), which dtrain passed on; a "
                        "program that has no handler for it yet ends)\n"));
}

TEST_F(FailureReportTest, SaysThatARankHadLeftEarly) {
  WorkerFailed(3, 1);
  End(3).set_exit_code(1);
  verdict_.message = "rank 1 had finished";
  EXPECT_THAT(FailureReport(Facts()),
              HasSubstr(" exited with code 1\ndtrain: rank 1 had finished\n"));
}

}  // namespace
}  // namespace dtrain::report
