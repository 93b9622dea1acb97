// SPDX-License-Identifier: Apache-2.0
#include "common/loop/threads.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/log/log.h"
#include "common/os/cgroup.h"
#include "common/os/kept_input.h"

namespace dtrain::loop {
namespace {

// Signals are the loop's: another thread must not be the one a signal interrupts.
void BlockAllSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

constexpr size_t kGathered = 128 << 10;

// 0, or the error. Waits for as long as the other end likes; `go_on` is asked between two writes.
template <typename GoOn>
int WriteAll(int fd, absl::string_view bytes, GoOn go_on) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {  // someone else made it non-blocking
      pollfd p{fd, POLLOUT, 0};
      poll(&p, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
    if (!go_on()) return 0;
  }
  return 0;
}

// Set while this thread starts one of ours, whose refusal is an error of its own.
thread_local bool starting_ours = false;

}  // namespace

// gRPC goes on without a word when the system refuses it a thread, and then may wait for ever. The
// linker leads each call of pthread_create in the program here (CMakeLists.txt, --wrap).
extern "C" {
int __real_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*start)(void*), void* argument);
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*start)(void*), void* argument) {
  static std::atomic<bool> warned = false;
  const int error = __real_pthread_create(thread, attributes, start, argument);
  if (error == EAGAIN && !starting_ours && !warned.exchange(true)) {
    log::Warn(absl::StrCat("a library could not start a thread because ", os::ReachedProcessLimit(),
                           " is reached, and may hang: raise the limit"));
  }
  return error;
}
}

absl::StatusOr<std::thread> StartThread(absl::string_view what, absl::AnyInvocable<void()> body) {
  starting_ours = true;
  absl::Cleanup started = [] { starting_ours = false; };
  try {  // the only way it has to say that there is none
    return std::thread([body = std::move(body)]() mutable {
      BlockAllSignals();
      body();
    });
  } catch (const std::system_error&) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": no thread is left for it, as ",
                                                     os::ReachedProcessLimit(), " is reached"));
  }
}

BlockingPool::BlockingPool(int threads) : limit_(threads) {}

BlockingPool::~BlockingPool() { Stop(); }

void BlockingPool::Run(Task blocking_call) {
  std::lock_guard lock(mutex_);
  Queue(std::move(blocking_call)).IgnoreError();
}

absl::Status BlockingPool::TryRun(Task blocking_call) {
  std::lock_guard lock(mutex_);
  absl::Status queued = Queue(std::move(blocking_call));
  if (!queued.ok()) queue_.pop_back();
  return queued;
}

// Where the system gives no more threads, those there are do the work.
absl::Status BlockingPool::Queue(Task blocking_call) {
  if (stopping_) return absl::OkStatus();
  queue_.push_back(std::move(blocking_call));
  if (idle_ < static_cast<int>(queue_.size()) && static_cast<int>(threads_.size()) < limit_) {
    auto thread = StartThread("make a call that may block", [this] { Work(); });
    if (thread.ok()) {
      threads_.push_back(*std::move(thread));
    } else if (threads_.empty()) {
      return thread.status();
    }
  }
  wake_.notify_one();
  return absl::OkStatus();
}

void BlockingPool::Stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void BlockingPool::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (queue_.empty() && !stopping_) {
      ++idle_;
      wake_.wait(lock);
      --idle_;
    }
    if (queue_.empty()) return;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

struct PatientCall::Shared {
  std::mutex mutex;
  PatientCall* caller;  // guarded by mutex; null: nobody waits, and the loop may be gone
};

PatientCall::~PatientCall() {
  if (shared_ == nullptr) return;
  const std::lock_guard lock(shared_->mutex);
  shared_->caller = nullptr;
}

