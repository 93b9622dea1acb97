// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/page/worker_page.h"
#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

// A worker in Python that writes into its page as libdtrain does.
class PageTest : public ShepherdTest {
 protected:
  v1::JobPart Program(int workers, const std::string& body) {
    std::string script = "import mmap, os, signal, struct, sys, time\n";
    absl::StrAppend(&script,
                    "m = mmap.mmap(int(os.environ['DTRAIN_PAGE_FD']), 0)\n"
                    "def put(at, form, value): struct.pack_into(form, m, at, value)\n"
                    "now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)\n",
                    "JOINED, OPERATIONS, WAIT = ", offsetof(WorkerPage, joined), ", ",
                    offsetof(WorkerPage, operations), ", ", offsetof(WorkerPage, wait_ns), "\n",
                    "CHANGE, NUMBER, BEGIN, KIND = ", offsetof(WorkerPage, change), ", ",
                    offsetof(WorkerPage, number), ", ", offsetof(WorkerPage, begin_ns), ", ",
                    offsetof(WorkerPage, kind), "\n",
                    "WRITTEN, DROPPED, RING = ", offsetof(WorkerPage, written), ", ",
                    offsetof(WorkerPage, dropped), ", ", sizeof(WorkerPage), "\n", body);
    return Part(workers, {"/usr/bin/python3", "-c", script});
  }
};

constexpr char kInside[] =
    "put(OPERATIONS, 'Q', 7); put(WAIT, 'Q', 5000); put(NUMBER, 'Q', 7); put(KIND, 'I', 1)\n"
    "put(BEGIN, 'q', now - 3_000_000_000); put(JOINED, 'I', 1)\n";

