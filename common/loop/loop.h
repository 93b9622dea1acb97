// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/base/clock.h"

// What belongs to the loop's thread says so where it is called. Debug builds check it.
#ifdef DTRAIN_CHECKS_THREADS
#define DTRAIN_ON_THREAD(loop) DTRAIN_CHECK((loop).OnThread())
#else
#define DTRAIN_ON_THREAD(loop) static_cast<void>(loop)
#endif

namespace dtrain::loop {

using Task = absl::AnyInvocable<void()>;

// The one thread that owns a process's state. Everything of ours runs on it, except that Post may
// be called from any thread: it is how other threads hand their results over.
class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs tasks until Stop. Returns at once when stopped already.
  void Run();
  void Stop();

  // Any thread. Tasks of one thread run in the order they were posted.
  void Post(Task task);
  TimePoint Now() const { return Clock::now(); }
  // Whether this is the thread that turns the loop, or none does now. Any thread.
  bool OnThread() const;
  // How long this machine has been asleep since it was started, of which Now() knows nothing.
  static Duration TimeAsleep();

  // Where one read() may put its bytes, until the current task ends: memory that nobody clears, of
  // which only what was read is ever touched. Loop thread.
  static constexpr size_t kScratchBytes = 256 << 10;
  char* scratch();

  boost::asio::io_context& context() { return context_; }

 private:
  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> keep_running_;
  std::unique_ptr<char[]> scratch_;
  // Posts that have not returned: one wakes the loop after its task can be taken, and that task may
  // be the last thing before the loop is destroyed.
  std::atomic<int> posting_ = 0;
  std::atomic<std::thread::id> turned_by_ = std::thread::id();
};

// One pending call at a time. Destroying or re-arming it drops the old one. Loop thread.
class Timer {
 public:
  explicit Timer(Loop& loop);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  void At(TimePoint when, Task task);  // kNever: same as Cancel
  void After(Duration delay, Task task);
  void Cancel();

 private:
  Loop& loop_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<bool> alive_;  // of the pending call
};

// Tells once when a descriptor is ready; ask again for more. Borrows the descriptor, which must be
// one that epoll takes (not a regular file or /dev/null) and has one watch at a time: duplicate it
// for a second. Loop thread.
class FdWatch {
 public:
  FdWatch(Loop& loop, int fd);
  ~FdWatch();
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;
  // Readable also means end of file or error: the next read tells which.
  void OnReadable(Task task);
  void OnWritable(Task task);
  // The peer of a socket or pipe has closed it altogether; data may still be there to read.
  void OnHangup(Task task);

 private:
  using WaitType = boost::asio::posix::descriptor_base::wait_type;
  void Wait(WaitType type, std::shared_ptr<Task> task);
  Loop& loop_;
  boost::asio::posix::stream_descriptor descriptor_;
  std::shared_ptr<bool> alive_;
};

// Calls `handler` on the loop for each arrival of the given signals, which are thereby caught in
// this process. One watch per signal and process.
class SignalWatch {
 public:
  SignalWatch(Loop& loop, std::initializer_list<int> signals,
              absl::AnyInvocable<void(int signal)> handler);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Which process has sent the last signal of that number; 0: none of this PID namespace, or the
  // kernel itself, as with Ctrl-C.
  struct Sender {
    pid_t pid = 0;
    uid_t uid = 0;
  };
  static Sender SenderOf(int signal);

 private:
  void Wait();
  boost::asio::signal_set signals_;
  absl::AnyInvocable<void(int)> handler_;
  std::shared_ptr<bool> alive_;
};

}  // namespace dtrain::loop
