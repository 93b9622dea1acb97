// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

// The only places where a thread other than the loop's does work for us: calls that block.
namespace dtrain::loop {

// Starts a thread that no signal interrupts. RESOURCE_EXHAUSTED, with the limit that was reached,
// where the system gives none; `what` says what it was for: "connect to gpu01". The first
// time the system refuses a library a thread is logged as a warning.
absl::StatusOr<std::thread> StartThread(absl::string_view what, absl::AnyInvocable<void()> body);

// Runs blocking calls (libssh, name resolution) off the loop, at most `threads` at a time, in the
// order given. Results come back by Loop::Post from inside the call. Stop() waits for running
// calls; those that did not start are dropped.
class BlockingPool {
 public:
  explicit BlockingPool(int threads);
  ~BlockingPool();
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;
  // Where there is no thread at all the call waits for a later Run to get one.
  void Run(Task blocking_call);
  // The same, but RESOURCE_EXHAUSTED where there is none, and `blocking_call` is not called.
  absl::Status TryRun(Task blocking_call);
  void Stop();

 private:
  // With mutex_ held. Why there is no thread at all, if so.
  absl::Status Queue(Task blocking_call);
  void Work();
  const int limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> queue_;            // guarded by mutex_
  std::vector<std::thread> threads_;  // guarded by mutex_; made as they are needed
  int idle_ = 0;                      // guarded by mutex_
  bool stopping_ = false;             // guarded by mutex_
};

// A call that may never return (a file server that is down), by a thread that nobody waits for.
// Loop thread, except for the call itself.
class PatientCall {
 public:
  explicit PatientCall(Loop& loop) : loop_(loop), patience_(loop) {}
  ~PatientCall();  // a call that has not returned is left to itself
  PatientCall(const PatientCall&) = delete;
  PatientCall& operator=(const PatientCall&) = delete;

  // One at a time. `done` is called once: on the loop with what `call` has returned, or with `late`
  // after `patience`; or at once where there is no thread. `what`: as for StartThread.
  void Make(absl::string_view what, absl::AnyInvocable<absl::Status()> call, Duration patience,
            absl::Status late, absl::AnyInvocable<void(absl::Status)> done);

 private:
  struct Shared;
  void End(const absl::Status& status);
  Loop& loop_;
  Timer patience_;
  std::shared_ptr<Shared> shared_;  // with the thread, while somebody waits for it
  absl::AnyInvocable<void(absl::Status)> done_;
};

// Writes to a descriptor that may block for as long as it likes (a terminal after Ctrl-S, a slow
// pipe), without touching its flags: they are shared with other processes. Loop thread, except
// for the thread inside. Borrows the descriptor; when a write to it is stuck as this is destroyed,
// it must stay open as long as the process.
class BlockingWriter {
 public:
  // `on_error` is called, on the loop, when a write failed (EPIPE ...); what is written after that
  // is dropped, and it is not called again, unless GoOnAfterFailures was called. Also when there
  // is no thread for it: then Write itself writes, and may block.
  BlockingWriter(Loop& loop, int fd, absl::AnyInvocable<void(absl::Status)> on_error);
  ~BlockingWriter();  // drops what is not written; call Finish first to have it all out
  BlockingWriter(const BlockingWriter&) = delete;
  BlockingWriter& operator=(const BlockingWriter&) = delete;

  void Write(std::string bytes);
  // A write that fails drops what was given until then, and nothing else: as for a file on a disk
  // that may be full for a while.
  void GoOnAfterFailures();
  // Bytes not yet written. A producer stops above its limit and goes on in WhenBelow.
  size_t queued_bytes() const;
  void WhenBelow(size_t bytes, Task task);
  // Calls `done` on the loop when everything given so far is written or has failed.
  void Finish(Task done);
  // Waits until then, or for `at_most`. For use after the loop has stopped.
  void WaitUntilWritten(Duration at_most);

 private:
  struct Shared;
  static void Work(std::shared_ptr<Shared> s);
  std::shared_ptr<Shared> shared_;  // outlives a thread that is stuck in write(2)
  std::thread thread_;              // none: the system gave none
};

// Reads from a descriptor that may not be one for epoll (a file, /dev/null) or must not be made
// non-blocking (a terminal). One read at a time. What was read stays there until it is taken, as
// os::KeptInput has it. Borrows the descriptor.
class BlockingReader {
 public:
  BlockingReader(Loop& loop, int fd);
  ~BlockingReader();
  // Whether there is a thread for it. If not, nothing can be read.
  const absl::Status& status() const { return status_; }
  BlockingReader(const BlockingReader&) = delete;
  BlockingReader& operator=(const BlockingReader&) = delete;
  // Calls `done` on the loop with up to `limit` bytes; empty at end of file or on an error.
  void Read(size_t limit, absl::AnyInvocable<void(std::string)> done);
  bool keeps() const;
  // Of what was read. While nothing is being read.
  void Take(size_t bytes);

 private:
  struct Shared;
  static void Work(Shared& s);
  std::shared_ptr<Shared> shared_;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace dtrain::loop
