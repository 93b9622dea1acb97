// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/handle.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace dtrain::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// More would fill NCCL's queues, where a call waits without looking whether it was aborted.
constexpr size_t kMostFlights = 32;
// As long as nobody looks that much longer, the machine itself may have stood still.
constexpr std::chrono::seconds kDoubt{2};
constexpr DeviceCommunicator::Ticket kInGraph = DeviceCommunicator::Ticket{1} << 63;

// Waits a little longer each time: the first microseconds matter, later the cores of the others.
class Backoff {
 public:
  void operator()() {
    if (++round_ < 50) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(round_ < 1000 ? 20 : 200));
    }
  }

 private:
  int round_ = 0;
};

int64_t NanosOf(steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

NcclHandle::NcclHandle(std::shared_ptr<Session> session, std::string me, Communicator* control,
                       std::string group, bool fine)
    : session_(std::move(session)),
      me_(std::move(me)),
      control_(control),
      group_(std::move(group)),
      fine_(fine),
      events_(std::make_shared<EventPool>(session_->libraries().cuda, session_->device())) {}

// ---- Making it ----

MaybeError NcclHandle::Init(const abi::NcclUniqueId& id, int rank, int size, Deadline deadline,
                            const std::string& late) {
  session_->Add(this);
  const auto place = std::make_shared<abi::NcclComm*>(nullptr);
  const auto init = [place, id, rank, size, &nccl = session_->libraries().nccl] {
    abi::NcclConfig config;
    return nccl.init_rank(place.get(), size, id, rank, &config);
  };
  MaybeError error = session_->Try("ncclCommInitRankConfig", init, deadline, late);
  // Where the call has not come back, the place is still NCCL's.
  if (session_->broken()) return session_->broken();
  const std::lock_guard lock(mutex_);
  comm_ = *place;  // also of a failure: to be aborted
  return error;
}

MaybeError NcclHandle::Split(int color, int key, NcclHandle& part, Deadline deadline) {
  session_->Add(&part);
  const auto place = std::make_shared<abi::NcclComm*>(nullptr);
  const auto split = [place, color, key, comm = Comm(), &nccl = session_->libraries().nccl] {
    const int code = nccl.split(comm, color, key, place.get(), nullptr);
    int state = abi::kNcclSuccess;
    const int asked = code == abi::kNcclSuccess ? nccl.async_error(comm, &state) : code;
    return asked != abi::kNcclSuccess ? asked : state;
  };
  MaybeError error =
      session_->Try("ncclCommSplit", split, deadline, "ncclCommSplit did not return in time");
  if (session_->broken()) return session_->broken();
  if (!error && *place == nullptr) {
    error = Error{DTRAIN_ERROR_DEVICE, "ncclCommSplit made no communicator"};
  }
  const std::lock_guard lock(part.mutex_);
  part.comm_ = *place;
  return error;
}

// The highest priority reorders only what waits for the GPU, and NCCL waits for other ranks.
MaybeError NcclHandle::Open() {
  const CudaApi& cuda = session_->libraries().cuda;
  const Device::Scope scope(*session_->device());
  int least = 0, greatest = 0;
  int code = cuda.stream_priorities(&least, &greatest);
  if (code == abi::kCudaSuccess) {
    code = cuda.stream_create(&capturing_, abi::kCuStreamNonBlocking, greatest);
  }
  if (code == abi::kCudaSuccess) {
    code = cuda.stream_create(&stream_, abi::kCuStreamNonBlocking, greatest);
  }
  sound_.store(code == abi::kCudaSuccess);
  if (sound()) return std::nullopt;
  return session_->Fail({DTRAIN_ERROR_DEVICE, "making a stream failed: " + cuda.Text(code)});
}

abi::NcclComm* NcclHandle::Comm() {
  const std::lock_guard lock(mutex_);
  return comm_;
}

abi::NcclComm* NcclHandle::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(comm_, nullptr);
}

bool NcclHandle::Close() {
  if (!session_->broken() && sound()) {
    static_cast<void>(AwaitAll(steady_clock::now() + session_->longest_end()));
  }
  const bool ended = session_->Remove(this);
  SetFlying(false);
  control_.store(nullptr);
  if (!ended) {
    events_->Leave();
    return false;
  }
  const CudaApi& cuda = session_->libraries().cuda;
  const Device::Scope scope(*session_->device());
  for (abi::CuStream* stream : {&stream_, &capturing_}) {
    if (*stream != nullptr) cuda.stream_destroy(std::exchange(*stream, nullptr));
  }
  return true;
}

// ---- Launching ----

