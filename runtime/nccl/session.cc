// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/signal_guard.h"
#include "runtime/nccl/handle.h"

namespace dtrain::runtime {
namespace {

using std::chrono::steady_clock;

// What is inside NCCL for longer than this after a failure is stuck there.
constexpr std::chrono::seconds kStuckCall{1};
constexpr std::chrono::milliseconds kLook{100}, kFineLook{1};
// dtrain's exit code for a collective that stalled.
constexpr int kStalled = 205;
// From here on several aborts may be one NCCL group.
constexpr int kGroupedAborts = 22200;

double Seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

// Here and now when no thread can be had.
void RunDetached(const std::function<void()>& body) {
  const AllSignalsBlocked blocked;
  try {
    std::thread(body).detach();
  } catch (const std::system_error&) {
    body();
  }
}

// Each waits for kernels of the others, and all have to be told to end first.
void AbortBeside(const NcclApi& nccl, const std::vector<abi::NcclComm*>& comms,
                 const Device& device) {
  std::vector<std::thread> threads;
  for (abi::NcclComm* comm : comms) {
    const auto abort = [&nccl, comm, &device] {
      const Device::Scope scope(device);
      nccl.abort(comm);
    };
    try {
      threads.emplace_back(abort);
    } catch (const std::system_error&) {
      abort();  // no thread could be had; the caller's deadline ends this if it hangs
    }
  }
  for (std::thread& thread : threads) thread.join();
}

void LeaveStuck() {
  std::fprintf(stderr,
               "dtrain: a call of NCCL has not come back, and its thread may use what an orderly "
               "exit takes away; ending the process with exit code %d\n",
               kStalled);
  std::fflush(nullptr);
  _exit(kStalled);
}

}  // namespace

Result<std::shared_ptr<Session>> Session::Join(const Libraries& libraries, const OpenDevice& open,
                                               std::chrono::milliseconds longest_end) {
  static std::mutex* const mutex = new std::mutex;
  static std::weak_ptr<Session>* const current = new std::weak_ptr<Session>;
  const std::lock_guard lock(*mutex);
  if (auto session = current->lock(); session != nullptr && !session->spoiled_.load()) {
    if (MaybeError error = session->broken()) return *error;
    return session;
  }
  auto device = open();
  if (!device.ok()) return device.error();
  auto session = std::make_shared<Session>(libraries, std::move(*device), longest_end);
  auto issue = IssueThread::Start(session->device());
  if (!issue.ok()) return issue.error();
  session->issue_ = std::move(*issue);
  session->watchdog_ = Watchdog::Start([weak = std::weak_ptr<Session>(session)] {
    const auto alive = weak.lock();
    return alive != nullptr ? alive->Look() : std::chrono::milliseconds(0);
  });
  if (session->watchdog_ == nullptr) {
    return Error{DTRAIN_ERROR_RESOURCES, "no thread could be started for NCCL's watchdog"};
  }
  *current = session;
  return session;
}

Session::Session(const Libraries& libraries, std::shared_ptr<const Device> device,
                 std::chrono::milliseconds longest_end)
    : libraries_(libraries), device_(std::move(device)), longest_end_(longest_end) {}

void Session::SetOnFailure(std::function<void(const Error&)> tell) {
  const std::lock_guard lock(mutex_);
  on_failure_ = std::move(tell);
}

// ---- Calls ----

// "ncclAllReduce: unhandled system error; NCCL says: ...".
MaybeError Session::Verdict(const char* name, const Answer& answer) const {
  if (answer.code == abi::kNcclSuccess) return std::nullopt;
  if (answer.code == abi::kNcclInProgress) {
    return Error{DTRAIN_ERROR_ENVIRONMENT,
                 std::string(name) +
                     " returned before its end: NCCL_COMM_BLOCKING=0, in the environment or in "
                     "nccl.conf, makes NCCL's calls non-blocking, which libdtrain does not use; "
                     "unset it"};
  }
  const char* text = libraries_.nccl.error_string(answer.code);
  std::string out = std::string(name) + ": " + Printable(text == nullptr ? "" : text);
  if (!answer.said.empty()) out += "; NCCL says: " + Printable(answer.said);
  return Error{answer.code == abi::kNcclRemoteError ? DTRAIN_ERROR_NETWORK : DTRAIN_ERROR_DEVICE,
               std::move(out)};
}

// NCCL has one last error for all threads, which the next warning overwrites.
MaybeError Session::Try(const char* name, NcclCall call, Deadline deadline,
                        const std::string& late) {
  if (MaybeError error = broken()) return error;
  const auto answer = std::make_shared<Answer>();
  const auto outcome = issue_->Run(
      [answer, call = std::move(call), &nccl = libraries_.nccl] {
        answer->code = call();
        if (answer->code != abi::kNcclSuccess) answer->said = nccl.LastError();
      },
      deadline, [this] { return is_broken_.load(); });
  if (outcome == IssueThread::Outcome::kDone) return Verdict(name, *answer);
  return Fail({DTRAIN_ERROR_TIMEOUT, late});
}

MaybeError Session::Call(const char* name, NcclCall call, Deadline deadline) {
  MaybeError error =
      Try(name, std::move(call), deadline, std::string(name) + " did not return in time");
  if (error) return Fail(*error);
  return std::nullopt;
}

MaybeError Session::CallHere(const char* name, const NcclCall& call, Deadline deadline) {
  if (MaybeError error = broken()) return error;
  Answer answer;
  const auto here = [&] {
    if (is_broken_.load()) return;  // and what it would use may have gone
    answer.code = call();
    if (answer.code != abi::kNcclSuccess) answer.said = libraries_.nccl.LastError();
  };
  if (!issue_->RunHere(here, deadline)) {
    return Fail(
        {DTRAIN_ERROR_TIMEOUT, std::string(name) + " had to wait for another call of NCCL"});
  }
  if (MaybeError error = Verdict(name, answer)) return Fail(*error);
  return broken();
}

// ---- Failures ----

MaybeError Session::broken() const {
  if (!is_broken_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return broken_;
}

void Session::BreakUnlessSettled(const Error& reason, std::chrono::milliseconds patience) {
  const std::lock_guard lock(mutex_);
  unsettled_ = reason;
  settled_by_ = steady_clock::now() + patience;
}

void Session::Settle() {
  const std::lock_guard lock(mutex_);
  unsettled_.reset();
  settled_by_ = Deadline::max();
}

void Session::Break(const Error& reason) {
  std::function<void(const Error&)> tell;
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_ = reason;
    is_broken_.store(true, std::memory_order_release);
    changed_.notify_all();
    tell = on_failure_;
  }
  RunDetached([self = shared_from_this()] { self->End(); });
  if (tell) tell(reason);
}

Error Session::Fail(const Error& reason) {
  Break(reason);
  AwaitEnd();
  return *broken();
}

// Bounded, because End is.
void Session::AwaitEnd() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
}

