// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/router.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <pty.h>
#include <sys/resource.h>
#include <termios.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/component/output/router_fixture.h"
#include "tests/support/no_threads.h"

namespace dtrain::output {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

TEST_F(RouterTest, LinesAreTaggedAndStdoutStaysApartFromStderr) {
  Make({}, 2);
  router_->Deliver("a", Rank(0), kOut, "hello\n");
  router_->Deliver("b", Rank(1), kErr, "oops\n");
  router_->Say("dtrain: a word");
  Finish();
  EXPECT_EQ(Out(), "[0] hello\n");
  EXPECT_EQ(Err(), "[1] oops\ndtrain: a word\n");
}

constexpr char kTraceback[] = "Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 1\n";
constexpr char kFirstTraceback[] =
    "[0] Traceback (most recent call last):\n[0]   File \"a.py\"\n[0] KeyError: 1\n";

TEST_F(RouterTest, ATracebackOfSeveralRanksIsShownOnceBeforeOurWords) {
  Make({}, 3);
  for (uint32_t rank : {0u, 1u, 2u}) {
    router_->Deliver("a", Rank(rank), kErr, kTraceback);
    router_->EndOfStream(Rank(rank), kErr);
  }
  router_->Say("dtrain: rank 0 failed");
  Finish();
  EXPECT_EQ(Err(), absl::StrCat(kFirstTraceback,
                                "dtrain: ranks 1-2 wrote the same traceback as rank 0 (--no-fold "
                                "shows them all)\ndtrain: rank 0 failed\n"));
}

TEST_F(RouterTest, WhatIsSaidAfterAFlushComesAfterHeldLines) {
  Make({}, 2);
  router_->Deliver("a", Rank(0), kErr, kTraceback);
  router_->Deliver("a", Rank(1), kErr, "no end");
  router_->FlushLines();
  router_->Say("the report");
  Finish();
  EXPECT_EQ(Err(), absl::StrCat(kFirstTraceback, "[1] no end\nthe report\n"));
}

TEST_F(RouterTest, ATracebackIsShownWhileItsRankGoesOn) {
  Make({}, 2);
  router_->Deliver("a", Rank(0), kErr, kTraceback);
  router_->Deliver("a", Rank(1), kErr, kTraceback);
  RunUntil([&] { return absl::StrContains(Err(), "rank 1 wrote the same"); });
  EXPECT_TRUE(absl::StartsWith(Err(), kFirstTraceback)) << Err();
  Finish();
}

TEST_F(RouterTest, LogFilesHoldEveryTracebackAndNoFoldShowsIt) {
  Options options;
  options.log_dir = dir_ + "/logs";
  Make(options, 2);
  ASSERT_TRUE(router_->Open().ok());
  for (uint32_t rank : {0u, 1u}) router_->Deliver("a", Rank(rank), kErr, kTraceback);
  Finish();
  EXPECT_EQ(ReadFile(dir_ + "/logs/rank-00001.err"), kTraceback);
  options.fold = false;
  options.log_dir.clear();
  Make(options, 2);
  for (uint32_t rank : {0u, 1u}) router_->Deliver("a", Rank(rank), kErr, kTraceback);
  Finish();
  EXPECT_THAT(Err(), HasSubstr("[1] KeyError: 1\n"));
}

// J6
TEST_F(RouterTest, LinesOf64RanksNeverMixHoweverTheyArrive) {
  Make({}, 64);
  const int kLines = 50;
  for (int line = 0; line < kLines; ++line) {
    for (uint32_t part = 0; part < 3; ++part) {
      for (uint32_t rank = 0; rank < 64; ++rank) {
        router_->Deliver("h", Rank(rank), kOut, absl::StrCat("<", part, part == 2 ? ">\n" : ">"));
      }
    }
  }
  Finish();
  std::map<std::string, int> seen;
  for (absl::string_view line : absl::StrSplit(Out(), '\n', absl::SkipEmpty())) {
    ++seen[std::string(line)];
  }
  ASSERT_EQ(seen.size(), 64u);
  for (const auto& [line, count] : seen) {
    EXPECT_THAT(line, MatchesRegex("\\[[0-9]+\\] <0><1><2>"));
    EXPECT_EQ(count, kLines);
  }
}

// J7
TEST_F(RouterTest, ALastLineWithoutNewlineIsDeliveredAtTheEndOfItsStream) {
  Make({}, 2);
  router_->Deliver("a", Rank(0), kOut, "no end");
  router_->EndOfStream(Rank(0), kOut);
  router_->Deliver("a", Rank(1), kOut, "nor here");
  Finish();
  EXPECT_EQ(Out(), "[0] no end\n[1] nor here\n");
}

TEST_F(RouterTest, ALoneRankIsNotTouchedAndNotHeldBack) {
  Make({}, 1);
  router_->Deliver("a", Rank(0), kOut, "Name? ");
  RunUntil([&] { return !Out().empty() || !router_->Full(); });
  Finish();
  EXPECT_EQ(Out(), "Name? ");
}

TEST_F(RouterTest, WithoutTagsLinesOfSeveralRanksAreStillWhole) {
  Make({Tag::kNone, false, ""}, 2);
  router_->Deliver("a", Rank(0), kOut, "one ");
  router_->Deliver("a", Rank(1), kOut, "two\n");
  router_->Deliver("a", Rank(0), kOut, "three\n");
  Finish();
  EXPECT_EQ(Out(), "two\none three\n");
}

TEST_F(RouterTest, HostsAndTimesOnDemand) {
  Make({Tag::kHost, true, ""}, 2);
  router_->Deliver("node2", Rank(1), kOut, "x\n");
  Finish();
  EXPECT_THAT(Out(), MatchesRegex("[0-9-]+T[0-9:.]+ \\[node2:1\\] x\n"));
}

// J3
// H10: the workers have taken every process that there may be.
TEST_F(RouterTest, LogFilesAreWrittenWithoutAThreadToo) {
  Options options;
  options.log_dir = dir_ + "/logs";
  Make(options, 2);
  ASSERT_TRUE(router_->Open().ok());
  const NoThreads none;
  for (int i = 0; i < 3; ++i) router_->Deliver("a", Rank(1), kOut, absl::StrCat(i, "\n"));
  router_->EndOfStream(Rank(1), kErr);
  Finish();
  EXPECT_EQ(ReadFile(dir_ + "/logs/rank-00001.out"), "0\n1\n2\n");
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/logs/rank-00001.err"));
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(RouterTest, LogFilesHoldTheBytesAsTheyWere) {
  const std::string bytes("a\0\xff\n\nb", 6);
  Make({std::nullopt, false, dir_ + "/logs/deep"}, 2);
  ASSERT_TRUE(router_->Open().ok());
  router_->Deliver("a", Rank(0), kOut, bytes);
  router_->Deliver("a", Rank(0), kOut, bytes);
  router_->EndOfStream(Rank(1), kErr);
  Finish();
  EXPECT_EQ(ReadFile(dir_ + "/logs/deep/rank-00000.out"), bytes + bytes);
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/logs/deep/rank-00001.err"));
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(RouterTest, ALogFileThatIsALinkIsNotFollowedAndWarnedOfOnce) {
  std::filesystem::create_directory(dir_ + "/logs");
  std::filesystem::create_symlink(dir_ + "/victim", dir_ + "/logs/rank-00000.out");
  Make({std::nullopt, false, dir_ + "/logs"}, 2);
  ASSERT_TRUE(router_->Open().ok());
  router_->Deliver("a", Rank(0), kOut, "1\n");
  router_->Deliver("a", Rank(0), kOut, "2\n");
  router_->Deliver("a", Rank(1), kOut, "3\n");
  Finish();
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/victim"));
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("rank-00000.out: Too many levels of symbolic links"));
  EXPECT_EQ(ReadFile(dir_ + "/logs/rank-00001.out"), "3\n");
  EXPECT_EQ(Out(), "[0] 1\n[0] 2\n[1] 3\n");
}

TEST_F(RouterTest, AFifoInTheLogDirectoryDoesNotBlock) {
  std::filesystem::create_directory(dir_ + "/logs");
  ASSERT_EQ(mkfifo((dir_ + "/logs/rank-00000.out").c_str(), 0600), 0);
  Make({std::nullopt, false, dir_ + "/logs"}, 1);
  ASSERT_TRUE(router_->Open().ok());
  router_->Deliver("a", Rank(0), kOut, "1\n");
  Finish();
  EXPECT_EQ(warnings_.size(), 1u);
}

// J8
TEST_F(RouterTest, ALogFileThatSomebodyChangesIsGoneOnWithAndToldOnce) {
  Make({std::nullopt, false, dir_ + "/logs"}, 2);
  ASSERT_TRUE(router_->Open().ok());
  const std::string first = dir_ + "/logs/rank-00000.out", second = dir_ + "/logs/rank-00001.out";
  const auto write = [&](int rank, const std::string& line) {
    router_->Deliver("a", Rank(rank), kOut, line);
    const std::string& path = rank == 0 ? first : second;
    RunUntil([&] { return absl::EndsWith(ReadFile(path), line); });
  };
  write(0, "1\n");
  write(0, "2\n");
  write(1, "1\n");
  EXPECT_THAT(warnings_, testing::IsEmpty());
  std::filesystem::remove(first);
  write(0, "3\n");
  std::filesystem::rename(first, first + ".1");
  write(0, "4\n");
  std::filesystem::resize_file(second, 0);
  write(1, "2\n");
  Finish();
  EXPECT_EQ(ReadFile(first), "4\n");
  EXPECT_EQ(ReadFile(second), "2\n");
  EXPECT_THAT(warnings_, testing::ElementsAre(
                             HasSubstr("the log file " + first + " was removed, renamed or")));
}

TEST_F(RouterTest, ALogFileThatSomebodyCutsIsTold) {
  Make({std::nullopt, false, dir_ + "/logs"}, 1);
  ASSERT_TRUE(router_->Open().ok());
  const std::string path = dir_ + "/logs/rank-00000.out";
  router_->Deliver("a", Rank(0), kOut, "1\n");
  RunUntil([&] { return !ReadFile(path).empty(); });
  std::filesystem::resize_file(path, 0);
  router_->Deliver("a", Rank(0), kOut, "2\n");
  Finish();
  EXPECT_EQ(ReadFile(path), "2\n");
  EXPECT_THAT(warnings_, testing::ElementsAre(HasSubstr("was removed, renamed or truncated")));
}

TEST_F(RouterTest, ALogDirectoryThatCannotBeMadeIsAnErrorWithItsPath) {
  Create("file");
  Make({std::nullopt, false, dir_ + "/file/logs"}, 1);
  EXPECT_THAT(std::string(router_->Open().message()), HasSubstr(dir_ + "/file/logs"));
}

// J5: a reader that takes nothing fills the limit and no more; when it goes on, so do we.
TEST_F(RouterTest, IsFullWhileNobodyReadsAndHasRoomAfterwards) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  Make({}, 2, pipe->second.get(), err_.get());
  const std::string chunk(64 << 10, 'x');
  size_t given = 0;
  while (!router_->Full()) {
    router_->Deliver("a", Rank(0), kOut, chunk);
    router_->Deliver("a", Rank(0), kOut, "\n");
    given += chunk.size();
    ASSERT_LT(given, OutputRouter::kLimit + (1 << 20));
  }
  int called = 0;
  router_->WhenRoom([&] { ++called; });
  router_->WhenRoom([&] { ++called; });
  Settle();
  EXPECT_EQ(called, 0);
  std::string buffer(1 << 20, '\0');
  size_t taken = 0;
  ASSERT_TRUE(os::SetNonBlocking(pipe->first.get(), true).ok());
  auto take_until = [&](const std::function<bool()>& done) {
    RunUntil([&] {
      if (done()) return true;
      ssize_t n = read(pipe->first.get(), buffer.data(), buffer.size());
      if (n > 0) taken += static_cast<size_t>(n);
      loop_.Post([] {});
      return done();
    });
  };
  take_until([&] { return called == 2; });
  EXPECT_FALSE(router_->Full());
  EXPECT_GE(taken, OutputRouter::kLimit / 4);
  // To the end, so that no writer is left with a number that the next test's pipe gets.
  bool finished = false;
  router_->Finish([&] { finished = true; });
  take_until([&] { return finished; });
  router_.reset();
}

// K4
TEST_F(RouterTest, AReaderThatWentAwayIsReportedOnceAndNothingWaitsForIt) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  Make({}, 2, pipe->second.get(), err_.get());
  pipe->first.Reset();
  router_->Deliver("a", Rank(0), kOut, "x\n");
  RunUntil([&] { return failed_.has_value(); });
  EXPECT_THAT(std::string(failed_->message()), HasSubstr("Broken pipe"));
  failed_.reset();
  router_->Deliver("a", Rank(0), kOut, std::string(OutputRouter::kLimit * 2, '\n'));
  EXPECT_FALSE(router_->Full());
  Finish();
  EXPECT_FALSE(failed_.has_value());
  router_.reset();  // before the pipe
}