int NcclHandle::Enter(Begun& begun, abi::NcclComm* comm, abi::CuStream stream, const CudaApi& cuda,
                      EventPool& events) {
  for (const Point& point : begun.issue.after) {
    if (point == nullptr) continue;
    const int code = cuda.stream_wait(stream, EventOf(point), 0);
    if (code == abi::kCudaSuccess) continue;
    begun.error = Error{DTRAIN_ERROR_DEVICE, "waiting in a stream failed: " + cuda.Text(code)};
    return abi::kNcclSuccess;
  }
  const int code = begun.issue.enqueue(comm, stream);
  if (code != abi::kNcclSuccess) return code;
  auto done = events.Record(stream);
  if (done.ok()) {
    begun.done = std::move(*done);
  } else {
    begun.error = done.error();
  }
  return abi::kNcclSuccess;
}

// The first call of a kind waits within NCCL for the other ranks, so these count from here on.
Result<NcclHandle::Ticket> NcclHandle::Launch(Issue issue) {
  if (MaybeError error = Reserve()) return *error;
  const auto begun = std::make_shared<Begun>();
  begun->issue = std::move(issue);
  {
    const std::lock_guard lock(mutex_);
    calling_ = true;
    SetFlying(true);
  }
  auto launched = LaunchNext(begun);
  const std::lock_guard lock(mutex_);
  calling_ = false;
  SetFlying(!flights_.empty());
  return launched;
}

Result<NcclHandle::Ticket> NcclHandle::LaunchNext(const std::shared_ptr<Begun>& begun) {
  const auto since = steady_clock::now();
  const auto call = [begun, comm = Comm(), stream = stream_, events = events_,
                     &cuda = session_->libraries().cuda] {
    return Enter(*begun, comm, stream, cuda, *events);
  };
  if (MaybeError error = session_->Call(begun->issue.name, call, since + begun->issue.timeout)) {
    return *error;
  }
  if (begun->error) return session_->Fail(*begun->error);
  Flight flight;
  flight.ticket = next_.fetch_add(1);
  flight.done = std::move(begun->done);
  flight.what = std::move(begun->issue.what);
  flight.timeout = begun->issue.timeout;
  flight.since = since;
  flight.landed = std::move(begun->issue.landed);
  const Ticket ticket = flight.ticket;
  {
    const std::lock_guard lock(mutex_);
    flights_.push_back(std::move(flight));
  }
  if (fine_) session_->WakeWatchdog();
  return ticket;
}

Result<NcclHandle::Ticket> NcclHandle::Capture(Issue issue, abi::CuStream stream) {
  auto before = events_->Record(stream);
  if (!before.ok()) return before.error();
  session_->SetCaptured();
  Begun begun;
  begun.issue = std::move(issue);
  begun.issue.after = {std::move(*before)};
  abi::NcclComm* const comm = Comm();
  const auto call = [&] {
    return Enter(begun, comm, capturing_, session_->libraries().cuda, *events_);
  };
  const Deadline deadline = steady_clock::now() + begun.issue.timeout;
  if (MaybeError error = session_->CallHere(begun.issue.name, call, deadline)) return *error;
  if (begun.error) return *begun.error;
  const std::lock_guard lock(mutex_);
  const Ticket ticket = next_captured_++ | kInGraph;
  captured_[ticket] = std::move(begun.done);
  return ticket;
}

// Other ranks' ends are news while something is in flight.
void NcclHandle::SetFlying(bool flying) {
  Communicator* const control = control_.load();
  if (flying_.exchange(flying) != flying && control != nullptr) control->SetOccupied(flying);
}

// ---- Landing ----

// The driver may hang: it is not asked under the lock.
MaybeError NcclHandle::Land() {
  const CudaApi& cuda = session_->libraries().cuda;
  for (;;) {
    Flight front;
    {
      const std::lock_guard lock(mutex_);
      if (flights_.empty()) return std::nullopt;
      front = flights_.front();
    }
    const int code = cuda.event_query(EventOf(front.done));
    const auto now = steady_clock::now();
    // What was aborted counts as done, and has left anything in its buffers.
    if (session_->broken() || code == abi::kCudaDeinitialized) return std::nullopt;
    if (code == abi::kCudaNotReady) {
      if (now < front.since + front.timeout) return std::nullopt;
      return Error{DTRAIN_ERROR_TIMEOUT, front.what + " was not done in time on the GPU"};
    }
    if (code != abi::kCudaSuccess) {
      return Error{DTRAIN_ERROR_DEVICE,
                   "the GPU failed, at " + front.what + " or before it: " + cuda.Text(code)};
    }
    {
      const std::lock_guard lock(mutex_);
      // Another thread may have seen it, too.
      if (flights_.empty() || flights_.front().ticket != front.ticket) continue;
      flights_.pop_front();
      if (!flights_.empty()) flights_.front().since = std::max(flights_.front().since, now);
      SetFlying(calling_ || !flights_.empty());
      landed_.store(front.ticket);
    }
    if (front.landed) front.landed(NanosOf(now));
  }
}