// On a thread of its own, that calls nothing that could hang.
void Session::End() {
  std::vector<abi::NcclComm*> comms;
  TimedTurn::Holder looking(looking_, steady_clock::now() + longest_end_);
  const bool may_abort = looking && !captured_.load();
  if (looking) {
    for (NcclHandle* handle : handles_) {
      abi::NcclComm* comm = handle->Take();
      if (comm != nullptr) comms.push_back(comm);
    }
    looking.GiveBack();
  }
  const bool aborted = may_abort && AbortAll(std::move(comms));
  if (!aborted && !captured_.load()) std::atexit(LeaveStuck);
  const std::lock_guard lock(mutex_);
  abandoned_ = !aborted;
  ended_ = true;
  changed_.notify_all();
}

// False: a call is stuck inside NCCL, which does not allow aborting what it works on. That may also
// be a communicator which is still being made, so the thread is asked even when there are no
// others.
bool Session::AbortAll(std::vector<abi::NcclComm*> comms) {
  const NcclApi& nccl = libraries_.nccl;
  const bool grouped = nccl.version >= kGroupedAborts || comms.size() <= 1;
  const auto body = [comms, grouped, &nccl, device = device_] {
    if (!grouped) return AbortBeside(nccl, comms, *device);
    if (comms.size() > 1) nccl.group_start();
    for (abi::NcclComm* comm : comms) nccl.abort(comm);
    if (comms.size() > 1) nccl.group_end();
  };
  const Deadline end = steady_clock::now() + longest_end_;
  const Deadline stuck = steady_clock::now() + kStuckCall;
  auto outcome = issue_->Run(body, end);
  while (outcome == IssueThread::Outcome::kNotBegun && steady_clock::now() < stuck) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    outcome = issue_->Run(body, end);
  }
  if (outcome == IssueThread::Outcome::kNotBegun) return false;
  if (outcome == IssueThread::Outcome::kDone) return true;
  std::fprintf(stderr,
               "dtrain: ncclCommAbort did not end within %.3g s; ending the process with exit code "
               "%d. The abort was because: %s\n",
               Seconds(longest_end_), kStalled, broken() ? broken()->message.c_str() : "");
  std::fflush(stderr);
  _exit(kStalled);
}

