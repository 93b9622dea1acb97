// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/handle.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "runtime/nccl/bounded.h"

namespace dtrain::runtime {
namespace {

using std::chrono::steady_clock;

// A thread of ours inside NCCL leaves as soon as it sees the end; this one is stuck.
constexpr auto kStuckCall = std::chrono::seconds(1);
// dtrain's exit code for a collective that stalled.
constexpr int kStalled = 205;
constexpr size_t kMostFlights = 64;

// Waits a little longer each time: the first microseconds matter, later the cores of the others.
class Pause {
 public:
  void operator()() {
    if (++round_ < 200) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(round_ < 1000 ? 20 : 200));
    }
  }

 private:
  int round_ = 0;
};

std::string Name(const Collective& what) {
  return "collective " + std::to_string(what.number) + " (" + Describe(what) + ")";
}

}  // namespace

NcclHandle::NcclHandle(const Libraries& libraries, std::shared_ptr<const Device> device,
                       std::string me, std::unique_ptr<Alarm> alarm,
                       std::chrono::milliseconds longest_end)
    : libraries_(libraries),
      device_(std::move(device)),
      me_(std::move(me)),
      alarm_(std::move(alarm)),
      longest_end_(longest_end) {}

MaybeError NcclHandle::Init(const abi::NcclUniqueId& id, int rank, int size, Deadline deadline,
                            const std::string& late) {
  abi::NcclConfig config;
  abi::NcclComm* comm = nullptr;
  int code = libraries_.nccl.init_rank(&comm, size, id, rank, &config);
  {
    const std::lock_guard lock(mutex_);
    comm_ = comm;
  }
  if (code != abi::kNcclSuccess && (code != abi::kNcclInProgress || comm == nullptr)) {
    return Fail({DTRAIN_ERROR_DEVICE, NcclText("ncclCommInitRankConfig", code)});
  }
  MaybeError error = Settle("ncclCommInitRankConfig", code, deadline);
  if (!error) return std::nullopt;
  if (error->code == DTRAIN_ERROR_TIMEOUT) error->message = late;
  return Fail(*error);
}

MaybeError NcclHandle::Adopt(abi::NcclComm* comm, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    comm_ = comm;
  }
  MaybeError error = Settle("ncclCommSplit", abi::kNcclInProgress, deadline);
  if (error) return Fail(*error);
  return std::nullopt;
}

Result<abi::NcclComm*> NcclHandle::Split(int color, int key, Deadline deadline) {
  // NCCL writes there when it is through. Where we have given up it may still do that, so the
  // place stays for ever then.
  auto place = std::make_unique<abi::NcclComm*>(nullptr);
  const auto split = [&](abi::NcclComm* comm) {
    return libraries_.nccl.split(comm, color, key, place.get(), nullptr);
  };
  if (MaybeError error = Call("ncclCommSplit", split, deadline)) {
    static_cast<void>(place.release());
    return *error;
  }
  if (color >= 0 && *place == nullptr) {
    return Fail({DTRAIN_ERROR_DEVICE, "ncclCommSplit made no communicator"});
  }
  return *place;
}

MaybeError NcclHandle::Call(const char* name, const NcclCall& call, Deadline deadline) {
  abi::NcclComm* comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return broken_;
    comm = comm_;
    ++calls_;
  }
  const int code = call(comm);
  {
    const std::lock_guard lock(mutex_);
    --calls_;
    changed_.notify_all();
  }
  if (code == abi::kNcclSuccess) return std::nullopt;
  if (MaybeError error = Settle(name, code, deadline)) return Fail(*error);
  return std::nullopt;
}

MaybeError NcclHandle::Try(const NcclCall& call) {
  abi::NcclComm* comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (broken_ || comm_ == nullptr) return broken_;
    comm = comm_;
    ++calls_;
  }
  const int code = call(comm);
  const std::lock_guard lock(mutex_);
  --calls_;
  changed_.notify_all();
  if (code == abi::kNcclSuccess) return std::nullopt;
  return Error{DTRAIN_ERROR_DEVICE, "NCCL refused it"};
}

// Asks until NCCL has finished what it began.
MaybeError NcclHandle::Settle(const char* name, int code, Deadline deadline) {
  for (Pause pause; code == abi::kNcclInProgress; pause()) {
    {
      const std::lock_guard lock(mutex_);
      if (broken_ || comm_ == nullptr) return broken_;
      const int asked = libraries_.nccl.async_error(comm_, &code);
      if (asked != abi::kNcclSuccess) code = asked;
    }
    if (code == abi::kNcclInProgress && steady_clock::now() >= deadline) {
      return Error{DTRAIN_ERROR_TIMEOUT, std::string(name) + " did not get through in time"};
    }
  }
  if (code == abi::kNcclSuccess) return std::nullopt;
  return Error{code == abi::kNcclRemoteError ? DTRAIN_ERROR_NETWORK : DTRAIN_ERROR_DEVICE,
               NcclText(name, code)};
}

