// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/stdin_source.h"

#include <gmock/gmock.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/component/output/loop_fixture.h"
#include "tests/support/no_threads.h"

namespace dtrain::output {
namespace {

using testing::ElementsAre;

class StdinSourceTest : public LoopTest {
 protected:
  void Make(int fd) {
    source_.emplace(
        loop_,
        [this](Rank rank, absl::string_view data, bool end) {
          sent_.push_back(absl::StrCat(rank.value(), ":", end ? "END" : data));
        },
        [this] { ++echoes_; }, fd);
    ASSERT_TRUE(source_->Open().ok());
  }
  void RunUntilSent(size_t n) {
    RunUntil([&] { return sent_.size() >= n; });
  }
  static void Put(const os::UniqueFd& fd, absl::string_view text) {
    ASSERT_EQ(write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  std::vector<std::string> sent_;
  int echoes_ = 0;
  std::optional<StdinSource> source_;
};

TEST_F(StdinSourceTest, OneRankGetsChunksAsItTakesThemAndThenTheEnd) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  Make(pipe->first.get());
  source_->Start("1", 2);
  Put(pipe->second, "first");
  RunUntilSent(1);
  Put(pipe->second, "second");
  Settle();
  EXPECT_THAT(sent_, ElementsAre("1:first"));
  source_->Taken(Rank(1), false);
  RunUntilSent(2);
  pipe->second.Reset();
  source_->Taken(Rank(1), false);
  RunUntilSent(3);
  EXPECT_THAT(sent_, ElementsAre("1:first", "1:second", "1:END"));
}

// A restart: what nobody has been sent yet is the next attempt's, and its ranks owe nothing.
TEST_F(StdinSourceTest, TheNextAttemptGetsWhatTheLastWasNotSent) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  Make(pipe->first.get());
  source_->Start("0", 2);
  Put(pipe->second, "first");
  RunUntilSent(1);
  source_->Taken(Rank(0), false);  // the next is being read
  source_->Pause();
  Put(pipe->second, "second");
  Settle();
  EXPECT_THAT(sent_, ElementsAre("0:first"));
  source_->Start("0", 2);
  RunUntilSent(2);
  source_->Pause();  // it has not taken it
  source_->Start("0", 2);
  Put(pipe->second, "third");
  RunUntilSent(3);
  pipe->second.Reset();
  source_->Taken(Rank(0), false);
  RunUntilSent(4);
  EXPECT_THAT(sent_, ElementsAre("0:first", "0:second", "0:third", "0:END"));
}

// What nobody has read is there for the script that has launched the job.
class UnreadTest : public StdinSourceTest, public testing::WithParamInterface<const char*> {
 protected:
  // A descriptor with that text in it, which has no end yet, unless it is a file.
  os::UniqueFd Holding(absl::string_view text) {
    if (GetParam() == std::string("file")) {
      os::UniqueFd file = Create("in");
      Put(file, text);
      lseek(file.get(), 0, SEEK_SET);
      return file;
    }
    auto pair = GetParam() == std::string("pipe") ? os::Pipe() : os::SocketPair();
    EXPECT_TRUE(pair.ok());
    Put(pair->second, text);
    writer_ = std::move(pair->second);
    return std::move(pair->first);
  }
  static std::string Rest(const os::UniqueFd& fd) {
    std::string text(100, '\0');
    const ssize_t n = read(fd.get(), text.data(), text.size());
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }
  os::UniqueFd writer_;
};

TEST_P(UnreadTest, IsStillThere) {
  const os::UniqueFd in = Holding("one\ntwo\nthree\n");
  Make(in.get());
  source_->Start("0", 1);
  RunUntilSent(1);
  EXPECT_THAT(sent_, ElementsAre("0:one\ntwo\nthree\n"));
  source_->Taken(Rank(0), true, 10);
  EXPECT_EQ(Rest(in), "two\nthree\n");
}

TEST_P(UnreadTest, IsAllThatNoRankHasRead) {
  const os::UniqueFd in = Holding("one\ntwo\nthree\n");
  Make(in.get());
  source_->Start("all", 3);
  RunUntilSent(3);
  source_->Taken(Rank(0), true, 14);
  source_->Taken(Rank(2), true, 6);
  source_->Taken(Rank(1), true, 10);
  EXPECT_EQ(Rest(in), "three\n");
}

// The launcher may have been killed before anybody had read.
TEST_P(UnreadTest, IsThereUntilARankSaysSo) {
  const os::UniqueFd in = Holding("one\n");
  Make(in.get());
  source_->Start("0", 1);
  RunUntilSent(1);
  source_.reset();
  EXPECT_EQ(Rest(in), "one\n");
}

// What the next attempt gets, too.
TEST_P(UnreadTest, IsSentOnceMoreAfterARestart) {
  const os::UniqueFd in = Holding("one\ntwo\n");
  Make(in.get());
  source_->Start("0", 1);
  RunUntilSent(1);
  source_->Taken(Rank(0), true, 4);
  source_->Pause();
  source_->Start("0", 1);
  RunUntilSent(2);
  EXPECT_EQ(sent_[1], "0:two\n");
  source_->Taken(Rank(0), true, 4);
}

INSTANTIATE_TEST_SUITE_P(Kinds, UnreadTest, testing::Values("file", "pipe", "socket"),
                         [](const auto& kind) { return std::string(kind.param); });

// Its input may be the shell's.
class TerminalTest : public StdinSourceTest, public testing::WithParamInterface<bool> {};

TEST_P(TerminalTest, IsReadOnlyWhileARankWaits) {
  const bool early = GetParam();  // it waits before the others run
  int main_fd = -1, other_fd = -1;
  ASSERT_EQ(openpty(&main_fd, &other_fd, nullptr, nullptr, nullptr), 0);
  const os::UniqueFd keyboard(main_fd), terminal(other_fd);
  pid_t child = fork();  // whose terminal it is, and that is in its foreground
  ASSERT_GE(child, 0);
  if (child == 0) {
    setsid();
    if (ioctl(terminal.get(), TIOCSCTTY, 0) != 0) _exit(2);
    loop::Loop loop;
    bool waits = false;
    loop::Timer timer(loop);
    StdinSource source(
        loop,
        [&](Rank, absl::string_view data, bool) {
          if (!std::exchange(waits, false) || data != "typed\n") _exit(4);
          source.Taken(Rank(0), false);
          timer.After(std::chrono::milliseconds(100), [] { _exit(0); });
        },
        [] {}, terminal.get());
    if (!source.Open().ok()) _exit(3);
    if (early) {
      waits = true;
      source.Waits();
    }
    source.Start("0", 1);
    if (!early) {
      timer.After(std::chrono::milliseconds(100), [&] {
        waits = true;
        source.Waits();
      });
    }
    loop.Run();
    _exit(5);
  }
  Put(keyboard, "typed\nahead\n");
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(, TerminalTest, testing::Bool(), [](const auto& early) {
  return std::string(early.param ? "Early" : "Late");
});

TEST_F(StdinSourceTest, AllWaitsForTheSlowestRank) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  Make(pipe->first.get());
  source_->Start("all", 2);
  Put(pipe->second, "a");
  RunUntilSent(2);
  Put(pipe->second, "b");
  source_->Taken(Rank(0), false);
  Settle();
  EXPECT_THAT(sent_, ElementsAre("0:a", "1:a"));
  source_->Taken(Rank(1), false);
  RunUntilSent(4);
  EXPECT_THAT(sent_, ElementsAre("0:a", "1:a", "0:b", "1:b"));
}

TEST_F(StdinSourceTest, ARankThatEndedOrClosedItsStdinIsNotWaitedFor) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  Make(pipe->first.get());
  source_->Start("all", 3);
  Put(pipe->second, "a");
  RunUntilSent(3);
  source_->Taken(Rank(0), true);
  source_->RankEnded(Rank(1));
  source_->Taken(Rank(2), false);
  Put(pipe->second, "b");
  RunUntilSent(4);
  EXPECT_EQ(sent_[3], "2:b");
}

TEST_F(StdinSourceTest, NobodyReadsWhenNobodyWantsIt) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  Put(pipe->second, "kept");
  for (const char* who : {"none", "7"}) {
    Make(pipe->first.get());
    source_->Start(who, 2);
    Settle();
  }
  char buffer[8];
  EXPECT_EQ(read(pipe->first.get(), buffer, sizeof(buffer)), 4);
  EXPECT_TRUE(sent_.empty());
}

