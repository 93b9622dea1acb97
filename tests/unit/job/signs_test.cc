// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/signs.h"

#include <gtest/gtest.h>

#include <string>

namespace dtrain::job {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1'700'000'000 * kSecond;

TEST(SignsTest, LinesOfRealPrograms) {
  const struct {
    Sign sign;
    const char* line;
  } cases[] = {
      {Sign::kException, "Traceback (most recent call last):"},
      {Sign::kException, "[rank1]: Traceback (most recent call last):"},
      {Sign::kCrash, "terminate called after throwing an instance of 'std::runtime_error'"},
      {Sign::kCrash, "terminate called without an active exception"},
      {Sign::kCrash, "Fatal Python error: Segmentation fault"},
      {Sign::kCrash, "train.sh: line 3: 4711 Segmentation fault      (core dumped) ./train"},
      {Sign::kKilled, "bash: line 1:  4990 Killed                  python train.py"},
      {Sign::kKilled, "/opt/run.sh: line 12: 1234567 Killed                  \"$@\""},
      {Sign::kCrash, "bash: line 1:  5002 Aborted                 \"$@\""},
      {Sign::kKilled, "Killed"},
      {Sign::kCrash, "Aborted"},
      {Sign::kCrash, "[node1:04711] *** Process received signal ***"},
      {Sign::kPeerLost,
       "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by "
       "peer "
       "[10.0.0.2]:1234"},
      {Sign::kPeerLost, "  what():  [enforce fail] Read error [::1]:99: Connection reset by peer"},
      {Sign::kPeerLost, "ConnectionResetError: [Errno 104] Connection reset by peer"},
      {Sign::kPeerLost,
       "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there "
       "was "
       "a network error"},
      {Sign::kPeerLost,
       "[rank0]:[E ProcessGroupNCCL.cpp:1] Watchdog caught collective operation timeout: "
       "WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"},
      {Sign::kPeerLost,
       "ncclRemoteError: A call failed possibly due to a network error or a remote process "
       "exiting"},
      {Sign::kPeerLost,
       "RuntimeError: [0] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
       "c10d key-value store by key '0', but store->get('0') got error: Socket Timeout"},
      {Sign::kPeerLost, "RuntimeError: Socket Timeout"},
      {Sign::kPeerLost,
       "RuntimeError: [./gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 20000ms for "
       "recv "
       "operation to complete"},
      {Sign::kPeerLost,
       "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: "
       "/default_pg/0//cuda//0"},
      {Sign::kPeerLost, "RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms"},
      {Sign::kNone, "step 5 loss 0.3"},
      {Sign::kNone, "ValueError: too many values to unpack"},
      {Sign::kNone, "setting up NCCL communicator"},
      {Sign::kNone, "Killed 3 workers of the data loader"},
      {Sign::kNone, "trial 17: Killed"},
      {Sign::kNone, "Aborted!"},
      {Sign::kNone, " Killed"},
      {Sign::kNone, "pool.py: line 3: 4711 Killed by the watchdog"},
      {Sign::kNone, "pool.py: line 3: worker 4711 Killed  it"},
      {Sign::kNone, "pool.py: line 3"},
      {Sign::kNone, "bash: line 1:  4990 Terminated              python train.py"},
      {Sign::kNone, ""},
  };
  for (const auto& each : cases) EXPECT_EQ(SignOf(each.line), each.sign) << each.line;
}

TEST(SignsTest, MistakesThatARestartDoesNotMend) {
  const struct {
    const char* mistake;
    const char* line;
  } cases[] = {
      {"ModuleNotFoundError", "ModuleNotFoundError: No module named 'apex'"},
      {"SyntaxError", "SyntaxError: invalid syntax"},
      {"IndentationError", "IndentationError: unexpected indent"},
      {"can't open file",
       "/usr/bin/python3: can't open file '/home/ann/tarin.py': [Errno 2] No such file or "
       "directory"},
      {"error: unrecognized arguments", "train.py: error: unrecognized arguments: --lrr 3"},
      {"error: the following arguments are required",
       "train.py: error: the following arguments are required: --data"},
      {"error: argument", "train.py: error: argument --lr: invalid float value: 'x'"},
      {"", "warning: ModuleNotFoundError: No module named 'apex', going on without"},
      {"", "SyntaxErrors are caught"},
      {"", "RuntimeError: CUDA error: out of memory"},
      {"", "the parser said error: unrecognized arguments"},
      {"", ""},
  };
  for (const auto& each : cases) EXPECT_EQ(MistakeOf(each.line), each.mistake) << each.line;
}

// A program that goes on after such words has done without.
TEST(SignsTest, AMistakeIsTheLastLineOnStderr) {
  SignReader reader;
  const std::string mistake = "ModuleNotFoundError: No module named 'apex'\n";
  EXPECT_TRUE(reader.Read(Rank(0), true, mistake, kNow));
  EXPECT_EQ(reader.Of(Rank(0)).mistake, "ModuleNotFoundError");
  EXPECT_EQ(reader.Of(Rank(0)).mistake_unix_nanos, kNow);
  EXPECT_FALSE(reader.Read(Rank(0), false, "buffered\n", kNow + 1));
  EXPECT_FALSE(reader.Read(Rank(0), true, "\n", kNow + 2));
  EXPECT_EQ(reader.Of(Rank(0)).mistake, "ModuleNotFoundError");
  EXPECT_TRUE(reader.Read(Rank(0), true, "goes on without\n", kNow + 3));
  EXPECT_EQ(reader.Of(Rank(0)).mistake, "");
}

TEST(SignsTest, LinesThatComeInPieces) {
  SignReader reader;
  EXPECT_FALSE(reader.Read(Rank(3), true, "step 1\nTraceback (most rec", kNow));
  EXPECT_TRUE(reader.Read(Rank(3), true, "ent call last):\n  File \"a\"", kNow + 5));
  EXPECT_EQ(reader.Of(Rank(3)).sign, Sign::kException);
  EXPECT_EQ(reader.Of(Rank(3)).unix_nanos, kNow + 5);
  EXPECT_EQ(reader.Of(Rank(2)).sign, Sign::kNone);
  // The cause's words count, and not those of what it leads to.
  EXPECT_TRUE(
      reader.Read(Rank(3), true, "\nConnection reset by peer\nSegmentation fault\n", kNow + 9));
  EXPECT_EQ(reader.Of(Rank(3)).sign, Sign::kException);
  EXPECT_EQ(reader.Of(Rank(3)).peer_lost_unix_nanos, kNow + 9);
}

// An exception that was handled.
TEST(SignsTest, ARankThatGoesOnWasNotAboutToEnd) {
  for (const bool is_stderr : {false, true}) {
    SignReader reader;
    reader.Read(Rank(0), true, "Traceback (most recent call last):\n", kNow);
    EXPECT_FALSE(reader.Read(Rank(0), is_stderr, "still ending\n", kNow + kSecond));
    EXPECT_TRUE(reader.Read(Rank(0), is_stderr, "step 6\n", kNow + 3 * kSecond));
    EXPECT_EQ(reader.Of(Rank(0)).sign, Sign::kNone);
    EXPECT_TRUE(
        reader.Read(Rank(0), true, "Traceback (most recent call last):\n", kNow + 4 * kSecond));
    EXPECT_EQ(reader.Of(Rank(0)).unix_nanos, kNow + 4 * kSecond);
  }
}

// A progress bar, and what follows it, is one line.
TEST(SignsTest, ACarriageReturnBeginsTheLineAgain) {
  const std::string bar = " 50%|" + std::string(90, '#');
  for (const std::string& state : {"\r" + bar, bar + "\r"}) {
    for (const char* end : {"\n", "\r\n", "\r\r\n"}) {
      for (const bool in_bytes : {false, true}) {
        SignReader reader;
        for (int i = 0; i < 100; ++i) EXPECT_FALSE(reader.Read(Rank(0), true, state, kNow));
        const std::string text = std::string("Traceback (most recent call last):") + end;
        const size_t piece = in_bytes ? 1 : text.size();
        for (size_t at = 0; at < text.size(); at += piece) {
          reader.Read(Rank(0), true, text.substr(at, piece), kNow);
        }
        EXPECT_EQ(reader.Of(Rank(0)).sign, Sign::kException) << (end[0] == '\n') << in_bytes;
        // It has ended.
        reader.Read(Rank(0), true, "\rConnection reset by peer\n", kNow + 1);
        EXPECT_EQ(reader.Of(Rank(0)).peer_lost_unix_nanos, kNow + 1);
      }
    }
  }
  // What was written over does not count.
  SignReader reader;
  EXPECT_FALSE(reader.Read(Rank(0), true, "Bus error\rstep 1\nBus error\r", kNow));
  EXPECT_FALSE(reader.Read(Rank(0), true, "step 2\n", kNow));
}

TEST(SignsTest, OfAFloodTheEndIsRead) {
  SignReader reader;
  std::string flood(1 << 20, 'x');
  flood += "\nTraceback (most recent call last):\n";
  EXPECT_TRUE(reader.Read(Rank(0), true, flood, kNow));
  // Without line ends, too.
  for (int i = 0; i < 100; ++i) reader.Read(Rank(1), true, std::string(1 << 16, 'y'), kNow);
  EXPECT_FALSE(reader.Read(Rank(1), true, "\n", kNow));
  // Of stdout no words count.
  EXPECT_FALSE(reader.Read(Rank(2), false, "Traceback (most recent call last):\n", kNow));
}

}  // namespace
}  // namespace dtrain::job