// "ncclAllReduce: unhandled system error; NCCL says: ...". NCCL's last error is the only place
// that has the cause, and is gone after the abort.
std::string NcclHandle::NcclText(const char* name, int code) {
  const std::lock_guard lock(mutex_);
  const char* text = libraries_.nccl.error_string(code);
  std::string out = std::string(name) + ": " + Printable(text == nullptr ? "" : text);
  const char* last = aborting_ ? nullptr : libraries_.nccl.last_error(comm_);
  if (last != nullptr && *last != '\0') out += "; NCCL says: " + Printable(last);
  return out;
}

MaybeError NcclHandle::Wait(abi::CuEvent event, Deadline deadline) {
  for (Pause pause;; pause()) {
    const int code = libraries_.cuda.event_query(event);
    // First, because what was aborted counts as done, and has left anything in its buffers.
    if (MaybeError error = broken()) return Fail(*error);
    if (code == abi::kCudaSuccess) return std::nullopt;
    if (code != abi::kCudaNotReady) {
      return Fail({DTRAIN_ERROR_DEVICE, "the GPU failed: " + libraries_.cuda.Text(code)});
    }
    if (steady_clock::now() >= deadline) {
      return Fail({DTRAIN_ERROR_TIMEOUT, "it was not done in time"});
    }
  }
}

void NcclHandle::Follow(abi::CuStream stream, const Collective& what,
                        std::chrono::milliseconds timeout) {
  const CudaApi& cuda = libraries_.cuda;
  // What is captured into a graph does not run now, and asking about it would spoil the capture.
  int capturing = 0;
  if (cuda.stream_is_capturing != nullptr &&
      (cuda.stream_is_capturing(stream, &capturing) != abi::kCudaSuccess || capturing != 0)) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (flights_.size() < kMostFlights) {
    Flight flight;
    if (!spare_events_.empty()) {
      flight.event = spare_events_.back();
      spare_events_.pop_back();
    } else if (cuda.event_create(&flight.event, abi::kCuEventDisableTiming) != abi::kCudaSuccess) {
      return;
    }
    flights_.push_back(flight);
  }
  // With many in flight, the last entry stands for all the later ones.
  Flight& flight = flights_.back();
  flight.what = what;
  flight.timeout = timeout;
  flight.since = steady_clock::now();
  cuda.event_record(flight.event, stream);
}

MaybeError NcclHandle::broken() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

void NcclHandle::Break(const Error& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_ = reason;
    aborting_ = true;
    changed_.notify_all();
  }
  Watchdog::Wake();
  StartAbort();
}

Error NcclHandle::Fail(const Error& reason) {
  Break(reason);
  AwaitAbort();
  return *broken();
}

void NcclHandle::StartAbort() {
  RunDetached([self = shared_from_this()] { self->RunAbort(*self->broken()); });
}

// The second watchdog: it calls nothing that could hang.
void NcclHandle::RunAbort(const Error& reason) {
  abi::NcclComm* comm = nullptr;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kStuckCall, [this] { return calls_ == 0; });
    comm = ending_ = std::exchange(comm_, nullptr);
  }
  // NCCL allows an abort while another call is stuck.
  const bool done = comm == nullptr || RunBounded(
                                           [abort = libraries_.nccl.abort, comm, device = device_] {
                                             const Device::Scope scope(*device);
                                             abort(comm);
                                           },
                                           longest_end_);
  if (!done) {
    std::fprintf(
        stderr,
        "dtrain: %s: ncclCommAbort did not end within %.3g s; ending the process with exit "
        "code %d. The abort was because: %s\n",
        me_.c_str(), std::chrono::duration<double>(longest_end_).count(), kStalled,
        reason.message.c_str());
    std::fflush(stderr);
    _exit(kStalled);
  }
  const std::lock_guard lock(mutex_);
  ending_ = nullptr;
  aborted_ = true;
  changed_.notify_all();
}

// Bounded, because RunAbort is.
void NcclHandle::AwaitAbort() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return aborted_; });
}

void NcclHandle::AddTo(std::vector<pollfd>& entries) {
  if (alarm_ != nullptr) alarm_->AddTo(entries);
}

void NcclHandle::Look() {
  if (alarm_ != nullptr) {
    if (MaybeError news = alarm_->Check()) Break(*news);
  }
  MaybeError error = broken();
  if (!error) {
    error = LookForLeavers();
    if (!error) error = LookAtFlights();
    if (error) Break(*error);
  }
  if (error) Tell(*error);
}