void PatientCall::Make(absl::string_view what, absl::AnyInvocable<absl::Status()> call,
                       Duration patience, absl::Status late,
                       absl::AnyInvocable<void(absl::Status)> done) {
  DTRAIN_CHECK(shared_ == nullptr);
  shared_ = std::make_shared<Shared>();
  shared_->caller = this;
  done_ = std::move(done);
  patience_.After(patience, [this, late = std::move(late)] { End(late); });
  auto thread = StartThread(what, [shared = shared_, call = std::move(call)]() mutable {
    absl::Status status = call();
    const std::lock_guard lock(shared->mutex);
    if (shared->caller == nullptr) return;
    shared->caller->loop_.Post([shared, status = std::move(status)] {
      // Both are of the loop's thread, where no lock is needed to see this.
      if (shared->caller != nullptr) shared->caller->End(status);
    });
  });
  if (!thread.ok()) return End(thread.status());
  thread->detach();
}

void PatientCall::End(const absl::Status& status) {
  patience_.Cancel();
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->caller = nullptr;
  }
  shared_.reset();
  std::exchange(done_, nullptr)(status);
}

struct BlockingWriter::Shared {
  Loop* loop;
  int fd;
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable written;
  std::deque<std::string> queue;  // guarded by mutex, like all below
  size_t queued = 0;              // given, not yet written
  bool stop = false;
  bool failed = false;
  bool goes_on = false;  // what comes after a failure is written
  size_t below_limit = 0;
  Task below;
  Task finished;
  absl::AnyInvocable<void(absl::Status)> on_error;
};

BlockingWriter::BlockingWriter(Loop& loop, int fd, absl::AnyInvocable<void(absl::Status)> on_error)
    : shared_(std::make_shared<Shared>()) {
  shared_->loop = &loop;
  shared_->fd = fd;
  shared_->on_error = std::move(on_error);
  auto thread = StartThread("write the output", [s = shared_] { Work(s); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  loop.Post([s = shared_, why = thread.status()] {
    if (s->on_error) s->on_error(why);
  });
}

BlockingWriter::~BlockingWriter() {
  if (!thread_.joinable()) return;
  bool stuck;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
    stuck = shared_->queued > 0 && !shared_->failed;
  }
  shared_->wake.notify_all();
  // A thread inside write(2) to a stopped terminal cannot be called back; it holds nothing of
  // ours but *shared_ and ends with the process.
  if (stuck) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void BlockingWriter::Write(std::string bytes) {
  if (bytes.empty()) return;
  if (!thread_.joinable()) {
    (void)WriteAll(shared_->fd, bytes, [] { return true; });
    return;
  }
  {
    std::lock_guard lock(shared_->mutex);
    if (shared_->failed) return;
    shared_->queued += bytes.size();
    shared_->queue.push_back(std::move(bytes));
  }
  shared_->wake.notify_one();
}

void BlockingWriter::GoOnAfterFailures() {
  const std::lock_guard lock(shared_->mutex);
  shared_->goes_on = true;
}

size_t BlockingWriter::queued_bytes() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->queued;
}

void BlockingWriter::WhenBelow(size_t bytes, Task task) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->queued < bytes) {
    lock.unlock();
    shared_->loop->Post(std::move(task));
    return;
  }
  shared_->below_limit = bytes;
  shared_->below = std::move(task);
}

void BlockingWriter::Finish(Task done) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->queued == 0) {
    lock.unlock();
    shared_->loop->Post(std::move(done));
    return;
  }
  shared_->finished = std::move(done);
}

void BlockingWriter::WaitUntilWritten(Duration at_most) {
  std::unique_lock lock(shared_->mutex);
  shared_->written.wait_for(lock, at_most, [this] { return shared_->queued == 0; });
}