TEST_F(RouterTest, StderrThatADiskDoesNotTakeIsLostAndEndsNoJob) {
  const os::UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  Make({}, 2, out_.get(), full.get());
  router_->Deliver("a", Rank(0), kOut, "hello\n");
  router_->Deliver("a", Rank(1), kErr, "oops\n");
  Finish();
  EXPECT_THAT(std::string(router_->lost().message()), HasSubstr("No space left on device"));
  EXPECT_FALSE(failed_.has_value());
  EXPECT_EQ(Out(), "[0] hello\n");
  router_.reset();  // before its stderr
}

TEST_F(RouterTest, NothingIsLostWhereAReaderOfStderrLeft) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  Make({}, 2, out_.get(), pipe->second.get());
  pipe->first.Reset();
  router_->Deliver("a", Rank(1), kErr, "oops\n");
  Finish();
  EXPECT_TRUE(router_->lost().ok()) << router_->lost();
  EXPECT_FALSE(failed_.has_value());
  router_.reset();  // before the pipe
}

// As sshd without a terminal and systemd's journal have it.
TEST_F(RouterTest, OneSocketForBothHasWholeLines) {
  auto pair = os::SocketPair();
  ASSERT_TRUE(pair.ok());
  const os::UniqueFd again(fcntl(pair->second.get(), F_DUPFD_CLOEXEC, 0));
  ASSERT_TRUE(os::SetNonBlocking(pair->first.get(), true).ok());
  Make({}, 2, pair->second.get(), again.get());
  std::string seen;
  const auto see = [&](const std::string& end) {
    RunUntil([&] {
      char buffer[4096];
      const ssize_t n = read(pair->first.get(), buffer, sizeof(buffer));
      if (n > 0) seen.append(buffer, static_cast<size_t>(n));
      return absl::EndsWith(seen, end);
    });
  };
  router_->Deliver("a", Rank(0), kOut, "Name? ");
  see("Name? ");
  router_->Deliver("a", Rank(1), kErr, "oops\n");
  router_->Deliver("a", Rank(0), kOut, "bob\n");
  see("bob\n");
  EXPECT_EQ(seen, "[0] Name? \n[1] oops\n[0] Name? bob\n");
  Finish();
  router_.reset();  // before the socket
}

