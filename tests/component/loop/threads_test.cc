// SPDX-License-Identifier: Apache-2.0
#include "common/loop/threads.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/log/log.h"
#include "common/os/fd.h"

namespace dtrain::loop {
namespace {

constexpr Duration kDeadline = std::chrono::seconds(20);

class ThreadsTest : public ::testing::Test {
 protected:
  ThreadsTest() { signal(SIGPIPE, SIG_IGN); }
  void Run() {
    Timer deadline(loop_);
    bool late = false;
    deadline.After(kDeadline, [&] {
      late = true;
      loop_.Stop();
    });
    loop_.context().restart();
    loop_.Run();
    ASSERT_FALSE(late);
  }
  Loop loop_;
};

// H10. In a process of its own: it becomes a user who may have no more of them.
TEST(RefusedThreadsTest, WhatALibraryIsRefusedIsLoggedOnceAndWhatWeAreIsAnError) {
  const auto refused = [] {
    const rlimit none{1, 1};
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(2);
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(3);
    log::Init("test", log::Level::kWarning);
    if (StartThread("count", [] {}).ok()) _exit(4);
    for (int i = 0; i < 2; ++i) {
      pthread_t thread;
      if (pthread_create(
              &thread, nullptr, [](void* p) { return p; }, nullptr) != EAGAIN)
        _exit(5);
      std::fputs(i == 0 ? "first\n" : "second\n", stderr);
    }
    _exit(0);
  };
  EXPECT_EXIT(refused(), ::testing::ExitedWithCode(0),
              "^[^\n]*a library could not start a thread because RLIMIT_NPROC \\(1, "
              "[^\n]*\nfirst\nsecond\n$");
}

TEST_F(ThreadsTest, PoolRunsAtMostItsLimitAtATime) {
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  int done = 0;
  BlockingPool pool(3);
  for (int i = 0; i < 50; ++i) {
    pool.Run([&] {
      int now = ++running;
      int seen = most.load();
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      --running;
      loop_.Post([&] {
        if (++done == 50) loop_.Stop();
      });
    });
  }
  Run();
  EXPECT_LE(most, 3);
}

TEST_F(ThreadsTest, APatientCallTellsWhatItReturned) {
  PatientCall call(loop_);
  absl::Status told;
  call.Make(
      "test", [] { return absl::NotFoundError("gone"); }, kDeadline, absl::UnavailableError("late"),
      [&](const absl::Status& status) {
        told = status;
        loop_.Stop();
      });
  Run();
  EXPECT_EQ(told.message(), "gone");
}

// A disk that does not answer holds nobody: not the first call, and not the loop's end by the
// second.
TEST(PatientCallTest, OneThatDoesNotReturnIsLeftAlone) {
  std::mutex mutex;
  std::condition_variable changed;
  bool answered = false;
  int left = 0;  // threads that have nothing to do with the call any more
  std::vector<std::string> told;
  {
    Loop loop;
    PatientCall call(loop);
    const auto make = [&](Duration patience) {
      std::shared_ptr<void> end(nullptr, [&](void*) {
        const std::lock_guard lock(mutex);
        ++left;
        changed.notify_all();
      });
      call.Make(
          "test",
          [&, end = std::move(end)] {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return answered; });
            return absl::OkStatus();
          },
          patience, absl::UnavailableError("late"),
          [&](const absl::Status& status) {
            told.emplace_back(status.message());
            loop.Stop();
          });
    };
    make(std::chrono::milliseconds(1));
    loop.Run();
    make(kDeadline);
  }
  std::unique_lock lock(mutex);
  answered = true;
  changed.notify_all();
  changed.wait(lock, [&] { return left == 2; });
  EXPECT_EQ(told, std::vector<std::string>{"late"});
}

TEST_F(ThreadsTest, WriterNeverBlocksTheLoopAndFinishMeansWritten) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  BlockingWriter writer(loop_, pipe->second.get(), [](absl::Status) { FAIL(); });
  const std::string piece(100'000, 'w');
  for (int i = 0; i < 20; ++i) writer.Write(piece);  // far more than a pipe holds
  EXPECT_GT(writer.queued_bytes(), 0u);
  size_t got = 0;
  bool finished = false;
  writer.Finish([&] {
    finished = true;
    loop_.Stop();
  });
  FdWatch watch(loop_, pipe->first.get());
  std::function<void()> read_more = [&] {
    char buffer[65536];
    ssize_t n = read(pipe->first.get(), buffer, sizeof(buffer));
    got += n > 0 ? static_cast<size_t>(n) : 0;
    watch.OnReadable(read_more);
  };
  watch.OnReadable(read_more);
  Run();
  EXPECT_TRUE(finished);
  while (got < 20 * piece.size()) {
    char buffer[65536];
    ssize_t n = read(pipe->first.get(), buffer, sizeof(buffer));
    ASSERT_GT(n, 0);
    got += static_cast<size_t>(n);
  }
  EXPECT_EQ(got, 20 * piece.size());
  EXPECT_EQ(writer.queued_bytes(), 0u);
}