// H10: a job must not take that for the end of its input.
TEST_F(StdinSourceTest, WithoutAThreadNothingIsSaidToHaveEnded) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  source_.emplace(
      loop_, [](Rank, absl::string_view, bool) { FAIL(); }, [] {}, pipe->first.get());
  const NoThreads none;
  const absl::Status opened = source_->Open();
  EXPECT_EQ(opened.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(opened.message(), testing::HasSubstr("read standard input: no thread is left"));
  Settle();
}

// A16
TEST_F(StdinSourceTest, DevNullIsAnEndAtOnce) {
  os::UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  Make(null.get());
  source_->Start("0", 1);
  RunUntilSent(1);
  EXPECT_THAT(sent_, ElementsAre("0:END"));
}

// A16
TEST_F(StdinSourceTest, AClosedStdinIsAnEndAtOnce) {
  Make(900);
  source_->Start("all", 2);
  EXPECT_THAT(sent_, ElementsAre("0:END", "1:END"));
}

TEST_F(StdinSourceTest, AFileIsReadInChunks) {
  os::UniqueFd file = Create("in");
  const std::string text(200000, 'x');
  Put(file, text);
  lseek(file.get(), 0, SEEK_SET);
  Make(file.get());
  source_->Start("0", 1);
  size_t got = 0;
  for (size_t chunks = 1; sent_.empty() || sent_.back() != "0:END"; ++chunks) {
    RunUntilSent(chunks);
    ASSERT_EQ(sent_.size(), chunks);
    got += sent_.back() == "0:END" ? 0 : sent_.back().size() - 2;
    source_->Taken(Rank(0), false);
  }
  EXPECT_EQ(got, text.size());
}

