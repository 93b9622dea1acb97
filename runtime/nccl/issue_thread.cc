// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/issue_thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/signal_guard.h"
#include "runtime/nccl/timed_turn.h"

namespace dtrain::runtime {
namespace {

using std::chrono::steady_clock;

// Handing over between two threads that look takes less than a microsecond, waking one up ten
// times that. Longer than this nobody looks: the cores are needed.
constexpr std::chrono::microseconds kSpin{20};
// How long after something has changed `give_up` may be asked.
constexpr std::chrono::milliseconds kAsk{10};

template <typename Ready>
bool Spin(Ready ready) {
  const auto end = steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
    }
    sched_yield();
  } while (steady_clock::now() < end);
  return false;
}

}  // namespace

struct IssueThread::State {
  explicit State(std::shared_ptr<const Device> used) : device(std::move(used)) {}

  const std::shared_ptr<const Device> device;
  TimedTurn turn;  // whoever gives the thread something to do, or does it itself

  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> body;  // null: nothing to do
  bool stopping = false;
  std::atomic<uint64_t> given{0}, done{0};
  std::thread thread;
};

Result<std::shared_ptr<IssueThread>> IssueThread::Start(std::shared_ptr<const Device> device) {
  const auto state = std::make_shared<State>(std::move(device));
  const AllSignalsBlocked blocked;
  try {
    state->thread = std::thread([state] { Main(*state); });
  } catch (const std::system_error& e) {
    return Error{DTRAIN_ERROR_RESOURCES, std::string("cannot start the thread that calls NCCL: ") +
                                             e.what() +
                                             "; see ulimit -u and pids.max of the cgroup"};
  }
  pthread_setname_np(state->thread.native_handle(), "dtrain-nccl");
  return std::shared_ptr<IssueThread>(new IssueThread(state));
}

IssueThread::~IssueThread() {
  bool idle = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    idle = state_->given.load() == state_->done.load();
    state_->changed.notify_all();
  }
  idle ? state_->thread.join() : state_->thread.detach();
}

void IssueThread::Main(State& state) {
  const Device::Scope scope(*state.device);
  for (;;) {
    const uint64_t next = state.done.load() + 1;
    Spin([&] { return state.given.load(std::memory_order_acquire) >= next; });
    std::function<void()> body;
    {
      std::unique_lock lock(state.mutex);
      state.changed.wait(lock, [&] { return state.stopping || state.given.load() >= next; });
      if (state.given.load() < next) return;
      body = std::move(state.body);
      state.body = nullptr;
    }
    body();
    body = nullptr;  // what it owned goes before anybody learns that it is over
    const std::lock_guard lock(state.mutex);
    state.done.store(next, std::memory_order_release);
    state.changed.notify_all();
  }
}

IssueThread::Outcome IssueThread::Run(std::function<void()> body, Deadline deadline,
                                      const std::function<bool()>& give_up) {
  State& state = *state_;
  const auto over = [&] { return steady_clock::now() >= deadline || (give_up && give_up()); };
  std::optional<TimedTurn::Holder> turn;
  while (!turn.emplace(state.turn, steady_clock::now() + kAsk)) {
    if (over()) return Outcome::kNotBegun;
  }
  // What it is about to use may have gone with what was here before.
  if (give_up && give_up()) return Outcome::kNotBegun;
  uint64_t number = 0;
  {
    const std::lock_guard lock(state.mutex);
    // Whoever waited for the one before has given it up.
    if (state.given.load() != state.done.load()) return Outcome::kNotBegun;
    state.body = std::move(body);
    number = state.given.load() + 1;
    state.given.store(number, std::memory_order_release);
    state.changed.notify_all();
  }
  const auto done = [&] { return state.done.load(std::memory_order_acquire) >= number; };
  if (Spin(done)) return Outcome::kDone;
  std::unique_lock lock(state.mutex);
  while (!state.changed.wait_until(lock, std::min(deadline, steady_clock::now() + kAsk), done)) {
    lock.unlock();
    const bool enough = over();
    lock.lock();
    if (enough) return done() ? Outcome::kDone : Outcome::kStuck;
  }
  return Outcome::kDone;
}

bool IssueThread::RunHere(const std::function<void()>& body, Deadline deadline) {
  const TimedTurn::Holder turn(state_->turn, deadline);
  if (!turn) return false;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->given.load() != state_->done.load()) return false;
  }
  body();
  return true;
}

}  // namespace dtrain::runtime
