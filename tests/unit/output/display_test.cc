// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/display.h"

#include <gmock/gmock.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::output {
namespace {

using std::chrono::milliseconds;
using Kind = Display::Kind;

constexpr int kOut = v1::STREAM_KIND_STDOUT;
constexpr int kErr = v1::STREAM_KIND_STDERR;

class DisplayTest : public testing::Test {
 protected:
  explicit DisplayTest(Kind kind = Kind::kTerminal) : display_(kind) {
    display_.SetSharing({3, false, false});
  }
  // What is written for it.
  std::string Add(uint32_t rank, absl::string_view bytes, int stream = kOut) {
    display_.Add(
        {rank, stream}, [&] { return absl::StrCat("[", rank, "] "); }, bytes, At());
    return Take();
  }
  std::string Take() {
    return display_.Take(At(), [&] { return size_; });
  }
  std::string After(int ms) {
    now_ += milliseconds(ms);
    return Take();
  }
  std::string Say(absl::string_view text) {
    display_.Say(text);
    return Take();
  }
  Display::Moment At() const { return {now_, ""}; }

  Display display_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  Display::Size size_;
};

class PipeTest : public DisplayTest {
 protected:
  PipeTest() : DisplayTest(Kind::kPipe) {}
};

class FileTest : public DisplayTest {
 protected:
  FileTest() : DisplayTest(Kind::kFile) {}
};

// The connection broke in the middle of a line: its worker may have written all of it long ago.
TEST_F(PipeTest, ALineThatWasCutOnTheWayDoesNotStand) {
  EXPECT_EQ(Add(0, "half"), "");
  display_.Cut({0, kOut});
  EXPECT_EQ(After(5000), "");
  EXPECT_EQ(display_.deadline(), kNever);
  EXPECT_EQ(Add(0, " a line\nhalf"), "[0] half a line\n");
  display_.Cut({0, kOut});
  EXPECT_EQ(After(5000), "");
  EXPECT_EQ(Add(0, " way? "), "");
  EXPECT_EQ(After(1000), "[0] half way? ");
}

TEST_F(DisplayTest, LinesPassAtOnceAndNothingIsDrawn) {
  EXPECT_EQ(Add(0, "one\ntwo\n"), "[0] one\n[0] two\n");
  EXPECT_EQ(Say("dtrain: a word"), "dtrain: a word\n");
  EXPECT_EQ(display_.deadline(), kNever);
}

TEST_F(DisplayTest, ALineThatIsSoonFinishedDoesNotStand) {
  EXPECT_EQ(Add(0, "be"), "");
  EXPECT_EQ(display_.deadline(), now_ + Display::kQuiet);
  EXPECT_EQ(After(99), "");
  EXPECT_EQ(Add(0, "gun\n"), "[0] begun\n");
}

TEST_F(DisplayTest, APromptIsDrawnAfterAQuietTimeWithTheCursorBehindIt) {
  Add(0, "Name? ");
  EXPECT_EQ(After(100), "[0] Name? ");
  EXPECT_EQ(display_.deadline(), kNever);
  now_ += std::chrono::seconds(1);
  EXPECT_EQ(Add(1, "talk\n"), "\r\033[J[1] talk\n[0] Name? ");
  // Not again for each line.
  EXPECT_EQ(Add(1, "more\n"), "");
  EXPECT_EQ(display_.deadline(), now_ + Display::kFrame);
  EXPECT_EQ(Add(1, "talk\n"), "");
  EXPECT_EQ(After(33), "\r\033[J[1] more\n[1] talk\n[0] Name? ");
  now_ += std::chrono::seconds(1);
  EXPECT_EQ(Add(0, "bob\n"), "\r\033[J[0] Name? bob\n");
}

TEST_F(DisplayTest, ABarIsDrawnInPlaceTenTimesASecond) {
  Add(0, "\r10%");
  EXPECT_EQ(After(100), "[0] 10%\r");
  EXPECT_EQ(Add(0, "\r20%"), "");
  EXPECT_EQ(display_.deadline(), now_ + Display::kQuiet);
  EXPECT_EQ(Add(0, "\r30%"), "");
  EXPECT_EQ(After(100), "\r\033[J[0] 30%\r");
  // Nothing new is nothing to draw.
  EXPECT_EQ(Add(0, "\r30%"), "");
  EXPECT_EQ(After(100), "");
  EXPECT_EQ(display_.deadline(), kNever);
  EXPECT_EQ(Add(0, "\n"), "\r\033[J[0] 30%\n");
}

TEST_F(DisplayTest, RanksHaveRowsAndTheCursorStaysInTheFirst) {
  Add(1, "\rb");
  Add(0, "\ra", kErr);
  EXPECT_EQ(After(100), "[0] a\n[1] b\033[1A\r");
  Add(0, "Go? ");
  EXPECT_EQ(After(100), "\r\033[J[0] Go? \n[0] a\n[1] b\033[2A\r[0] Go? ");
}

TEST_F(DisplayTest, InASmallWindowRank0AndACount) {
  for (uint32_t rank : {0u, 1u, 2u}) Add(rank, absl::StrCat("\rbar ", rank));
  size_ = {80, 4};
  EXPECT_EQ(After(100), "[0] bar 0\n[1] bar 1\n[2] bar 2\033[2A\r");
  size_ = {80, 3};
  Add(0, "\rbar x");
  EXPECT_EQ(After(100), "\r\033[J[0] bar x\n(and 2 more ranks)\033[1A\r");
  size_ = {8, 2};
  Add(0, "\rbar y");
  EXPECT_EQ(After(100), "\r\033[J[0] bar\n(and 2 \033[1A\r");
}

TEST_F(DisplayTest, OfALongPromptTheEndIsShown) {
  size_ = {20, 24};
  Add(0, "a question that is too long? ");
  EXPECT_EQ(After(100), "[0] ...s too long? ");
  Add(0, "\rand a bar that is too long too");
  EXPECT_EQ(After(100), "\r\033[J[0] and a bar that \r");
}

TEST_F(DisplayTest, AnAnswerLeavesThePromptWhereItIs) {
  Add(0, "Name? ");
  Add(1, "\r10%");
  EXPECT_EQ(After(100), "[0] Name? \n[1] 10%\033[1A\r[0] Name? ");
  display_.UserEndedLine();
  EXPECT_EQ(Take(), "\r\033[J[1] 10%\r");
  EXPECT_EQ(Add(0, "hello\n"), "");
  EXPECT_EQ(After(100), "\r\033[J[0] hello\n[1] 10%\r");
}

// The answer's echo moved the cursor down before these rows were drawn, and was read after that.
TEST_F(DisplayTest, AnAnswerThatIsReadLateLeavesNoCopyOfThePrompt) {
  Add(0, "Name? ");
  EXPECT_EQ(After(100), "[0] Name? ");
  Add(1, "talk\n");
  EXPECT_EQ(After(100), "\r\033[J[1] talk\n[0] Name? ");
  display_.UserEndedLine();
  EXPECT_EQ(Add(1, "more\n"), "\r\033[J[1] more\n");
}

TEST_F(DisplayTest, WhatStandsAtTheEndIsALine) {
  Add(0, "\r10%\r20%");
  Add(1, "no end");
  After(100);
  display_.EndAll(At());
  display_.Say("report");
  EXPECT_EQ(Take(), "\r\033[J[0] 20%\n[1] no end\nreport\n");
}

TEST_F(DisplayTest, TheLiveLineStandsBelowUntilOtherOutput) {
  display_.SetStatus("stop 1/2");
  EXPECT_EQ(Take(), "stop 1/2");
  EXPECT_EQ(Add(0, "\r10%"), "\r\033[J");
  EXPECT_EQ(After(100), "[0] 10%\r");
  display_.SetStatus("stop 1/2");
  EXPECT_EQ(Take(), "\r\033[J[0] 10%\nstop 1/2\033[1A\r");
  display_.SetStatus("");
  EXPECT_EQ(Take(), "\r\033[J[0] 10%\r");
}

TEST_F(DisplayTest, ATerminalThatTakesNothingIsNotDrawnOn) {
  Add(0, "\r10%");
  now_ += milliseconds(100);
  EXPECT_EQ(display_.Take(
                At(), [&] { return size_; }, /*may_draw=*/false),
            "");
  EXPECT_EQ(Take(), "[0] 10%\r");
}

TEST_F(DisplayTest, ALoneRankPassesAndOurWordsBeginALine) {
  display_.SetSharing({1, false, true});
  EXPECT_EQ(Add(0, "\r10%\033[A"), "\r10%\033[A");
  display_.SetStatus("stop");
  EXPECT_EQ(Take(), "\nstop");
  EXPECT_EQ(Add(0, "\r20%"), "\r\033[J\r20%");
  EXPECT_EQ(Say("dtrain: bye"), "\ndtrain: bye\n");
}

TEST_F(DisplayTest, NothingOfAnothersJobIsObeyedButCarriageReturns) {
  display_.SetSharing({1, false, false, true});
  EXPECT_EQ(Add(0, "\033[31mred\033[2J\rx\344\n"), "[0] \\x1b[31mred\\x1b[2J\r[0] x\\xe4\n");
  Add(0, "\r\033[31m10%");
  EXPECT_EQ(After(100), "[0] \\x1b[31m10%\r");
}

TEST_F(PipeTest, ABarIsWrittenOnceASecond) {
  Add(0, "\r1%");
  EXPECT_EQ(After(999), "");
  Add(0, "\r2%");
  EXPECT_EQ(After(1), "[0] 2%\n");
  for (int i = 3; i < 10; ++i) EXPECT_EQ(Add(0, absl::StrCat("\r", i, "%")), "");
  EXPECT_EQ(display_.deadline(), now_ + Display::kElsewhere);
  EXPECT_EQ(After(1000), "[0] 9%\n");
  EXPECT_EQ(Add(0, "\r100%\n"), "[0] 100%\n");
}

TEST_F(PipeTest, ALineThatIsFinishedWithinASecondIsAsItWasWritten) {
  EXPECT_EQ(Add(0, "\r1%\r2"), "");
  EXPECT_EQ(After(500), "");
  EXPECT_EQ(Add(0, "%\r\n"), "[0] \r1%\r2%\r\n");
}

TEST_F(PipeTest, APromptGoesOnBehindItsEndUnlessOthersWrite) {
  Add(0, "Name? ");
  EXPECT_EQ(After(1000), "[0] Name? ");
  EXPECT_EQ(Add(0, "bob\n"), "bob\n");
  Add(0, "Again? ");
  EXPECT_EQ(After(1000), "[0] Again? ");
  EXPECT_EQ(Add(1, "talk\n"), "\n[1] talk\n");
  EXPECT_EQ(Add(0, "yes\n"), "[0] Again? yes\n");
  Add(0, "Well? ");
  EXPECT_EQ(After(1000), "[0] Well? ");
  EXPECT_EQ(Say("dtrain: a word"), "\ndtrain: a word\n");
  EXPECT_EQ(Add(0, "\n"), "");
}

TEST_F(PipeTest, DotsGoOn) {
  Add(0, ".");
  EXPECT_EQ(After(1000), "[0] .");
  Add(0, ".");
  EXPECT_EQ(Add(0, "."), "");
  EXPECT_EQ(After(1000), "..");
  display_.EndAll(At());
  EXPECT_EQ(Take(), "\n");
}

TEST_F(FileTest, EachStateIsALine) {
  Add(0, "Name? ");
  EXPECT_EQ(After(1000), "[0] Name? \n");
  EXPECT_EQ(Add(0, "bob\n"), "[0] Name? bob\n");
}

TEST_F(PipeTest, NestedBarsAreWrittenRowByRow) {
  EXPECT_EQ(Add(0, "\router\n\rinner 1\033[A"), "[0] outer\n");
  Add(0, "\router 1\n\rinner 2\033[A");
  EXPECT_EQ(After(1000), "[0] outer 1\n[0] inner 2\n");
  Add(0, "\n\rinner 3\033[A");
  EXPECT_EQ(After(1000), "[0] inner 3\n");
}

}  // namespace
}  // namespace dtrain::output