// A16: as a job in the background of a terminal, whose read would stop us by SIGTTIN.
TEST_F(StdinSourceTest, ATerminalInWhoseBackgroundWeAreIsNotRead) {
  int main_fd = -1;
  pid_t child = forkpty(&main_fd, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    // The session leader stays in the foreground; its child is in a group of its own.
    pid_t background = fork();
    if (background == 0) {
      setpgid(0, 0);
      loop::Loop loop;
      int ends = 0;
      StdinSource source(
          loop, [&](Rank, absl::string_view, bool end) { ends += end; }, [] {}, 0);
      if (!source.Open().ok()) _exit(2);
      source.Start("0", 1);
      _exit(ends == 1 ? 0 : 1);
    }
    int status = 0;
    waitpid(background, &status, WUNTRACED);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  }
  os::UniqueFd screen(main_fd);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// As under su -c and setsid: of another session's terminal we are in no background.
TEST_F(StdinSourceTest, ATerminalThatDoesNotControlUsIsRead) {
  int main_fd = -1, other_fd = -1;
  ASSERT_EQ(openpty(&main_fd, &other_fd, nullptr, nullptr, nullptr), 0);
  const os::UniqueFd keyboard(main_fd), terminal(other_fd);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    setsid();
    loop::Loop loop;
    StdinSource source(
        loop,
        [](Rank, absl::string_view data, bool end) { _exit(!end && data == "typed\n" ? 0 : 3); },
        [] {}, terminal.get());
    if (!source.Open().ok()) _exit(2);
    source.Start("0", 1);
    source.Waits();
    loop::Timer deadline(loop);
    deadline.After(std::chrono::seconds(20), [] { _exit(4); });
    loop.Run();
    _exit(5);
  }
  Put(keyboard, "typed\n");
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace dtrain::output
