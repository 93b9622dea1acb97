// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/collective_watch.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::job {
namespace {

using testing::HasSubstr;
using testing::Not;

class CollectiveWatchTest : public testing::Test {
 protected:
  static TimePoint At(int seconds) { return TimePoint() + std::chrono::seconds(seconds); }
  void Tell(int at, uint32_t rank, uint64_t number, int inside_seconds = -1, uint32_t group = 0,
            bool stopped = false) {
    v1::RankProgress progress;
    progress.set_rank(rank);
    progress.set_joined(true);
    progress.set_operations(number);
    progress.set_number(number);
    progress.set_kind(1);
    progress.set_bytes(4096);
    progress.set_group(group);
    progress.set_stopped(stopped);
    progress.set_inside(inside_seconds >= 0);
    progress.set_inside_nanos(int64_t{inside_seconds} * 1'000'000'000);
    watch_.OnProgress(At(at), progress);
  }
  std::string Explain(int at) {
    return watch_.Explain(At(at), [](uint32_t rank) { return absl::StrCat("rank ", rank, "@h"); });
  }
  CollectiveWatch watch_;
};

TEST_F(CollectiveWatchTest, NobodyInsideHangsNowhere) {
  EXPECT_EQ(watch_.oldest(), kNever);
  Tell(10, 0, 5);
  EXPECT_EQ(watch_.oldest(), kNever);
  EXPECT_EQ(Explain(100), "");
}

TEST_F(CollectiveWatchTest, NamesTheRankThatHasNotCome) {
  Tell(10, 0, 7, 3);
  Tell(10, 1, 6);
  EXPECT_EQ(watch_.oldest(), At(7));
  EXPECT_EQ(Explain(70),
            "rank 0@h has been inside collective 7 (allreduce, 4096 bytes) for 63 s: it waits for "
            "rank 1@h (at 6), busy outside of collectives");
}

TEST_F(CollectiveWatchTest, ARankThatNeverCalledOneIsNamed) {
  Tell(10, 0, 0, 3);
  Tell(10, 1, 0);
  watch_.OnProgress(At(10), [] {
    v1::RankProgress progress;
    progress.set_rank(2);
    progress.set_joined(true);
    return progress;
  }());
  EXPECT_THAT(Explain(70), Not(HasSubstr("waits for")));  // all at number 0: it may just have ended
}

TEST_F(CollectiveWatchTest, AStoppedRankIsNamedBeforeAll) {
  for (uint32_t rank = 0; rank < 4; ++rank) Tell(10, rank, 7, 3, 0, rank == 2);
  EXPECT_THAT(Explain(70), HasSubstr(": rank 2@h is stopped (SIGSTOP or a debugger)"));
}

TEST_F(CollectiveWatchTest, WhenAllAreInsideTheLastToComeIsNamed) {
  Tell(10, 0, 7, 3);
  Tell(10, 1, 7, 1);
  Tell(10, 2, 7, 2);
  EXPECT_THAT(Explain(70), HasSubstr("no rank is behind, rank 1@h was the last to come"));
}

// The last bytes to one rank were lost: the others are done with this one, or in the next.
TEST_F(CollectiveWatchTest, RanksThatHaveLeftItAreNamed) {
  Tell(10, 0, 8, 2);
  Tell(10, 1, 7, 3);
  Tell(10, 2, 7);
  EXPECT_THAT(Explain(70), HasSubstr("rank 1@h has been inside collective 7"));
  EXPECT_THAT(Explain(70), HasSubstr("no rank is behind, rank 0@h, rank 2@h have left it already; "
                                     "the network between them may be broken"));
}

TEST_F(CollectiveWatchTest, ARankInAnEarlierOneIsNamed) {
  Tell(10, 0, 7, 3);
  Tell(10, 1, 5, 9);
  Tell(11, 0, 7, 4);
  // The oldest is the one in the earlier collective; who is ahead is not to blame.
  EXPECT_EQ(watch_.oldest(), At(1));
  EXPECT_THAT(Explain(70), HasSubstr("rank 1@h has been inside collective 5"));
  EXPECT_THAT(Explain(70), Not(HasSubstr("waits for")));
}

TEST_F(CollectiveWatchTest, TheStartIsTheFirstThatWasTold) {
  Tell(10, 0, 7, 3);
  Tell(11, 0, 7, 9);  // the clock of the page is not believed twice
  EXPECT_EQ(watch_.oldest(), At(7));
  Tell(12, 0, 8, 0);
  EXPECT_EQ(watch_.oldest(), At(12));
}

TEST_F(CollectiveWatchTest, EndedRanksAndThoseThatLeftAreForgotten) {
  Tell(10, 0, 7, 3);
  watch_.OnEnded(0);
  EXPECT_EQ(watch_.oldest(), kNever);
  watch_.OnEnded(99);
}

TEST_F(CollectiveWatchTest, InAGroupOnlyStoppedRanksAreNamed) {
  Tell(10, 0, 7, 3, 2);
  Tell(10, 1, 1);
  EXPECT_THAT(Explain(70), HasSubstr("collective 7 of a group"));
  EXPECT_THAT(Explain(70), HasSubstr("members of that group are not known here"));
  EXPECT_THAT(Explain(70), Not(HasSubstr("waits for")));
}

TEST_F(CollectiveWatchTest, ManyNamesAreCut) {
  Tell(10, 0, 7, 3);
  for (uint32_t rank = 1; rank < 30; ++rank) Tell(10, rank, 6);
  EXPECT_THAT(Explain(70), HasSubstr("rank 8@h (at 6) and 21 more"));
}

TEST_F(CollectiveWatchTest, NonsenseTimesDoNoHarm) {
  v1::RankProgress progress;
  progress.set_rank(0);
  progress.set_joined(true);
  progress.set_inside(true);
  progress.set_inside_nanos(INT64_MIN);
  watch_.OnProgress(At(10), progress);
  EXPECT_EQ(watch_.oldest(), At(10));
}

}  // namespace
}  // namespace dtrain::job
