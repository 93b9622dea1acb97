// SPDX-License-Identifier: Apache-2.0
#include "common/loop/loop.h"

#include <poll.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <thread>
#include <utility>

#include "common/base/check.h"

namespace dtrain::loop {
namespace {

// Asio wants copyable handlers in some paths of 1.74; a move-only task goes behind a shared_ptr.
auto Shared(Task task) { return std::make_shared<Task>(std::move(task)); }

bool IsReady(int fd, boost::asio::posix::descriptor_base::wait_type type) {
  pollfd state = {fd, 0, 0};  // an error or hangup is always told
  if (type == boost::asio::posix::descriptor_base::wait_read) state.events = POLLIN;
  if (type == boost::asio::posix::descriptor_base::wait_write) state.events = POLLOUT;
  return poll(&state, 1, 0) != 0;
}

}  // namespace

Loop::Loop() : context_(1), keep_running_(boost::asio::make_work_guard(context_)) {}

Loop::~Loop() {
  while (posting_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
}

void Loop::Run() {
  turned_by_ = std::this_thread::get_id();
  context_.run();
  turned_by_ = std::thread::id();
}

bool Loop::OnThread() const {
  const std::thread::id turned_by = turned_by_;
  return turned_by == std::thread::id() || turned_by == std::this_thread::get_id();
}

void Loop::Stop() { context_.stop(); }

Duration Loop::TimeAsleep() {
  timespec all{}, awake{};
  clock_gettime(CLOCK_MONOTONIC, &awake);
  clock_gettime(CLOCK_BOOTTIME, &all);
  return std::chrono::seconds(all.tv_sec - awake.tv_sec) +
         std::chrono::nanoseconds(all.tv_nsec - awake.tv_nsec);
}

void Loop::Post(Task task) {
  posting_.fetch_add(1, std::memory_order_relaxed);
  boost::asio::post(context_, [task = Shared(std::move(task))] { (*task)(); });
  posting_.fetch_sub(1, std::memory_order_release);
}

char* Loop::scratch() {
  DTRAIN_ON_THREAD(*this);
  if (scratch_ == nullptr) scratch_ = std::make_unique_for_overwrite<char[]>(kScratchBytes);
  return scratch_.get();
}

Timer::Timer(Loop& loop) : loop_(loop), timer_(loop.context()) {}

Timer::~Timer() { Cancel(); }

void Timer::At(TimePoint when, Task task) {
  DTRAIN_ON_THREAD(loop_);
  Cancel();
  if (when == kNever) return;
  alive_ = std::make_shared<bool>(true);
  timer_.expires_at(when);
  timer_.async_wait([alive = alive_, task = Shared(std::move(task))](boost::system::error_code) {
    // Cancel may come after the expiry was queued, so the flag decides, not the error code.
    if (std::exchange(*alive, false)) (*task)();
  });
}

void Timer::After(Duration delay, Task task) { At(loop_.Now() + delay, std::move(task)); }

void Timer::Cancel() {
  if (alive_ == nullptr) return;
  DTRAIN_ON_THREAD(loop_);
  *alive_ = false;
  alive_.reset();
  timer_.cancel();
}

FdWatch::FdWatch(Loop& loop, int fd)
    : loop_(loop), descriptor_(loop.context()), alive_(std::make_shared<bool>(true)) {
  DTRAIN_ON_THREAD(loop_);
  boost::system::error_code error;
  descriptor_.assign(fd, error);
  DTRAIN_CHECK(!error);
}

FdWatch::~FdWatch() {
  DTRAIN_ON_THREAD(loop_);
  *alive_ = false;
  descriptor_.release();
}

// Asio uses its entry for a descriptor again for the next one, and news of the first that epoll has
// told of in the same round then comes to the second. So we ask the kernel before we tell.
void FdWatch::Wait(WaitType type, std::shared_ptr<Task> task) {
  DTRAIN_ON_THREAD(loop_);
  descriptor_.async_wait(type, [this, type, alive = alive_,
                                task = std::move(task)](boost::system::error_code error) mutable {
    if (!*alive || error == boost::asio::error::operation_aborted) return;
    if (!IsReady(descriptor_.native_handle(), type)) return Wait(type, std::move(task));
    (*task)();
  });
}

void FdWatch::OnReadable(Task task) { Wait(WaitType::wait_read, Shared(std::move(task))); }

void FdWatch::OnWritable(Task task) { Wait(WaitType::wait_write, Shared(std::move(task))); }

void FdWatch::OnHangup(Task task) { Wait(WaitType::wait_error, Shared(std::move(task))); }

namespace {

// Asio's handlers are told no more than the number. Ours go first. Written to by them alone.
struct Caught {
  void (*next)(int) = nullptr;
  std::atomic<pid_t> pid = 0;
  std::atomic<uid_t> uid = 0;
};
Caught g_caught[NSIG];

void OnCaught(int signal, siginfo_t* info, void*) {
  Caught& caught = g_caught[signal];
  const bool has_sender =
      info->si_code == SI_USER || info->si_code == SI_QUEUE || info->si_code == SI_TKILL;
  caught.pid.store(has_sender ? info->si_pid : 0, std::memory_order_relaxed);
  caught.uid.store(has_sender ? info->si_uid : 0, std::memory_order_relaxed);
  caught.next(signal);
}

void KeepSender(int signal) {
  struct sigaction action {};
  if (sigaction(signal, nullptr, &action) != 0 || action.sa_sigaction == OnCaught) return;
  g_caught[signal].next = action.sa_handler;
  action.sa_sigaction = OnCaught;
  action.sa_flags |= SA_SIGINFO;
  (void)sigaction(signal, &action, nullptr);
}

}  // namespace

SignalWatch::SignalWatch(Loop& loop, std::initializer_list<int> signals,
                         absl::AnyInvocable<void(int)> handler)
    : signals_(loop.context()), handler_(std::move(handler)), alive_(std::make_shared<bool>(true)) {
  for (int signal : signals) {
    boost::system::error_code error;
    signals_.add(signal, error);
    DTRAIN_CHECK(!error);
    KeepSender(signal);
  }
  Wait();
}

SignalWatch::~SignalWatch() { *alive_ = false; }

SignalWatch::Sender SignalWatch::SenderOf(int signal) {
  const Caught& caught = g_caught[signal];
  return {caught.pid.load(std::memory_order_relaxed), caught.uid.load(std::memory_order_relaxed)};
}

void SignalWatch::Wait() {
  signals_.async_wait([this, alive = alive_](boost::system::error_code error, int signal) {
    if (!*alive || error) return;
    Wait();
    handler_(signal);
  });
}

}  // namespace dtrain::loop