void BlockingWriter::Work(std::shared_ptr<Shared> s) {
  std::unique_lock lock(s->mutex);
  for (;;) {
    while (s->queue.empty() && !s->stop) s->wake.wait(lock);
    if (s->stop) return;
    std::string bytes = std::move(s->queue.front());
    s->queue.pop_front();
    // Many small pieces become one write. Large ones would be copied for nothing.
    while (!s->queue.empty() && bytes.size() + s->queue.front().size() <= kGathered) {
      bytes += s->queue.front();
      s->queue.pop_front();
    }
    lock.unlock();
    const int error = WriteAll(s->fd, bytes, [&s] {
      // Who stopped us may have closed the descriptor, whose number then is someone else's.
      const std::lock_guard look(s->mutex);
      return !s->stop;
    });
    lock.lock();
    if (s->stop) return;  // the loop may be gone, too
    s->queued -= bytes.size();
    if (error != 0) {
      s->failed = !s->goes_on;
      s->queue.clear();
      s->queued = 0;
      s->loop->Post([s, error] {
        if (s->on_error) s->on_error(PosixError(error, "write the output"));
      });
    }
    if (s->below && s->queued < s->below_limit) {
      s->loop->Post(std::exchange(s->below, nullptr));
    }
    if (s->queued > 0) continue;
    s->written.notify_all();
    if (s->finished) s->loop->Post(std::exchange(s->finished, nullptr));
  }
}

struct BlockingReader::Shared {
  Shared(Loop& its_loop, int fd) : loop(&its_loop), input(fd) {}
  Loop* const loop;
  os::KeptInput input;  // of the thread, while something is wanted
  os::UniqueFd stop_event;
  std::mutex mutex;
  std::condition_variable wake;
  size_t wanted = 0;  // guarded by mutex, like all below
  absl::AnyInvocable<void(std::string)> done;
  bool stop = false;
};

BlockingReader::BlockingReader(Loop& loop, int fd) : shared_(std::make_shared<Shared>(loop, fd)) {
  shared_->stop_event.Reset(eventfd(0, EFD_CLOEXEC));
  DTRAIN_CHECK(shared_->stop_event.get() >= 0);
  auto thread = StartThread("read standard input", [s = shared_] { Work(*s); });
  status_ = thread.status();
  if (thread.ok()) thread_ = *std::move(thread);
}

void BlockingReader::Work(Shared& s) {
  std::unique_lock lock(s.mutex);
  for (;;) {
    while (s.wanted == 0 && !s.stop) s.wake.wait(lock);
    if (s.stop) return;
    const size_t wanted = s.wanted;
    std::string buffer;
    lock.unlock();
    // poll first, so that stopping needs no signal; read then returns at once.
    pollfd p[2] = {{s.input.fd(), POLLIN, 0}, {s.stop_event.get(), POLLIN, 0}};
    ssize_t n = -1;
    do {
      if (s.input.fd() < 0) break;  // poll would ignore it, and wait for ever
      const bool there = poll(p, 2, -1) > 0 && p[1].revents == 0;
      if (there) buffer.resize(wanted);
      n = there ? s.input.Read(buffer.data(), buffer.size()) : -1;
    } while (n < 0 && (errno == EINTR || errno == EAGAIN) && p[1].revents == 0);
    buffer.resize(n > 0 ? static_cast<size_t>(n) : 0);
    lock.lock();
    if (s.stop) return;
    s.wanted = 0;
    s.loop->Post([done = std::exchange(s.done, nullptr), buffer = std::move(buffer)]() mutable {
      done(std::move(buffer));
    });
  }
}

bool BlockingReader::keeps() const { return shared_->input.keeps(); }

void BlockingReader::Take(size_t bytes) {
  {
    std::lock_guard lock(shared_->mutex);
    DTRAIN_CHECK(shared_->wanted == 0);
  }
  shared_->input.Take(bytes);
}

BlockingReader::~BlockingReader() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
  }
  uint64_t one = 1;
  // Cannot fail: the counter is far from full.
  DTRAIN_CHECK(write(shared_->stop_event.get(), &one, sizeof(one)) == sizeof(one));
  shared_->wake.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BlockingReader::Read(size_t limit, absl::AnyInvocable<void(std::string)> done) {
  {
    std::lock_guard lock(shared_->mutex);
    DTRAIN_CHECK(shared_->wanted == 0);
    shared_->wanted = limit;
    shared_->done = std::move(done);
  }
  shared_->wake.notify_one();
}

}  // namespace dtrain::loop