TEST_F(PageTest, TellsWhatAStoppedWorkerIsInside) {
  Start(Program(1, absl::StrCat(kInside, "os.kill(os.getpid(), signal.SIGSTOP)\n")));
  ASSERT_TRUE(Until([&] { return progress_.count(0) > 0; }));
  const v1::RankProgress first = progress_[0];
  EXPECT_TRUE(first.joined());
  EXPECT_TRUE(first.inside());
  EXPECT_EQ(first.number(), 7u);
  EXPECT_EQ(first.kind(), static_cast<uint32_t>(TimelineKind::kAllreduce));
  EXPECT_EQ(first.operations(), 7u);
  EXPECT_EQ(first.wait_nanos(), 5000u);
  EXPECT_GE(first.inside_nanos(), 3'000'000'000);
  // Still told while nothing moves.
  ASSERT_TRUE(Until([&] { return progress_[0].inside_nanos() > first.inside_nanos(); }));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

TEST_F(PageTest, AWorkerWithoutTheLibraryTellsNothing) {
  Start(Program(2, "if os.environ['RANK'] == '1': put(OPERATIONS, 'Q', 3)\n"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(progress_.count(0), 0u);
  ASSERT_EQ(progress_.count(1), 1u);  // its last counters, though it was gone within the second
  EXPECT_EQ(progress_[1].operations(), 3u);
  EXPECT_FALSE(progress_[1].inside());
}

// 22: told whatever the program is, since when, and taken back when it goes on.
TEST_F(PageTest, AWorkerThatDoesNotRunIsTold) {
  Start(Program(2,
                "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)\n"
                "else: import time; time.sleep(60)\n"));
  ASSERT_TRUE(Until([&] { return progress_[1].process_state() == 'T'; }));
  EXPECT_TRUE(progress_[1].stopped());
  const int64_t since = progress_[1].state_since_unix_nanos();
  EXPECT_NEAR(static_cast<double>(since), static_cast<double>(absl::GetCurrentTimeNanos()), 60e9);
  progress_.erase(1);
  ASSERT_TRUE(Until([&] { return progress_.count(1) > 0; }));
  EXPECT_EQ(progress_[1].state_since_unix_nanos(), since);
  EXPECT_EQ(progress_.count(0), 0u);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// As a program that a script runs: the script itself only waits.
TEST_F(PageTest, AProcessBelowTheWorkerThatDoesNotRunIsTold) {
  Start(Program(1,
                "pid = os.fork()\n"
                "if pid == 0: os.kill(os.getpid(), signal.SIGSTOP)\n"
                "else:\n"
                "  os.waitpid(pid, 0)\n"));
  ASSERT_TRUE(Until([&] { return progress_[0].process_state() == 'T'; }));
  EXPECT_TRUE(progress_[0].stopped());
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

TEST_F(PageTest, AChangeThatWasNeverFinishedIsTold) {
  Start(Program(
      1, absl::StrCat(kInside, "put(CHANGE, 'Q', 1)\n", "os.kill(os.getpid(), signal.SIGKILL)\n")));
  ASSERT_TRUE(UntilFinished());
  ASSERT_EQ(progress_.count(0), 1u);
  EXPECT_EQ(progress_[0].number(), 7u);
}

constexpr char kRecords[] =
    "for i in range(N):\n"
    "  struct.pack_into('6q2Q2I40s', m, RING + (i % CAPACITY) * 112, now + i, now + i + 5, 0, 1, "
    "2, 2,"
    " i, 64, 1, 0, b'grad')\n"
    "put(OPERATIONS, 'Q', 1); put(DROPPED, 'Q', 9); put(WRITTEN, 'Q', N)\n";

TEST_F(PageTest, TakesTheRecordsOfTheTimeline) {
  v1::JobPart part = Program(1, absl::StrCat("N = CAPACITY = 300\n", kRecords));
  part.set_timeline_records(300);
  Start(std::move(part));
  ASSERT_TRUE(UntilFinished());
  const v1::Spans& spans = spans_[0];
  ASSERT_EQ(spans.number_step_size(), 300);
  EXPECT_EQ(spans.dropped(), 9u);
  const auto age = absl::GetCurrentTimeNanos() - spans.begin_step(0);
  EXPECT_GT(age, 0);
  EXPECT_LT(age, 60'000'000'000);  // turned into the node's clock
  for (int i = 1; i < 300; ++i) {
    EXPECT_EQ(spans.number_step(i), 1);
    EXPECT_EQ(spans.begin_step(i), 1);
  }
  EXPECT_EQ(spans.duration_nanos(0), 5);
  EXPECT_EQ(spans.wait_nanos(0), 1);
  EXPECT_EQ(spans.name_bytes(299), 4u);
  EXPECT_EQ(spans.names().size(), 300u * 4);
  EXPECT_EQ(spans.names().substr(0, 8), "gradgrad");
}

// More than the line to the agent takes at once, right before the end.
TEST_F(PageTest, AFullRingIsTakenWhole) {
  v1::JobPart part = Program(1, absl::StrCat("N = CAPACITY = 60000\n", kRecords));
  part.set_timeline_records(60'000);
  Start(std::move(part));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(spans_[0].number_step_size(), 60'000);
}

class LivingPageTest : public PageTest, public ::testing::WithParamInterface<int> {};

// Few wait for the next second, and are not forgotten.
TEST_P(LivingPageTest, TheRecordsAreTaken) {
  v1::JobPart part = Program(
      1, absl::StrCat("N = ", GetParam(), "; CAPACITY = 300\n", kRecords, "time.sleep(600)\n"));
  part.set_timeline_records(300);
  Start(std::move(part));
  EXPECT_TRUE(Until([&] { return spans_[0].number_step_size() == GetParam(); }));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

INSTANTIATE_TEST_SUITE_P(Records, LivingPageTest, ::testing::Values(3, 200));

TEST_F(PageTest, NonsenseInThePageHarmsNobody) {
  v1::JobPart part = Program(2,
                             "for i in range(0, len(m), 8): put(i, 'q', -1)\n"
                             "try: os.ftruncate(int(os.environ['DTRAIN_PAGE_FD']), 0)\n"
                             "except OSError: sys.exit(7)\n");
  part.set_timeline_records(10);
  Start(std::move(part));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].exit_code(), 7) << Err();  // sealed
  EXPECT_EQ(exits_[1].exit_code(), 7);
  EXPECT_EQ(spans_.count(0), 0u);
}

}  // namespace
}  // namespace dtrain::shepherd
