// SPDX-License-Identifier: Apache-2.0
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <filesystem>
#include <fstream>

#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LogsTest : public ShepherdTest {
 protected:
  void OnLog(const v1::LogPosition& at, absl::string_view bytes) override {
    if (pattern_.empty() || at.stream() != v1::STREAM_KIND_STDOUT) return;
    for (size_t i = 0; i < bytes.size(); i += 4093) {  // not a multiple of the pattern
      ASSERT_EQ(bytes[i], pattern_[(at.offset() + i) % pattern_.size()]) << at.offset() + i;
    }
  }
  // Descriptors of files without a name that the shepherd has: how many, and the room they take.
  std::pair<int, int64_t> Spools() const {
    int count = 0;
    int64_t room = 0;
    const std::string folder = absl::StrCat("/proc/", shepherd_pid_, "/fd");
    for (const auto& each : std::filesystem::directory_iterator(folder)) {
      std::error_code gone;
      const std::string name = std::filesystem::read_symlink(each.path(), gone).string();
      const std::string number = each.path().filename().string();
      if (number == "0" || number == "1" || number == "2") continue;  // the test's own
      struct stat info;
      // Not what it looks at of a process that has just ended.
      if (name.find("(deleted)") == name.npos || name.starts_with("/proc/")) continue;
      if (stat(each.path().c_str(), &info) != 0) continue;
      ++count;
      room += info.st_blocks * 512;
    }
    return {count, room};
  }
  v1::ReadLogs One(uint32_t rank, uint64_t offset, uint64_t limit = 0) {
    v1::ReadLogs ask;
    ask.mutable_one()->set_rank(rank);
    ask.mutable_one()->set_stream(v1::STREAM_KIND_STDOUT);
    ask.mutable_one()->set_offset(offset);
    ask.set_limit(limit);
    return ask;
  }
  std::string pattern_;
};

// J7
TEST_F(LogsTest, ALastLineWithoutNewlineArrives) {
  Start(Shell(1, "printf 'one\\ntwo'"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "one\ntwo");
}

// J3
TEST_F(LogsTest, AnyBytesArriveExactly) {
  Start(Shell(1, "printf '\\000\\001\\377\\r\\033[2J\\n\\000'; printf '\\200' >&2"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), std::string("\0\1\xff\r\x1b[2J\n\0", 10));
  EXPECT_EQ(Err(), "\x80");
}

// A file is a good part of what starting a rank costs.
TEST_F(LogsTest, OnlyAStreamThatIsWrittenToHasAFile) {
  v1::JobPart part = Shell(2, "[ $DTRAIN_RANK = 0 ] || echo mine >&2; exec sleep 600");
  Start(part);
  ASSERT_TRUE(Until([&] { return Err(1) == "mine\n"; }));
  EXPECT_TRUE(Until([&] { return Spools().first == 1; }));  // it may look at something just now
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// J9
TEST_F(LogsTest, ABurstBeforeTheExitArrivesWhole) {
  pattern_ = "0123456789abcdefghijklmnopqrstuvwxyz\n";
  keeps_bytes_ = false;
  Start(Shell(2, "yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c 100000000"));
  ASSERT_TRUE(UntilFinished(std::chrono::seconds(60)));
  for (uint32_t rank : {0u, 1u}) {
    EXPECT_EQ((logs_[{rank, v1::STREAM_KIND_STDOUT}].size), 100000000u);
  }
}

// Nor may the file system or the kernel be able to.
void ForbidSplice() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_splice, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(99);
  }
}

TEST_F(LogsTest, WithoutSpliceTheSameArrives) {
  pattern_ = "0123456789abcdefghijklmnopqrstuvwxyz\n";
  keeps_bytes_ = false;
  Start(Shell(2, "yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c 10000000"), ForbidSplice);
  ASSERT_TRUE(UntilFinished(std::chrono::seconds(60)));
  for (uint32_t rank : {0u, 1u}) {
    EXPECT_EQ((logs_[{rank, v1::STREAM_KIND_STDOUT}].size), 10000000u);
  }
}

