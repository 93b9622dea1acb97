// SPDX-License-Identifier: Apache-2.0
#include <sys/mount.h>
#include <sys/stat.h>

#include "tests/component/shepherd/harness.h"

namespace dtrain::shepherd {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class LogsTest : public ShepherdTest {
 protected:
  // An agent that delivers whatever comes, as fast as it comes, and keeps no bytes.
  void OnGrown(const v1::LogGrown& grown) override {
    if (!deliver_) return;
    Check(grown);
    Deliver(grown.rank(), grown.stream(), grown.size());
  }
  virtual void Check(const v1::LogGrown& grown) {
    uint64_t& seen = checked_[grown.rank()];
    if (pattern_.empty() || grown.stream() != v1::STREAM_KIND_STDOUT) return;
    std::string bytes(grown.size() - seen, '\0');
    int fd = logs_[{grown.rank(), grown.stream()}].spool.get();
    ASSERT_EQ(pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(seen)),
              static_cast<ssize_t>(bytes.size()));
    for (size_t i = 0; i < bytes.size(); i += 4093) {  // not a multiple of the pattern
      ASSERT_EQ(bytes[i], pattern_[(seen + i) % pattern_.size()]) << "at " << seen + i;
    }
    seen = grown.size();
  }
  bool deliver_ = true;
  std::string pattern_;
  std::map<uint32_t, uint64_t> checked_;
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
  Start(Shell(2, "[ $DTRAIN_RANK = 0 ] || echo mine >&2"));
  ASSERT_TRUE(UntilFinished());
  EXPECT_FALSE((logs_[{0, v1::STREAM_KIND_STDOUT}].spool));
  EXPECT_FALSE((logs_[{0, v1::STREAM_KIND_STDERR}].spool));
  EXPECT_FALSE((logs_[{1, v1::STREAM_KIND_STDOUT}].spool));
  EXPECT_TRUE((logs_[{1, v1::STREAM_KIND_STDERR}].spool));
  EXPECT_EQ(Err(1), "mine\n");
}

// J9
TEST_F(LogsTest, ABurstBeforeTheExitArrivesWhole) {
  pattern_ = "0123456789abcdefghijklmnopqrstuvwxyz\n";
  Start(Shell(2, "yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c 100000000"));
  ASSERT_TRUE(UntilFinished(std::chrono::seconds(60)));
  for (uint32_t rank : {0u, 1u}) {
    EXPECT_EQ((logs_[{rank, v1::STREAM_KIND_STDOUT}].size), 100000000u);
    EXPECT_EQ(checked_[rank], 100000000u);
  }
}

// J1, J2
TEST_F(LogsTest, DeliveredOutputTakesNoRoom) {
  Start(Shell(1, "head -c 200000000 /dev/zero; printf end"));
  ASSERT_TRUE(UntilFinished(std::chrono::seconds(60)));
  Log& log = logs_[{0, v1::STREAM_KIND_STDOUT}];
  EXPECT_EQ(log.size, 200000003u);
  struct stat info;
  ASSERT_EQ(fstat(log.spool.get(), &info), 0);
  EXPECT_LT(info.st_blocks * 512, 16 << 20);
}

// J1, J5
TEST_F(LogsTest, AWorkerIsHeldUpWhenNobodyTakesItsOutput) {
  deliver_ = false;
  v1::JobPart part = Shell(1, "head -c 40000000 /dev/zero; echo done >&2");
  part.set_spool_limit_bytes(1 << 20);
  Start(part);
  Log& log = logs_[{0, v1::STREAM_KIND_STDOUT}];
  ASSERT_TRUE(Until([&] { return log.size >= 1 << 20; }));
  // It is in the middle: what it may still write is a pipe, and what one turn moves.
  uint64_t delivered = 0;
  while (!finished_) {
    EXPECT_LE(log.size, delivered + (3 << 20));
    EXPECT_TRUE(Err().empty() || log.size >= 40000000 - (1 << 20));
    delivered = log.size;
    Deliver(0, v1::STREAM_KIND_STDOUT, delivered);
    ASSERT_TRUE(Until([&] { return finished_ || log.size > delivered; }));
  }
  EXPECT_EQ(log.size, 40000000u);
  EXPECT_EQ(Err(), "done\n");
}

TEST_F(LogsTest, AHeldUpWorkerCanBeStopped) {
  deliver_ = false;
  v1::JobPart part = Shell(1, "exec cat /dev/zero");
  part.set_spool_limit_bytes(1 << 20);
  Start(part);
  ASSERT_TRUE(Until([&] { return logs_[LogKey(0, v1::STREAM_KIND_STDOUT)].size >= 1 << 20; }));
  Stop(60000);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(exits_[0].signal(), SIGTERM);
}

// J9
TEST_F(LogsTest, ManySmallWritesAreReportedInFew) {
  Start(Shell(1, "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"));
  ASSERT_TRUE(UntilFinished(std::chrono::seconds(60)));
  EXPECT_THAT(Out(), HasSubstr("line 19999\n"));
  EXPECT_LT(log_reports_, 5000);
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

// H5
TEST_F(LogsTest, AFullDiskHoldsTheWorkerUpAndLosesNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a small file system";
  char name[] = "/tmp/dtrain-full-XXXXXX";
  std::string directory = mkdtemp(name);
  ASSERT_EQ(mount("none", directory.c_str(), "tmpfs", 0, "size=6m"), 0);
  std::string filler = directory + "/filler";
  ASSERT_EQ(system(absl::StrCat("head -c 5m /dev/zero > ", filler).c_str()), 0);
  deliver_ = false;
  v1::JobPart part = Shell(1, "head -c 3000000 /dev/zero; echo done >&2");
  Start(part, [&] { setenv("XDG_RUNTIME_DIR", directory.c_str(), 1); });
  EXPECT_TRUE(Until([&] { return !warnings_.empty(); }));
  EXPECT_FALSE(finished_);
  EXPECT_EQ(unlink(filler.c_str()), 0);
  EXPECT_TRUE(UntilFinished());
  EXPECT_EQ((logs_[{0, v1::STREAM_KIND_STDOUT}].size), 3000000u);
  EXPECT_EQ(Err(), "done\n");
  EXPECT_THAT(warnings_, SizeIs(1));
  logs_.clear();
  EXPECT_EQ(umount(directory.c_str()), 0);
  rmdir(directory.c_str());
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
