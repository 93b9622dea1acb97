// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/tsan.h"

#ifdef __SANITIZE_THREAD__

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpcpp/support/server_callback.h>
#include <sanitizer/tsan_interface.h>

#include <array>
#include <atomic>
#include <bit>

#include "absl/synchronization/mutex.h"
#include "common/base/check.h"

// The functions below that belong to absl and gRPC come before the libraries' own, for callers in
// the libraries too, and call those. Bookkeeping is relaxed throughout: it must add no order.
namespace dtrain::rpc {
namespace {

template <typename Function>
Function* NextAfter(const char* name) {
  auto* next = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  DTRAIN_CHECK(next != nullptr);
  return next;
}

// The library's definition of a method that is defined here. Its name, which differs from one
// build of absl to the next, is taken from ours.
template <auto kMethod, typename Function>
Function* Next() {
  static constinit std::atomic<Function*> known = nullptr;
  Function* next = known.load(std::memory_order_relaxed);
  if (next == nullptr) {
    Dl_info ours;
    DTRAIN_CHECK(dladdr(std::bit_cast<std::array<void*, 2>>(kMethod)[0], &ours) != 0);
    next = NextAfter<Function>(ours.dli_sname);
    known.store(next, std::memory_order_relaxed);
  }
  return next;
}

using Run = void(grpc_completion_queue_functor*, int ok);

// gRPC++ has two of them for calls: one for a status, one for all else.
constexpr size_t kRuns = 4;
constinit std::array<std::atomic<Run*>, kRuns> real_runs{};

template <size_t kIndex>
void FollowedRun(grpc_completion_queue_functor* functor, int ok) {
  __tsan_acquire(functor);
  real_runs[kIndex].load(std::memory_order_relaxed)(functor, ok);
}

constexpr std::array<Run*, kRuns> kFollowedRuns = {FollowedRun<0>, FollowedRun<1>, FollowedRun<2>,
                                                   FollowedRun<3>};

// What is to run in the place of `run`.
Run* Followed(Run* run) {
  for (Run* followed : kFollowedRuns) {
    if (run == followed) return run;  // the functors of a stream are used again
  }
  size_t i = 0;
  for (; i < kRuns; ++i) {
    Run* known = nullptr;
    if (real_runs[i].compare_exchange_strong(known, run, std::memory_order_relaxed)) break;
    if (known == run) break;
  }
  DTRAIN_CHECK(i < kRuns);
  return kFollowedRuns[i];
}

// Stands for all callbacks of all calls.
char callbacks;

}  // namespace

void CallbackEnds() { __tsan_release(&callbacks); }
void CallbacksHaveEnded() { __tsan_acquire(&callbacks); }

}  // namespace dtrain::rpc

using dtrain::rpc::Next;

// All our queues are callback queues, for which the tag is a functor.
extern "C" grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t nops,
                                                 void* tag, void* reserved) {
  static constinit std::atomic<decltype(&grpc_call_start_batch)> known = nullptr;
  auto* next = known.load(std::memory_order_relaxed);
  if (next == nullptr) {
    next = dtrain::rpc::NextAfter<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
    known.store(next, std::memory_order_relaxed);
  }
  auto* functor = static_cast<grpc_completion_queue_functor*>(tag);
  functor->functor_run = dtrain::rpc::Followed(functor->functor_run);
  __tsan_release(functor);
  return next(call, ops, nops, tag, reserved);
}

namespace grpc::internal {

// Whoever gives up the last reference to a call is often in the library. The others gave theirs up
// in templates of the headers, which are compiled with us.
void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  callbacks_outstanding_.load(std::memory_order_acquire);
  Next<&ServerCallbackCall::ScheduleOnDone, void(ServerCallbackCall*, bool)>()(this, inline_ondone);
}

}  // namespace grpc::internal

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  Next<&Mutex::Lock, void(Mutex*)>()(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  bool locked = Next<&Mutex::TryLock, bool(Mutex*)>()(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  __tsan_release(this);
  Next<&Mutex::Unlock, void(Mutex*)>()(this);
}

void CondVar::Wait(Mutex* mutex) {
  __tsan_release(mutex);
  Next<&CondVar::Wait, void(CondVar*, Mutex*)>()(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  __tsan_release(mutex);
  bool timed_out =
      Next<&CondVar::WaitWithTimeout, bool(CondVar*, Mutex*, Duration)>()(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  __tsan_release(mutex);
  bool timed_out =
      Next<&CondVar::WaitWithDeadline, bool(CondVar*, Mutex*, Time)>()(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

ABSL_NAMESPACE_END
}  // namespace absl

#endif