void NcclHandle::Begin(const Collective& what) {
  const std::lock_guard lock(mutex_);
  latest_ = what;
  begun_ = static_cast<uint32_t>(what.number) + 1;
}

void NcclHandle::SayLeaving() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  Watchdog::Wake();
}

MaybeError NcclHandle::LookForLeavers() {
  if (alarm_ == nullptr) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (leaving_ && !told_leaving_) {
    told_leaving_ = true;
    alarm_->TellLeaving(me_, begun_);
  }
  if (alarm_->leaver().empty() || static_cast<int32_t>(begun_ - alarm_->leavers_runs()) <= 0) {
    return std::nullopt;
  }
  return Error{DTRAIN_ERROR_MISMATCH,
               alarm_->leaver() +
                   " is leaving the job (it has called dtrain_finalize, or its program has ended) "
                   "while " +
                   me_ + " is in " + Describe(latest_)};
}

void NcclHandle::Tell(const Error& reason) {
  if (raised_ || alarm_ == nullptr) return;
  raised_ = true;
  const bool ours = reason.message.rfind("rank ", 0) != 0;
  alarm_->Raise({reason.code, (ours ? me_ + ": " : "") + reason.message});
}

MaybeError NcclHandle::LookAtFlights() {
  const CudaApi& cuda = libraries_.cuda;
  int code = abi::kNcclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return std::nullopt;
    const int asked = libraries_.nccl.async_error(comm_, &code);
    if (asked != abi::kNcclSuccess) code = asked;
  }
  if (code != abi::kNcclSuccess && code != abi::kNcclInProgress) {
    return Error{code == abi::kNcclRemoteError ? DTRAIN_ERROR_NETWORK : DTRAIN_ERROR_DEVICE,
                 NcclText("NCCL reports", code)};
  }
  const Device::Scope scope(*device_);
  // Another thread may be capturing a graph, which a question about an event would spoil.
  int mode = abi::kCuCaptureThreadLocal;
  if (cuda.exchange_capture_mode != nullptr) cuda.exchange_capture_mode(&mode);
  const std::lock_guard lock(mutex_);
  while (!flights_.empty()) {
    Flight& flight = flights_.front();
    const auto now = steady_clock::now();
    code = cuda.event_query(flight.event);
    if (code == abi::kCudaNotReady) {
      if (now < flight.since + flight.timeout) return std::nullopt;
      return Error{DTRAIN_ERROR_TIMEOUT, Name(flight.what) + " was not done in time on the GPU"};
    }
    if (code != abi::kCudaSuccess) {
      return Error{DTRAIN_ERROR_DEVICE,
                   "the GPU failed, at " + Name(flight.what) + " or before it: " + cuda.Text(code)};
    }
    spare_events_.push_back(flight.event);
    flights_.pop_front();
    if (!flights_.empty()) flights_.front().since = std::max(flights_.front().since, now);
  }
  return std::nullopt;
}

bool NcclHandle::Close() {
  Watchdog::Remove(this);
  bool ended = true;
  if (broken()) {
    AwaitAbort();
  } else {
    ended = Shutdown();
  }
  if (const MaybeError reason = broken()) Tell(*reason);
  if (alarm_ != nullptr) alarm_->SayGoodbye();
  if (!ended) return false;
  const Device::Scope scope(*device_);
  const std::lock_guard lock(mutex_);
  for (const Flight& flight : flights_) libraries_.cuda.event_destroy(flight.event);
  for (const abi::CuEvent event : spare_events_) libraries_.cuda.event_destroy(event);
  flights_.clear();
  spare_events_.clear();
  return true;
}

// Finalising waits for the other ranks and for the work in flight; a peer that does not come, or
// work that does not end, must not keep this process from leaving.
bool NcclHandle::Shutdown() {
  const Deadline deadline = steady_clock::now() + longest_end_;
  abi::NcclComm* comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    comm = comm_;
  }
  if (comm == nullptr) return true;
  MaybeError error;
  const NcclApi& nccl = libraries_.nccl;
  const int code = nccl.finalize(comm);
  if (code != abi::kNcclSuccess) error = Settle("ncclCommFinalize", code, deadline);
  if (error) {
    Fail(*error);
    return true;
  }
  {
    const std::lock_guard lock(mutex_);
    comm_ = nullptr;
  }
  const auto destroy = [&nccl, comm, device = device_] {
    const Device::Scope scope(*device);
    nccl.destroy(comm);
  };
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
  if (RunBounded(destroy, std::max(left, std::chrono::milliseconds(1)))) return true;
  std::fprintf(stderr,
               "dtrain: %s: ncclCommDestroy did not end within %.3g s; the program goes on without "
               "waiting for it\n",
               me_.c_str(), std::chrono::duration<double>(longest_end_).count());
  return false;
}

}  // namespace dtrain::runtime