// J1, J2
TEST_F(LogsTest, DeliveredOutputTakesNoRoom) {
  keeps_bytes_ = false;
  Start(Shell(1, "head -c 200000000 /dev/zero; printf end; exec sleep 600"));
  Log& log = logs_[{0, v1::STREAM_KIND_STDOUT}];
  ASSERT_TRUE(Until([&] { return log.size == 200000003; }, std::chrono::seconds(60)));
  // The last word that it was taken is on its way.
  ASSERT_TRUE(Until([&] { return Spools().second < 16 << 20; }));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// J1, J5
TEST_F(LogsTest, AWorkerIsHeldUpWhenNobodyTakesItsOutput) {
  keeps_bytes_ = takes_logs_ = false;
  v1::JobPart part = Shell(1, "head -c 40000000 /dev/zero; echo done >&2");
  part.set_spool_limit_bytes(2 << 20);
  Start(part);
  Log& log = logs_[{0, v1::STREAM_KIND_STDOUT}];
  ASSERT_TRUE(Until([&] { return log_reader_->came == link::kLogWindow; }));
  // It is in the middle: what it may still write is a pipe, and what one turn moves.
  uint64_t taken = 0;
  while (!finished_) {
    const uint64_t seen = log.size;
    EXPECT_LE((sizes_[{0, v1::STREAM_KIND_STDOUT}]), taken + (4 << 20));
    EXPECT_TRUE((logs_[{0, v1::STREAM_KIND_STDERR}].size) == 0 || seen >= 40000000 - (1 << 20));
    taken = log.size;
    TakeLogs();
    ASSERT_TRUE(Until([&] { return finished_ || log.size > seen; }));
  }
  takes_logs_ = true;
  CheckFinished();  // all of it may be here
  TakeLogs();
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(log.size, 40000000u);
  EXPECT_EQ((logs_[{0, v1::STREAM_KIND_STDERR}].size), 5u);
}

TEST_F(LogsTest, AHeldUpWorkerCanBeStopped) {
  takes_logs_ = false;
  v1::JobPart part = Shell(1, "exec cat /dev/zero");
  part.set_spool_limit_bytes(1 << 20);
  Start(part);
  ASSERT_TRUE(Until([&] { return (sizes_[{0, v1::STREAM_KIND_STDOUT}]) >= 1 << 20; }));
  Stop(60000);
  ASSERT_TRUE(Until([&] { return finished_; }));
  EXPECT_EQ(exits_[0].signal(), SIGTERM);
}

// Output is nowhere else: a slow reader may take it after the end.
TEST_F(LogsTest, TheShepherdStaysUntilItsOutputIsTaken) {
  takes_logs_ = false;
  Start(Shell(1, "head -c 3000000 /dev/zero | tr '\\0' x"));
  ASSERT_TRUE(Until([&] { return finished_ && log_reader_->came == link::kLogWindow; }));
  EXPECT_FALSE(Gone(shepherd_.get(), std::chrono::milliseconds(300)));
  takes_logs_ = true;
  finished_ = false;
  TakeLogs();
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), std::string(3000000, 'x'));
  EXPECT_TRUE(log_reader_->end->ended());
  EXPECT_EQ(log_reader_->end->lost(), "");
}

TEST_F(LogsTest, TheShepherdDoesNotStayWithoutAnAgent) {
  takes_logs_ = false;
  Start(Shell(1, "head -c 3000000 /dev/zero"));
  ASSERT_TRUE(Until([&] { return finished_; }));
  channel_.reset();
  EXPECT_TRUE(ShepherdExited());
}

