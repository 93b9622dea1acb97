// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/queue.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "runtime/base/signal_guard.h"
#include "runtime/base/types.h"
#include "runtime/engine/fusion.h"

namespace dtrain::runtime {
namespace {

Error NoSuch(dtrain_handle handle) {
  return {DTRAIN_ERROR_INVALID_ARGUMENT, "there is no handle " + std::to_string(handle) +
                                             ": it never existed, or has already been waited for"};
}

}  // namespace

void Queue::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [handle, entry] : entries_) entry->operation.ticket = 0;  // the device has done it
}

void Queue::Forget(const Group& group, const MaybeError& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [handle, entry] : entries_) {
    Operation& operation = entry->operation;
    if (operation.group != &group || operation.ticket == 0) continue;
    operation.ticket = 0;  // the device has done it, or never will
    if (!entry->error) entry->error = failure;
  }
}

bool Queue::empty() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.empty();
}

MaybeError Queue::StartThread() {
  if (thread_.joinable()) return std::nullopt;
  const AllSignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { Main(); });
  } catch (const std::system_error& e) {
    return Error{DTRAIN_ERROR_RESOURCES,
                 std::string("cannot start the thread for asynchronous calls: ") + e.what() +
                     "; see ulimit -u and pids.max of the cgroup"};
  }
  pthread_setname_np(thread_.native_handle(), "dtrain-engine");
  return std::nullopt;
}

Result<dtrain_handle> Queue::Add(Operation operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (MaybeError error = StartThread()) return *error;
  Group& group = *operation.group;
  const bool named = !operation.name.empty();
  operation.SetPending(KeyOf(operation.name, group.next_unnamed));
  if (!keys_.emplace(group.id, operation.pending.key).second) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
                 "a collective named \"" + Printable(operation.name) +
                     "\" is not done yet: wait for it before the name is used again"};
  }
  if (!named) ++group.next_unnamed;
  operation.added = std::chrono::steady_clock::now();
  if (operation.then) {
    operation.then = [this, then = std::move(operation.then)] { RunThen(then); };
  }
  several_call_ |= caller_ != std::thread::id() && caller_ != std::this_thread::get_id();
  caller_ = std::this_thread::get_id();

  auto entry = std::make_unique<Entry>();
  entry->operation = std::move(operation);
  entry->caller = caller_;
  const dtrain_handle handle = next_handle_++;
  const bool wake = ShouldWake(entry->operation);
  waiting_.push_back(entry.get());
  entries_.emplace(handle, std::move(entry));
  added_ = true;
  if (wake) work_.notify_one();
  if (awaited_ > 0) done_.notify_all();  // who pauses between rounds
  return handle;
}

MaybeError Queue::Wait(dtrain_handle handle) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return NoSuch(handle);
  Entry& entry = *found->second;
  if (entry.awaited) {
    return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
                 "another thread waits for handle " + std::to_string(handle) + " already"};
  }
  entry.awaited = true;
  RunUntil(lock, [&] { return entry.done; });
  const std::unique_ptr<Entry> over = std::move(entries_[handle]);
  entries_.erase(handle);
  lock.unlock();
  return over->error ? over->error : executor_.JoinStream(over->operation);
}

MaybeError Queue::Test(dtrain_handle handle, bool& done) {
  std::unique_lock<std::mutex> lock(mutex_);
  done = false;
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return NoSuch(handle);
  Entry& entry = *found->second;
  if (!entry.done || entry.awaited) return std::nullopt;
  if (!entry.error && !executor_.IsOver(entry.operation)) return std::nullopt;
  done = true;
  const std::unique_ptr<Entry> over = std::move(found->second);
  entries_.erase(found);
  lock.unlock();
  return over->error ? over->error : executor_.JoinStream(over->operation);
}

Result<dtrain_handle> Queue::AddDone(Operation operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto entry = std::make_unique<Entry>();
  entry->operation = std::move(operation);
  entry->done = true;
  const dtrain_handle handle = next_handle_++;
  entries_.emplace(handle, std::move(entry));
  return handle;
}

void Queue::Drain(bool own) {
  if (!thread_.joinable()) return;  // nothing was ever added
  std::unique_lock<std::mutex> lock(mutex_);
  RunUntil(lock, [this, own, me = std::this_thread::get_id()] {
    return std::none_of(waiting_.begin(), waiting_.end(),
                        [&](const Entry* entry) { return !own || entry->caller == me; });
  });
}

template <typename IsDone>
void Queue::RunUntil(std::unique_lock<std::mutex>& lock, IsDone is_done) {
  if (is_done()) return;
  ++awaited_;
  while (!is_done()) {
    if (running_) {
      done_.wait(lock, [&] { return !running_ || is_done(); });
    } else if (pause_.count() > 0 && !added_) {
      Pause(lock);
    } else {
      RunFront(lock, true);
    }
  }
  --awaited_;
  // Another one that waits, or the thread, goes on.
  done_.notify_all();
  if (!waiting_.empty()) work_.notify_one();
}