MaybeError NcclHandle::Look() {
  if (Communicator* const control = control_.load()) {
    if (MaybeError news = control->Look()) {
      if (!group_.empty()) news->message = "among " + group_ + ": " + news->message;
      return news;
    }
  }
  int code = abi::kNcclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr || !sound()) return std::nullopt;
    const NcclApi& nccl = session_->libraries().nccl;
    const int asked = nccl.async_error(comm_, &code);
    if (asked != abi::kNcclSuccess) code = asked;
    if (code != abi::kNcclSuccess) {
      const char* text = nccl.error_string(code);
      std::string out = "NCCL reports: " + Printable(text == nullptr ? "" : text);
      const std::string said = nccl.LastError();
      if (!said.empty()) out += "; NCCL says: " + Printable(said);
      return Error{code == abi::kNcclRemoteError ? DTRAIN_ERROR_NETWORK : DTRAIN_ERROR_DEVICE, out};
    }
  }
  return Land();
}

template <typename Over>
MaybeError NcclHandle::Wait(Over over, const std::string& what, Deadline deadline) {
  const Device::Scope scope(*session_->device());
  Deadline hangs_until = Deadline::max();
  for (Backoff pause;; pause()) {
    Result<bool> is_over = over();
    // First, because what was aborted counts as done.
    if (MaybeError error = session_->broken()) return session_->Fail(*error);
    if (!is_over.ok()) return session_->Fail(is_over.error());
    if (*is_over) return std::nullopt;
    const auto now = steady_clock::now();
    if (now >= deadline) {
      return session_->Fail({DTRAIN_ERROR_TIMEOUT, what + " was not done in time on the GPU"});
    }
    if (!session_->WatchdogHangs()) {
      hangs_until = Deadline::max();
    } else if (hangs_until == Deadline::max()) {
      hangs_until = now + kDoubt;
    } else if (now >= hangs_until) {
      return session_->Fail(
          {DTRAIN_ERROR_DEVICE, "the GPU's driver has not answered for ten seconds, at " + what});
    }
  }
}

MaybeError NcclHandle::Await(const Point& point, const std::string& what, Deadline deadline) {
  if (point == nullptr) return std::nullopt;
  const CudaApi& cuda = session_->libraries().cuda;
  return Wait(
      [&]() -> Result<bool> {
        const int code = cuda.event_query(EventOf(point));
        if (code == abi::kCudaSuccess) return true;
        if (code == abi::kCudaNotReady) return false;
        return Error{DTRAIN_ERROR_DEVICE, "the GPU failed, at " + what + ": " + cuda.Text(code)};
      },
      what, deadline);
}

MaybeError NcclHandle::Await(Ticket ticket, Deadline deadline) {
  return Wait(
      [&]() -> Result<bool> {
        if (!IsOver(ticket)) {
          if (MaybeError error = Land()) return *error;
        }
        return IsOver(ticket);
      },
      "a collective", deadline);
}

MaybeError NcclHandle::AwaitAll(Deadline deadline) { return Await(next_.load() - 1, deadline); }

MaybeError NcclHandle::Reserve() {
  const Ticket next = next_.load();
  if (next <= kMostFlights) return session_->broken();
  const Ticket oldest = next - kMostFlights;
  if (IsOver(oldest)) return session_->broken();
  return Await(oldest);
}

bool NcclHandle::IsOver(Ticket ticket) const {
  return (ticket & kInGraph) != 0 || ticket <= landed_.load();
}

bool NcclHandle::Done(Ticket ticket) {
  if (IsOver(ticket) || session_->broken()) return true;
  const Device::Scope scope(*session_->device());
  if (MaybeError error = Land()) session_->Break(*error);
  return IsOver(ticket) || session_->broken();
}

MaybeError NcclHandle::Join(Ticket ticket, abi::CuStream stream) {
  if (MaybeError error = session_->broken()) return session_->Fail(*error);
  Point done;
  {
    const std::lock_guard lock(mutex_);
    const auto captured = captured_.find(ticket);
    if (captured != captured_.end()) {
      done = std::move(captured->second);
      captured_.erase(captured);
    } else {
      for (const Flight& flight : flights_) {
        if (flight.ticket == ticket) done = flight.done;
      }
    }
  }
  if (done == nullptr) return std::nullopt;
  const CudaApi& cuda = session_->libraries().cuda;
  const Device::Scope scope(*session_->device());
  const int code = cuda.stream_wait(stream, EventOf(done), 0);
  if (code == abi::kCudaSuccess) return std::nullopt;
  return session_->Fail({DTRAIN_ERROR_DEVICE, "waiting in a stream failed: " + cuda.Text(code)});
}

}  // namespace dtrain::runtime