// What was on its way for the reader before is sent again to the one after it.
TEST_F(LogsTest, AReaderThatComesAgainGoesOnWhereItWas) {
  v1::JobPart part = Shell(1, "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
  Start(part);
  // Once all is taken the shepherd ends, and answers nobody else.
  const auto is_over = [this] { return log_reader_->end || log_reader_->closed; };
  for (int i = 0; i < 20; ++i) {
    const int before = log_frames_;
    ASSERT_TRUE(Until([&] { return log_frames_ > before || is_over(); }));
    if (is_over()) break;
    ReadLogs();
  }
  ASSERT_TRUE(
      Until([&] { return ended_ && finished_said_ && is_over(); }, std::chrono::seconds(60)));
  ASSERT_TRUE(ShepherdExited());
  std::string all;
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&all, "line ", i, "\n");
  EXPECT_EQ(Out(), all);
}

TEST_F(LogsTest, APieceIsWhatWasAskedFor) {
  Start(Shell(1, "printf hello; exec sleep 600"));
  ASSERT_TRUE(Until([&] { return Out() == "hello"; }));
  const auto read = [this](uint32_t rank, uint64_t offset, uint64_t limit) {
    std::string piece;
    auto reader = ReadLogs(One(rank, offset, limit), [&](const auto& at, absl::string_view data) {
      EXPECT_EQ(at.offset(), offset + piece.size());
      piece.append(data.data(), data.size());
    });
    EXPECT_TRUE(Until([&] { return reader->end.has_value(); }));
    EXPECT_FALSE(reader->end->ended());
    EXPECT_EQ(reader->end->size(), rank == 0 ? 5u : 0u);
    return piece;
  };
  EXPECT_EQ(read(0, 0, 100), "hello");
  EXPECT_EQ(read(0, 1, 3), "ell");
  EXPECT_EQ(read(0, 5, 10), "");
  EXPECT_EQ(read(0, ~uint64_t{0}, 10), "");
  EXPECT_EQ(read(7, 0, 10), "") << "of a rank that is not here";
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// Below what the launcher has, which is not kept, the offset moves up. A reader beside the launcher
// holds up nobody.
TEST_F(LogsTest, OtherReadersGetWhatIsKept) {
  keeps_bytes_ = false;
  v1::JobPart part = Shell(1, "head -c 40000000 /dev/zero; printf end; exec sleep 600");
  part.set_spool_limit_bytes(1 << 20);
  Start(part);
  ASSERT_TRUE(Until([&] { return logs_[LogKey(0, v1::STREAM_KIND_STDOUT)].size == 40000003; }));
  ASSERT_TRUE(Until([&] { return Spools().second < 8 << 20; }));
  uint64_t first = 0, next = 0;
  std::string tail;
  auto reader = ReadLogs(One(0, 100), [&](const auto& at, absl::string_view data) {
    if (first == 0) first = next = at.offset();
    EXPECT_EQ(at.offset(), next);
    next += data.size();
    tail = std::string(data.substr(data.size() - 3));
  });
  ASSERT_TRUE(Until([&] { return next == 40000003; }));
  EXPECT_GE(first, 32u << 20);
  EXPECT_EQ(tail, "end");
  EXPECT_FALSE(reader->end.has_value());
  Stop(0);
  ASSERT_TRUE(Until([&] { return reader->end.has_value(); }));
  EXPECT_TRUE(reader->end->ended());
  EXPECT_EQ(reader->end->size(), 40000003u);
  ASSERT_TRUE(UntilFinished());
}

// Of the streams each gets its turn.
TEST_F(LogsTest, ALongStreamDoesNotHoldUpAnother) {
  takes_logs_ = keeps_bytes_ = false;
  v1::JobPart part = Shell(1, "head -c 30000000 /dev/zero; echo other >&2; exec sleep 600");
  part.set_spool_limit_bytes(64 << 20);
  Start(part);
  ASSERT_TRUE(Until([&] { return (sizes_[{0, v1::STREAM_KIND_STDERR}]) == 6; }));
  while (logs_[LogKey(0, v1::STREAM_KIND_STDERR)].size == 0) {
    const uint64_t came = log_reader_->came;
    ASSERT_LE(came, 4 * link::kLogWindow);
    TakeLogs();
    ASSERT_TRUE(Until([&] { return log_reader_->came > came; }));
  }
  takes_logs_ = true;
  TakeLogs();
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// J9
TEST_F(LogsTest, ManySmallWritesComeInFewFrames) {
  Start(Shell(1, "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"));
  ASSERT_TRUE(UntilFinished(std::chrono::seconds(60)));
  EXPECT_THAT(Out(), HasSubstr("line 19999\n"));
  EXPECT_LT(log_frames_, 5000);
  EXPECT_LT(reports_, 60);
}

// A launcher would be woken for each state of a bar.
TEST_F(LogsTest, ABarComesTenTimesASecond) {
  const TimePoint begin = Clock::now();
  Start(Shell(1, "while true; do printf '\\rstep'; sleep 0.005; done"));
  ASSERT_TRUE(Until([&] { return log_frames_ >= 11; }));
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(1));
  EXPECT_GT(Out().size(), 11u * 5u) << "each has what came meanwhile";
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out().size(), logs_[LogKey(0, v1::STREAM_KIND_STDOUT)].end);
}

