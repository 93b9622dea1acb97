// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/traceback_fold.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace dtrain::output {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kTraceback[] =
    "Traceback (most recent call last):\n"
    "  File \"train.py\", line 3, in <module>\n"
    "    raise ValueError(\"no data\")\n"
    "ValueError: no data";

class TracebackFoldTest : public testing::Test {
 protected:
  void Write(uint32_t rank, absl::string_view text) {
    for (absl::string_view line : absl::StrSplit(text, '\n'))
      Keep(fold_.Add(Rank(rank), line, now_));
  }
  void End(uint32_t rank) { Keep(fold_.End(Rank(rank), now_)); }
  void Later(Duration by) {
    now_ += by;
    Keep(fold_.Expire(now_));
  }
  void Keep(const TracebackFold::Lines& lines) {
    for (const auto& line : lines)
      absl::StrAppend(&shown_, line.rank.value(), "|", line.text, "\n");
  }
  std::string Of(uint32_t rank, absl::string_view text) {
    std::string out;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      absl::StrAppend(&out, rank, "|", line, "\n");
    }
    return out;
  }

  TracebackFold fold_;
  TimePoint now_{seconds(100)};
  std::string shown_;
};

TEST_F(TracebackFoldTest, OtherLinesPassAtOnce) {
  EXPECT_FALSE(fold_.Wants(Rank(0), "Training epoch 3"));
  EXPECT_FALSE(fold_.Wants(Rank(0), "[rank1]: Traceback (most recent call last):"));
  Write(0, "Training epoch 3");
  EXPECT_EQ(shown_, "0|Training epoch 3\n");
  EXPECT_EQ(fold_.deadline(), kNever);
}

TEST_F(TracebackFoldTest, TheSameOfSeveralRanksIsShownOnceHoweverTheLinesMix) {
  for (absl::string_view line : absl::StrSplit(kTraceback, '\n')) {
    for (uint32_t rank : {2u, 0u, 1u, 5u}) Write(rank, line);
  }
  EXPECT_EQ(shown_, "");
  Later(milliseconds(200));
  EXPECT_EQ(shown_, Of(0, kTraceback));
  EXPECT_THAT(fold_.TakeSummaries(),
              ElementsAre("ranks 1-2 and 5 wrote the same traceback as rank 0"));
  EXPECT_THAT(fold_.TakeSummaries(), IsEmpty());
  EXPECT_EQ(fold_.deadline(), kNever);
}

TEST_F(TracebackFoldTest, TheEndOfAStreamShowsItAtOnce) {
  Write(3, kTraceback);
  End(3);
  EXPECT_EQ(shown_, Of(3, kTraceback));
  Write(1, kTraceback);
  End(1);
  EXPECT_EQ(shown_, Of(3, kTraceback));
  EXPECT_THAT(fold_.TakeSummaries(), ElementsAre("rank 1 wrote the same traceback as rank 3"));
}

TEST_F(TracebackFoldTest, OneThatDiffersInALineIsShownWhole) {
  const std::string other = absl::StrCat(kTraceback, "!");
  Write(0, kTraceback);
  Write(1, other);
  Later(milliseconds(200));
  EXPECT_EQ(shown_, Of(0, kTraceback) + Of(1, other));
  EXPECT_FALSE(fold_.has_summaries());
}

// Eight ranks that have lost a ninth, each with its own socket and pid; and what C++ adds to that.
TEST_F(TracebackFoldTest, AddressesPidsAndRanksAreNoDifference) {
  for (uint32_t rank = 0; rank < 8; ++rank) {
    Write(rank, absl::StrCat("Traceback (most recent call last):\n  File \"a.py\", line 3\n"
                             "RuntimeError: rank ",
                             rank, " (pid ", 4000 + rank, "): closed by peer [::1]:", 50000 + rank,
                             "\nframe #0: c10::Error (0x7f", rank, "a in libc10.so)"));
    End(rank);
  }
  EXPECT_NE(shown_.find("0|RuntimeError: rank 0 (pid 4000): closed by peer [::1]:50000\n"),
            std::string::npos);
  EXPECT_EQ(shown_.find("\n1|"), std::string::npos) << shown_;
  EXPECT_THAT(
      fold_.TakeSummaries(),
      ElementsAre("ranks 1-7 wrote the same traceback as rank 0 but for addresses, pids and "
                  "numbers of ranks"));
}

TEST_F(TracebackFoldTest, OtherNumbersAreADifference) {
  const std::string other = "Traceback (most recent call last):\n  File \"a.py\"\nError: batch 4";
  Write(0, "Traceback (most recent call last):\n  File \"a.py\"\nError: batch 3");
  Write(1, other);
  Later(milliseconds(200));
  EXPECT_NE(shown_.find(Of(1, other)), std::string::npos) << shown_;
}