TEST_F(ThreadsTest, WriterReportsABrokenPipeOnce) {  // K4
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  pipe->first.Reset();
  int errors = 0;
  BlockingWriter writer(loop_, pipe->second.get(), [&](absl::Status) {
    ++errors;
    loop_.Stop();
  });
  writer.Write("x");
  Run();
  writer.Write("y");
  writer.Finish([&] { loop_.Stop(); });
  Run();
  EXPECT_EQ(errors, 1);
}

TEST_F(ThreadsTest, LastWordsAreWrittenWithoutALoop) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  BlockingWriter writer(loop_, pipe->second.get(), [](absl::Status) { FAIL(); });
  writer.WaitUntilWritten(std::chrono::hours(1));  // nothing to wait for
  const std::string words(3 << 20, 'l');           // several writes, each more than a pipe holds
  writer.Write(words);
  std::thread reader([&, in = std::move(pipe->first)] {
    std::string got(words.size(), '\0');
    for (size_t at = 0; at < got.size();) {
      const ssize_t n = read(in.get(), got.data() + at, got.size() - at);
      ASSERT_GT(n, 0);
      at += static_cast<size_t>(n);
    }
    EXPECT_EQ(got, words);
  });
  writer.WaitUntilWritten(std::chrono::hours(1));
  EXPECT_EQ(writer.queued_bytes(), 0u);
  reader.join();
}

TEST_F(ThreadsTest, LastWordsThatNobodyReadsAreWaitedForSoLongAsAsked) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  {
    BlockingWriter writer(loop_, pipe->second.get(), [](absl::Status) {});
    writer.Write(std::string(1 << 20, 'z'));
    writer.WaitUntilWritten(std::chrono::milliseconds(20));
    EXPECT_GT(writer.queued_bytes(), 0u);
  }
  pipe->second.Release();
  pipe->first.Reset();
}

TEST_F(ThreadsTest, WriterStuckInAFullPipeDoesNotHoldUpItsDestruction) {  // J5
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  {
    BlockingWriter writer(loop_, pipe->second.get(), [](absl::Status) {});
    writer.Write(std::string(1 << 20, 'z'));
  }
  // Lets the detached thread end. Its own descriptor stays open, because nobody hears when.
  pipe->second.Release();
  pipe->first.Reset();
}

TEST_F(ThreadsTest, ReaderReadsFilesThatEpollRefuses) {  // A16
  os::UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  BlockingReader reader(loop_, null.get());
  std::optional<std::string> got;
  reader.Read(100, [&](std::string bytes) {
    got = bytes;
    loop_.Stop();
  });
  Run();
  EXPECT_EQ(got, "");
}

TEST_F(ThreadsTest, ReaderThatWaitsIsDestroyedAtOnce) {
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  BlockingReader reader(loop_, pipe->first.get());
  reader.Read(100, [](std::string) { FAIL(); });
}

TEST_F(ThreadsTest, ReaderOfAClosedDescriptorSaysEndOfFile) {
  BlockingReader reader(loop_, -1);
  bool ended = false;
  reader.Read(100, [&](std::string bytes) {
    ended = bytes.empty();
    loop_.Stop();
  });
  Run();
  EXPECT_TRUE(ended);
}

TEST_F(ThreadsTest, TimerCancelledAfterItsExpiryWasQueuedStaysSilent) {
  Timer first(loop_);
  Timer second(loop_);
  bool fired = false;
  TimePoint when = loop_.Now();
  first.At(when, [&] { second.Cancel(); });
  second.At(when, [&] { fired = true; });
  Timer end(loop_);
  end.After(std::chrono::milliseconds(20), [&] { loop_.Stop(); });
  Run();
  EXPECT_FALSE(fired);
}

// ThreadSanitizer sees the Post that still wakes a loop which its task has stopped.
TEST(LoopTest, WhatWasPostedMayBeTheLastThingBeforeItsEnd) {
  for (int i = 0; i < 1000; ++i) {
    std::thread poster;
    {
      Loop loop;
      poster = std::thread([&loop] { loop.Post([&loop] { loop.Stop(); }); });
      loop.Run();
    }
    poster.join();
  }
}

TEST_F(ThreadsTest, SignalsArriveOnTheLoop) {
  int got = 0;
  SignalWatch watch(loop_, {SIGUSR1}, [&](int signal) {
    got = signal;
    loop_.Stop();
  });
  raise(SIGUSR1);
  Run();
  EXPECT_EQ(got, SIGUSR1);
}

}  // namespace
}  // namespace dtrain::loop