TEST_F(LogsTest, TextWithoutALineEndComesWhileItsWorkerRuns) {
  Start(Shell(1, "printf one; sleep 0.02; printf two; echo line >&2; exec sleep 600"));
  ASSERT_TRUE(Until([&] { return Out() == "onetwo" && Err() == "line\n"; }));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// Its helper may keep the pipe, and is no reason to wait.
TEST_F(LogsTest, TextWithoutALineEndComesAtTheEndOfItsWorker) {
  Start(Shell(1, "printf one; sleep 0.02; sleep 600 & printf two"));
  ASSERT_TRUE(Until([&] { return Out() == "onetwo"; }));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

// What is there is there, also what no reader that follows has yet.
TEST_F(LogsTest, APieceHasTheUnfinishedLineAsWell) {
  Start(Shell(1, "while true; do printf x; sleep 0.005; done"));
  ASSERT_TRUE(Until([&] { return sizes_[LogKey(0, v1::STREAM_KIND_STDOUT)] > 0; }));
  uint64_t bytes = 0;
  auto reader =
      ReadLogs(One(0, 0, 1 << 20), [&](const auto&, absl::string_view d) { bytes += d.size(); });
  ASSERT_TRUE(Until([&] { return reader->end.has_value(); }));
  EXPECT_EQ(bytes, reader->end->size());
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

TEST_F(LogsTest, TheReportOfAFailureHasTheLastLinesOfStderr) {
  Start(Shell(1, "i=0; while [ $i -lt 100 ]; do echo line $i >&2; i=$((i+1)); done; exit 1"));
  ASSERT_TRUE(UntilFinished());
  std::string tail = exits_[0].stderr_tail();
  EXPECT_EQ(std::count(tail.begin(), tail.end(), '\n'), 20);
  EXPECT_EQ(tail.substr(0, 8), "line 80\n");
  EXPECT_EQ(tail.substr(tail.size() - 8), "line 99\n");
}

TEST_F(LogsTest, TheTailOfALongLineIsCut) {
  Start(Shell(1, "head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(exits_[0].stderr_tail(), SizeIs(8192));
}

// In the shepherd: all places for files are full, and there is `left` in each.
void FillPlaces(int64_t left) {
  unsetenv("XDG_RUNTIME_DIR");
  unsetenv("TMPDIR");
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    _exit(98);
  }
  const std::string room = absl::StrCat("size=", left);
  for (const char* place : {"/tmp", "/var/tmp"}) {
    if (mount("none", place, "tmpfs", 0, room.c_str()) != 0) _exit(98);
  }
}

// But for the workers' pages, which are memory that can be sealed.
void ForbidMemoryFiles() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MFD_CLOEXEC, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(99);
  }
}

class FullPlacesTest : public LogsTest {
 protected:
  void SetUp() override {
    LogsTest::SetUp();
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to mount small file systems";
    pattern_ = "0123456789abcdefghijklmnopqrstuvwxyz\n";
    keeps_bytes_ = false;
  }
  // Prints that many bytes of the pattern.
  v1::JobPart Prints(int bytes) {
    return Shell(1, absl::StrCat("yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c ", bytes,
                                 "; echo done >&2; exit 5"));
  }
  void ExpectAll(uint64_t bytes) {
    EXPECT_EQ((logs_[{0, v1::STREAM_KIND_STDOUT}].size), bytes);
    EXPECT_EQ((logs_[{0, v1::STREAM_KIND_STDERR}].size), 5u);
    EXPECT_EQ(exits_[0].exit_code(), 5);
    EXPECT_THAT(warnings_, IsEmpty());
    EXPECT_THAT(failures_, IsEmpty());
  }
};

// H5. From a place to the next, and from the last to memory, each in the middle of a page.
TEST_F(FullPlacesTest, OutputGoesToTheNextPlaceAndThenToMemory) {
  takes_logs_ = false;
  Start(Prints(6000001), [] { FillPlaces(1 << 20); });
  ASSERT_TRUE(Until([&] { return log_reader_->came == link::kLogWindow; }));
  // All that is there can be read, in whichever file it is.
  takes_logs_ = true;
  TakeLogs();
  ASSERT_TRUE(UntilFinished());
  ExpectAll(6000001);
  EXPECT_EQ(exits_[0].stderr_tail(), "done\n");
}

TEST_F(FullPlacesTest, WithoutSpliceTheSameArrives) {
  Start(Prints(6000001), [] {
    FillPlaces(1 << 20);
    ForbidSplice();
  });
  ASSERT_TRUE(UntilFinished());
  ExpectAll(6000001);
}

// Memory is the job's: a reader that stops holds the worker up earlier than on a disk.
TEST_F(FullPlacesTest, LittleMemoryIsUsed) {
  takes_logs_ = false;
  Start(Prints(30000000), [] { FillPlaces(4 << 10); });
  const auto size = [&] { return sizes_[{0, v1::STREAM_KIND_STDOUT}]; };
  ASSERT_TRUE(Until([&] { return size() >= 4 << 20; }));
  EXPECT_LT(size(), 6u << 20);
  EXPECT_LT(Spools().second, 6 << 20);
  takes_logs_ = true;
  TakeLogs();
  ASSERT_TRUE(UntilFinished());
  ExpectAll(30000000);
}

// Not even memory: the worker waits, and that it was in vain is a failure with a reason.
TEST_F(FullPlacesTest, OutputThatNothingTakesIsAFailure) {
  Start(Shell(1, "echo words; exec sleep 600"), [] {
    FillPlaces(4 << 10);
    std::ofstream("/tmp/filler") << std::string(4 << 10, 'x');
    std::ofstream("/var/tmp/filler") << std::string(4 << 10, 'x');
    ForbidMemoryFiles();
  });
  ASSERT_TRUE(Until([&] { return !warnings_.empty(); }));
  EXPECT_THAT(warnings_[0], HasSubstr("the output of rank 0 waits: keep a worker's output: "));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0].kind(), v1::NodeFailure::KIND_STATE);
  EXPECT_EQ(failures_[0].exit_code(), 207);
  EXPECT_THAT(failures_[0].message(),
              HasSubstr("the last 6 bytes of the output of rank 0 are lost: "));
}