// > both 2> both
TEST_F(RouterTest, AFileThatWasOpenedTwiceHasAllLinesInTheirOrder) {
  const auto open_both = [&] {
    return os::UniqueFd(
        open((dir_ + "/both").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  };
  const os::UniqueFd out = open_both(), err = open_both();
  Make({}, 2, out.get(), err.get());
  router_->Deliver("a", Rank(0), kOut, "hello\n");
  router_->Deliver("a", Rank(1), kErr, "oops\n");
  router_->Say("dtrain: a word");
  Finish();
  EXPECT_EQ(ReadFile(dir_ + "/both"), "[0] hello\n[1] oops\ndtrain: a word\n");
  router_.reset();  // before the file
}

TEST_F(RouterTest, AFullFileOfBothEndsTheJobAndHasItsReportOnceThereIsRoom) {
  const os::UniqueFd again = Create("out");
  Make({}, 2, out_.get(), again.get());
  const auto usual_action = signal(SIGXFSZ, SIG_IGN);
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit low{4, usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  router_->Deliver("a", Rank(1), kErr, "oops\n");
  RunUntil([&] { return failed_.has_value(); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &usual), 0);
  signal(SIGXFSZ, usual_action);
  EXPECT_THAT(std::string(failed_->message()), HasSubstr("File too large"));
  EXPECT_FALSE(router_->lost().ok());
  router_->Say("dtrain: the report");
  Finish();
  EXPECT_EQ(Out(), "[1] dtrain: the report\n");
  router_.reset();  // before the file
}

TEST_F(RouterTest, TheLiveLineIsTakenAwayBeforeOtherOutput) {
  int main_fd = -1;
  int terminal_fd = -1;
  ASSERT_EQ(openpty(&main_fd, &terminal_fd, nullptr, nullptr, nullptr), 0);
  os::UniqueFd screen(main_fd);
  os::UniqueFd terminal(terminal_fd);
  termios raw;
  ASSERT_EQ(tcgetattr(terminal_fd, &raw), 0);
  cfmakeraw(&raw);
  ASSERT_EQ(tcsetattr(terminal_fd, TCSANOW, &raw), 0);
  Make({}, 2, terminal_fd, terminal_fd);
  std::string seen;
  auto see = [&](const std::string& text) {
    RunUntil([&] {
      char buffer[4096];
      ssize_t n = read(screen.get(), buffer, sizeof(buffer));
      if (n > 0) seen.append(buffer, static_cast<size_t>(n));
      loop_.Post([] {});
      return seen.find(text) != std::string::npos;
    });
  };
  router_->ShowStatus("connect 1/2");
  see("connect 1/2");
  router_->Deliver("a", Rank(0), kOut, "hello\n");
  see("hello\n");
  router_->Say("bye");
  see("bye\n");
  EXPECT_EQ(seen, "connect 1/2\r\033[J[0] hello\nbye\n");
  // What is on the screen may still be inside of write() for the thread that wrote it.
  Finish();
  router_.reset();  // before the terminal
}

// J4
TEST_F(RouterTest, OnlyATerminalThatSeveralRanksShareIsProtected) {
  const std::string evil = "\033[2Jx\r\033[31my";
  const std::map<uint32_t, std::string> shown = {{1, evil + "\n"},
                                                 {2, "[0] \\x1b[2Jx\r[0] \033[31my\033[0m\n"}};
  for (const auto& [world_size, text] : shown) {
    int main_fd = -1;
    int terminal_fd = -1;
    ASSERT_EQ(openpty(&main_fd, &terminal_fd, nullptr, nullptr, nullptr), 0);
    os::UniqueFd screen(main_fd);
    os::UniqueFd terminal(terminal_fd);
    termios raw;
    ASSERT_EQ(tcgetattr(terminal_fd, &raw), 0);
    cfmakeraw(&raw);
    ASSERT_EQ(tcsetattr(terminal_fd, TCSANOW, &raw), 0);
    Make({}, world_size, terminal_fd, err_.get());
    router_->Deliver("a", Rank(0), kOut, evil.substr(0, 3));
    router_->Deliver("a", Rank(0), kOut, evil.substr(3) + "\n");
    router_->Deliver("a", Rank(0), kErr, evil + "\n");
    Finish();
    // A terminal gives what it has so far.
    std::string seen;
    while (seen.size() < text.size()) {
      char buffer[4096];
      pollfd more{screen.get(), POLLIN, 0};
      ASSERT_EQ(poll(&more, 1, 20000), 1) << seen;
      const ssize_t n = read(screen.get(), buffer, sizeof(buffer));
      ASSERT_GT(n, 0);
      seen.append(buffer, static_cast<size_t>(n));
    }
    EXPECT_EQ(seen, text);
    router_.reset();  // before the terminal
  }
  EXPECT_EQ(Err(), evil + "\n[0] " + evil + "\n");
}

TEST_F(RouterTest, ThereIsNoLiveLineWhereThereIsNoTerminal) {
  Make({}, 2);
  router_->ShowStatus("connect 1/2");
  Finish();
  EXPECT_EQ(Err(), "");
}

}  // namespace
}  // namespace dtrain::output
