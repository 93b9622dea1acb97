// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/device.h"
#include "runtime/nccl/event_pool.h"
#include "runtime/nccl/registrations.h"
#include "runtime/nccl/session.h"

namespace dtrain::runtime {

// One NCCL communicator, its stream, and what is in flight there: from the call that enqueues it
// until the event behind it has come. Any thread, but for what begins something: one at a time.
class NcclHandle : public std::enable_shared_from_this<NcclHandle> {
 public:
  using Point = DeviceCommunicator::Point;
  using Ticket = DeviceCommunicator::Ticket;
  using Landed = DeviceCommunicator::Landed;

  // `me` is "rank 1 (host b)". `control`, where its ranks agree on things, may be null; its
  // failures are this one's. `fine`: the ends of collectives are wanted to the millisecond.
  // `group` is "the group of ranks 2, 1", for texts; empty for the job's ranks.
  NcclHandle(std::shared_ptr<Session> session, std::string me, Communicator* control,
             std::string group, bool fine);
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  const std::shared_ptr<Session>& session() const { return session_; }
  const std::string& me() const { return me_; }
  abi::CuStream stream() const { return stream_; }

  MaybeError Init(const abi::NcclUniqueId& id, int rank, int size, Deadline deadline,
                  const std::string& late);
  // NCCL's own way from one communicator to several, which all of its ranks take at the same time,
  // with nothing in flight. Those with the same `color` come together, ordered by `key`. This one
  // is as good as before when it fails, unless it says so in failure().
  MaybeError Split(int color, int key, NcclHandle& part, Deadline deadline);
  // After one of these has gone well on all ranks. What was never opened ends by an abort.
  MaybeError Open();
  bool sound() const { return sound_.load(); }

  // An NCCL call that enqueues something on a stream.
  using Enqueue = std::function<int(abi::NcclComm*, abi::CuStream)>;
  struct Issue {
    const char* name = "";  // of NCCL's function
    Enqueue enqueue;        // owns all that it touches
    std::vector<Point> after;
    std::string what;  // "collective 7 (allreduce sum of 4 float32)"
    std::chrono::milliseconds timeout{0};
    Landed landed;  // may be null
  };
  // Waits while too much is in flight.
  Result<Ticket> Launch(Issue issue);
  // Into the graph that `stream` captures.
  Result<Ticket> Capture(Issue issue, abi::CuStream stream);

  // Its failure means that of everything: the event is NCCL's or behind it.
  MaybeError Await(const Point& point, const std::string& what, Deadline deadline);
  // The flights have time limits of their own.
  MaybeError Await(Ticket ticket, Deadline deadline = Deadline::max());
  MaybeError AwaitAll(Deadline deadline = Deadline::max());
  bool Done(Ticket ticket);
  MaybeError Join(Ticket ticket, abi::CuStream stream);

  Result<Point> Record(abi::CuStream stream) const { return events_->Record(stream); }

  // With NCCL, which answers with no handle where it does not do it: false then.
  Result<bool> Register(Registrations::Entry entry, Deadline deadline);
  // With nothing in flight. Nothing to do for what is not registered.
  MaybeError Deregister(const void* memory, Deadline deadline);
  const Registrations& registrations() const { return registrations_; }
  // The handles are whoever's calls this from now on.
  std::vector<Registrations::Entry> TakeRegistrations() { return registrations_.TakeAll(); }

  // The session's: what has gone wrong since the last look.
  MaybeError Look();
  bool WantsFineLooks() const { return fine_ && flying_.load(); }
  // The communicator is whoever's calls this from now on.
  abi::NcclComm* Take();

  // Ends the communicator, and its stream when that ended in order.
  bool Close();

 private:
  struct Flight {
    Ticket ticket = 0;
    Point done;
    std::string what;
    std::chrono::milliseconds timeout{0};
    std::chrono::steady_clock::time_point since;
    Landed landed;
  };
  // What the thread that calls NCCL and the one that waits for it share.
  struct Begun {
    Issue issue;
    Point done;
    MaybeError error;  // of the driver
  };

  static int Enter(Begun& begun, abi::NcclComm* comm, abi::CuStream stream, const CudaApi& cuda,
                   EventPool& events);
  MaybeError Reserve();
  // The flights that are over.
  MaybeError Land();
  template <typename Over>
  MaybeError Wait(Over over, const std::string& what, Deadline deadline);
  bool IsOver(Ticket ticket) const;
  abi::NcclComm* Comm();
  void SetFlying(bool flying);
  Result<Ticket> LaunchNext(const std::shared_ptr<Begun>& begun);

  const std::shared_ptr<Session> session_;
  const std::string me_;
  std::atomic<Communicator*> control_;
  const std::string group_;
  const bool fine_;
  const std::shared_ptr<EventPool> events_;
  abi::CuStream stream_ = nullptr, capturing_ = nullptr;  // the second for graphs

  std::mutex mutex_;
  abi::NcclComm* comm_ = nullptr;
  bool calling_ = false;  // NCCL, to enqueue something
  std::deque<Flight> flights_;
  std::map<Ticket, Point> captured_;
  Ticket next_captured_ = 1;
  std::atomic<Ticket> next_{1};
  std::atomic<Ticket> landed_{0};  // all up to here are done
  std::atomic<bool> flying_{false};
  std::atomic<bool> sound_{false};
  Registrations registrations_;
};

}  // namespace dtrain::runtime