// PyTorch writes "[rank1]: " before every line of it.
TEST_F(TracebackFoldTest, TheRankThatPyTorchWritesIsNoDifference) {
  for (uint32_t rank : {0u, 1u}) {
    for (absl::string_view line : absl::StrSplit(kTraceback, '\n')) {
      Write(rank, absl::StrCat("[rank", rank, "]: ", line));
    }
    End(rank);
  }
  EXPECT_EQ(shown_.find("1|"), std::string::npos) << shown_;
  EXPECT_NE(shown_.find("0|[rank0]: ValueError: no data\n"), std::string::npos) << shown_;
}

TEST_F(TracebackFoldTest, WhatAProgressBarLeavesIsNoDifference) {
  const std::string first = absl::StrCat("\r10%|##\r       \r", kTraceback);
  Write(0, first);
  Write(1, absl::StrCat("\r20%|##\r       \r", kTraceback));
  Write(2, absl::StrReplaceAll(kTraceback, {{"\n", "\r\n"}}));
  Write(3, absl::StrReplaceAll(kTraceback, {{"last):", "last):   "}}));
  for (uint32_t rank : {0u, 1u, 2u, 3u}) End(rank);
  EXPECT_EQ(shown_, Of(0, first));
  EXPECT_THAT(fold_.TakeSummaries(), ElementsAre("ranks 1-3 wrote the same traceback as rank 0"));
  EXPECT_FALSE(fold_.Wants(Rank(4), "50%|##Traceback (most recent call last):"));
}

TEST_F(TracebackFoldTest, WhatARankWritesAfterItIsShown) {
  Write(0, absl::StrCat(kTraceback, "\nit gives up after 3 s"));
  End(0);
  shown_.clear();
  Write(1, absl::StrCat(kTraceback, "\nit gives up after 4 s"));
  End(1);
  EXPECT_EQ(shown_, "1|it gives up after 4 s\n");
}

TEST_F(TracebackFoldTest, ALaterRankMayGoOnWritingLongAfterItsTraceback) {
  Write(0, kTraceback);
  Later(milliseconds(200));
  Write(0, "again");
  EXPECT_EQ(shown_, Of(0, kTraceback) + "0|again\n");
}

TEST_F(TracebackFoldTest, AChainOfExceptionsIsOneTraceback) {
  const std::string chain = absl::StrCat(
      kTraceback, "\n\nDuring handling of the above exception, another exception occurred:\n\n",
      kTraceback);
  for (uint32_t rank : {0u, 1u}) {
    Write(rank, chain);
    End(rank);
  }
  EXPECT_EQ(shown_, Of(0, chain));
}

TEST_F(TracebackFoldTest, TheSameRankWritingItAgainIsShown) {
  for (int i = 0; i < 2; ++i) {
    Write(0, kTraceback);
    Later(milliseconds(200));
  }
  EXPECT_EQ(shown_, Of(0, kTraceback) + Of(0, kTraceback));
}

TEST_F(TracebackFoldTest, LongAfterwardsItIsShownAgain) {
  Write(0, kTraceback);
  Later(milliseconds(200));
  Later(seconds(31));
  Write(1, kTraceback);
  Later(milliseconds(200));
  EXPECT_EQ(shown_, Of(0, kTraceback) + Of(1, kTraceback));
}

TEST_F(TracebackFoldTest, OneThatNeverEndsIsShownAfterTwoSeconds) {
  Write(0, "Traceback (most recent call last):\n  File \"a.py\"");
  Later(milliseconds(1999));
  EXPECT_EQ(shown_, "");
  Later(milliseconds(1));
  EXPECT_EQ(shown_, "0|Traceback (most recent call last):\n0|  File \"a.py\"\n");
}

// A rank cannot make us hold what it likes.
TEST_F(TracebackFoldTest, WhatIsHeldIsBounded) {
  const std::string line(60 << 10, 'x');
  for (uint32_t rank = 0; rank < 100; ++rank) {
    Write(rank, "Traceback (most recent call last):");
    Write(rank, absl::StrCat("  ", rank, line));
  }
  EXPECT_GT(shown_.size(), 100 * line.size() - (5u << 20));
  const size_t shown = shown_.size();
  Write(0, absl::StrCat("  ", line));
  EXPECT_GT(shown_.size(), shown);
  for (uint32_t i = 0; i < 1000; ++i) {
    Write(1, absl::StrCat("Traceback (most recent call last):\nError: ", i));
    Later(milliseconds(300));
  }
  EXPECT_NE(shown_.find("1|Error: 999\n"), std::string::npos);
}

TEST(RankRangesTest, Texts) {
  EXPECT_EQ(RankRanges({3}), "rank 3");
  EXPECT_EQ(RankRanges({0, 1, 2, 5}), "ranks 0-2 and 5");
  EXPECT_EQ(RankRanges({0, 2, 5}), "ranks 0, 2 and 5");
}

}  // namespace
}  // namespace dtrain::output