// ---- The watchdog's ----

void Session::WakeWatchdog() {
  if (watchdog_ != nullptr) watchdog_->Wake();
}

std::chrono::milliseconds Session::Look() {
  const Device::Scope scope(*device_);
  MaybeError error;
  bool fine = false;
  {
    const TimedTurn::Holder looking(looking_, Deadline::max());
    for (NcclHandle* handle : handles_) {
      if (!error) error = handle->Look();
      fine |= handle->WantsFineLooks();
    }
  }
  if (!error) {
    const std::lock_guard lock(mutex_);
    if (steady_clock::now() >= settled_by_) error = unsettled_;
  }
  if (error) Break(*error);
  return fine ? kFineLook : kLook;
}

// ---- Their ends ----

void Session::Add(NcclHandle* handle) {
  const TimedTurn::Holder looking(looking_, Deadline::max());
  handles_.push_back(handle);
}

bool Session::Remove(NcclHandle* handle) {
  bool ended = false;
  if (broken()) {
    AwaitEnd();
    const std::lock_guard lock(mutex_);
    ended = !abandoned_;
  } else {
    ended = Destroy(handle);
  }
  const TimedTurn::Holder looking(looking_, steady_clock::now() + longest_end_);
  if (!looking) return false;  // then the watchdog hangs, and the handle stays
  handles_.erase(std::remove(handles_.begin(), handles_.end(), handle), handles_.end());
  return ended;
}

// Waits for the other ranks of the machine and for the GPU, neither of which must keep this process
// from leaving.
bool Session::Destroy(NcclHandle* handle) {
  abi::NcclComm* comm = handle->Take();
  if (comm == nullptr) return true;
  if (!handle->sound()) return AbortAll({comm});
  if (captured_.load()) {
    std::fprintf(stderr,
                 "dtrain: the NCCL communicator stays until the process ends: it waits for CUDA "
                 "graphs that collectives were captured into\n");
    return false;
  }
  const auto answer = std::make_shared<Answer>();
  const auto body = [answer, comm, registered = handle->TakeRegistrations(),
                     &nccl = libraries_.nccl] {
    for (const Registrations::Entry& entry : registered) {
      if (answer->code == abi::kNcclSuccess) {
        answer->code = nccl.comm_deregister(comm, entry.handle);
      }
    }
    if (answer->code == abi::kNcclSuccess) answer->code = nccl.finalize(comm);
    int state = abi::kNcclSuccess;
    if (answer->code == abi::kNcclSuccess) answer->code = nccl.async_error(comm, &state);
    if (answer->code == abi::kNcclSuccess) answer->code = state;
    if (answer->code == abi::kNcclSuccess) answer->code = nccl.destroy(comm);
  };
  const auto outcome = issue_->Run(body, steady_clock::now() + longest_end_);
  if (outcome == IssueThread::Outcome::kDone) {
    // Only what is sound may be destroyed.
    return answer->code == abi::kNcclSuccess || AbortAll({comm});
  }
  std::fprintf(stderr,
               "dtrain: %s: ncclCommDestroy did not end within %.3g s; the program goes on without "
               "waiting for it\n",
               handle->me().c_str(), Seconds(longest_end_));
  spoiled_.store(true);
  return false;
}

}  // namespace dtrain::runtime