// A16
TEST_F(LogsTest, StdinIsEmptyUnlessAPipeIsAsked) {
  Start(Shell(1, "read -r line; echo got $? [$line]; cat; readlink /proc/self/fd/0"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "got 1 []\n/dev/null\n");
}

TEST_F(LogsTest, StdinReachesTheWorkerInOrderAndEnds) {
  v1::JobPart part = Shell(2, "cat; echo end");
  part.mutable_workers(1)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  Start(part);
  ASSERT_TRUE(UntilStarted());
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    std::string chunk(100000, static_cast<char>('a' + i));
    expected += chunk;
    Stdin(1, chunk, i == 19);
    ASSERT_TRUE(Until([&] { return stdin_taken_.size() > static_cast<size_t>(i); }));
    EXPECT_FALSE(stdin_taken_.back().closed());
    EXPECT_EQ(stdin_taken_.back().rank(), 1u);
  }
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(1), expected + "end\n");
}

TEST_F(LogsTest, AWorkerThatClosedItsStdinIsSentNoMore) {
  v1::JobPart part = Shell(1, "exec <&-; echo closed; exec sleep 600");
  part.mutable_workers(0)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  Start(part);
  ASSERT_TRUE(Until([&] { return Out() == "closed\n"; }));
  Stdin(0, "data", false);
  ASSERT_TRUE(Until([&] { return !stdin_taken_.empty(); }));
  EXPECT_TRUE(stdin_taken_[0].closed());
  Stop(0);
  ASSERT_TRUE(UntilFinished());
}