void Queue::Pause(std::unique_lock<std::mutex>& lock) {
  const auto over = [&] { return added_ || running_ || waiting_.empty(); };
  done_.wait_for(lock, pause_, over);
  added_ = true;  // another round, one way or the other
}

size_t Queue::CountReady(bool& complete) const {
  complete = false;
  size_t count = 0;
  size_t bytes = 0;
  const Group* group = waiting_.front()->operation.group;
  for (const Entry* entry : waiting_) {
    const Operation& operation = entry->operation;
    if (!MayGather(operation) || operation.group != group) {
      complete = true;  // it has to run behind them
      break;
    }
    ++count;
    bytes += operation.what.count * ElementSize(operation.what.type);
    if (count < kMostOffered && bytes < threshold_) continue;
    complete = true;
    break;
  }
  return count;
}

// Also where nothing is fused, it pays to agree with the other ranks on several operations at once.
bool Queue::MayGather(const Operation& operation) const {
  if (threshold_ == 0) return false;
  return operation.what.kind == Collective::Kind::kAllreduce || operation.via == Via::kHost;
}

void Queue::Gather(std::unique_lock<std::mutex>& lock) {
  const Entry& front = *waiting_.front();
  if (!MayGather(front.operation)) return;
  work_.wait_until(lock, front.operation.added + cycle_time_, [&] {
    if (awaited_ > 0 || running_ || stopping_ || waiting_.empty()) return true;
    bool complete = false;
    CountReady(complete);
    return complete;
  });
}

void Queue::RunFront(std::unique_lock<std::mutex>& lock, bool waits) {
  constexpr std::chrono::microseconds kFirstPause{500}, kLongestPause{16'000};
  running_ = true;
  added_ = false;
  const Group* group = waiting_.front()->operation.group;
  std::vector<Operation*> pending;
  for (Entry* entry : waiting_) {
    if (entry->operation.group == group) pending.push_back(&entry->operation);
  }
  // Another thread may still make what the other ranks have: one that never made any so far, too.
  constexpr std::chrono::seconds kDoubt{5};
  const bool alone = waits && !several_call_ && caller_ == std::this_thread::get_id();
  const auto now = std::chrono::steady_clock::now();
  if (pause_.count() == 0) stalled_since_ = now;
  const bool stuck = alone && now - stalled_since_ > kDoubt;
  lock.unlock();
  const size_t over = executor_.RunAgreed(
      pending, stuck, threshold_,
      [this](Operation& operation, const MaybeError& error) { SetDone(operation, error); });
  lock.lock();
  pause_ =
      over > 0 ? std::chrono::microseconds(0) : std::clamp(2 * pause_, kFirstPause, kLongestPause);
  running_ = false;
  done_.notify_all();
}

void Queue::RunThen(const std::function<void()>& then) {
  const auto begin = std::chrono::steady_clock::now();
  then();
  const auto end = std::chrono::steady_clock::now();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Entry* entry : waiting_) {
    auto& added = entry->operation.added;
    added += end - std::max(begin, added);
  }
}

// While calls come, the thread looks once per cycle by itself: waking it for each of them would
// cost more than most of them do, in particular where the program waits for it right away.
bool Queue::ShouldWake(const Operation& operation) const {
  if (asleep_ || cycle_time_.count() == 0 || !MayGather(operation)) return true;
  const size_t bytes = operation.what.count * ElementSize(operation.what.type);
  return bytes > kLargestFused || waiting_.size() + 1 >= kMostOffered;
}

void Queue::AwaitWork(std::unique_lock<std::mutex>& lock) {
  constexpr int kIdleCycles = 50;  // before the thread sleeps until it is woken
  const auto has_work = [&] {
    return (stopping_ && !running_) || (!waiting_.empty() && awaited_ == 0 && !running_);
  };
  for (int i = 0; i < kIdleCycles && cycle_time_.count() > 0; ++i) {
    if (work_.wait_for(lock, cycle_time_, has_work)) return;
  }
  asleep_ = true;
  work_.wait(lock, has_work);
  asleep_ = false;
}

void Queue::Main() {
  SetThisThreadsLane(kEngineLane);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    AwaitWork(lock);
    if (waiting_.empty()) return;
    Gather(lock);
    if (waiting_.empty() || awaited_ > 0 || running_) continue;
    if (pause_.count() > 0 && !added_) {
      Pause(lock);
    } else {
      RunFront(lock, false);
    }
  }
}

// What runs together need not be done in the order of the queue.
void Queue::SetDone(Operation& operation, const MaybeError& error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto i = waiting_.begin(); i != waiting_.end(); ++i) {
    if (&(*i)->operation != &operation) continue;
    keys_.erase({operation.group->id, operation.pending.key});
    (*i)->error = error;
    (*i)->done = true;
    waiting_.erase(i);
    break;
  }
  done_.notify_all();
}

}  // namespace dtrain::runtime