TEST_F(LogsTest, WhatAWorkerHasNotReadIsCounted) {
  v1::JobPart part = Shell(2, "read -r line; echo got $line; [ $DTRAIN_RANK = 0 ] || cat");
  for (int i : {0, 1}) part.mutable_workers(i)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  Start(part);
  ASSERT_TRUE(UntilStarted());
  Stdin(0, "one\ntwo\nthree\n", false);
  Stdin(1, "one\n" + std::string(200000, 'x'), false);
  ASSERT_TRUE(Until([&] { return stdin_taken_.size() == 2; }));
  for (const v1::StdinTaken& taken : stdin_taken_) {
    EXPECT_EQ(taken.closed(), taken.rank() == 0);
    EXPECT_EQ(taken.unread(), taken.rank() == 0 ? 10u : 0u);
  }
  Stdin(0, "late", false);
  ASSERT_TRUE(Until([&] { return stdin_taken_.size() == 3; }));
  EXPECT_TRUE(stdin_taken_[2].closed());
  EXPECT_EQ(stdin_taken_[2].unread(), 4u);
  Stdin(1, "", true);
  ASSERT_TRUE(UntilFinished());
}

// A terminal's next reader is the shell, unless a process of the worker waits for input.
TEST_F(LogsTest, AWorkerThatWaitsForTheTerminalIsTold) {
  const std::string ask = "import sys, select; select.select([0], [], []); print(input())";
  v1::JobPart part = Shell(1, absl::StrCat("read -r line; echo got $line; python3 -c '", ask, "'"));
  part.mutable_workers(0)->set_stdin_mode(v1::STDIN_MODE_TERMINAL);
  Start(part);
  const auto waits = [&] { return !stdin_taken_.empty() && stdin_taken_.back().waits(); };
  for (const char* text : {"one\n", "two\n"}) {
    ASSERT_TRUE(Until(waits));
    Stdin(0, text, false);
    ASSERT_TRUE(Until([&] { return !waits(); }));
  }
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "got one\ntwo\n");
}

TEST_F(LogsTest, AnUnreadStdinBlocksNobody) {
  v1::JobPart part = Shell(1, "echo ready; exec sleep 600");
  part.mutable_workers(0)->set_stdin_mode(v1::STDIN_MODE_PIPE);
  Start(part);
  ASSERT_TRUE(Until([&] { return Out() == "ready\n"; }));
  Stdin(0, std::string(1 << 20, 'x'), false);
  Stop(60000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGTERM);
}

}  // namespace
}  // namespace dtrain::shepherd
