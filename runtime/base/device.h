// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/collective.h"
#include "runtime/base/result.h"

namespace dtrain::runtime {

// Where the data of a collective goes along. Each rank's buffers say one; where the ranks' differ,
// all take kStaged.
enum class Via : uint8_t {
  kDevice,  // the device uses the buffers as they are
  kStaged,  // all ranks take the same pieces through memory of the device
  kHost,    // all buffers are the host's, and the device has nothing to do with it
};
inline bool IsVia(int64_t number) { return number >= 0 && number <= static_cast<int>(Via::kHost); }

// The collectives of a group on a device, such as a GPU: enqueued there, done later. The ranks have
// agreed on what they ask for before they come here, and all of them launch the same in the same
// order. After a failure, of this group's or of another one's in the process, every call fails with
// the first reason.
//
// Launch, Capture, and what is about memory: one thread at a time; all else: any thread.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  // What the buffers of `what` on this rank say; kDevice where there are none. Fails for memory of
  // another device, which nothing can be done with.
  virtual Result<Via> ViaOf(const Collective& what) const = 0;
  // What `what` uses of registered memory on this rank, as a number that is the same on ranks which
  // use the same registrations in the same way. 0: nothing.
  virtual uint64_t RegisteredUse(const Collective& what) const = 0;

  // What a stream has at a certain moment. Null: nothing to wait for.
  using Point = std::shared_ptr<void>;
  // What `stream` has now.
  virtual Result<Point> Record(void* stream) = 0;

  struct Work {
    std::vector<Collective> all;  // one of any kind, or several all-reduces of one type
    std::vector<Point> after;     // what they wait for
    // kDevice on every rank, with the same RegisteredUse. Where not, they are staged.
    bool direct = true;
  };
  // Called once when the work is done, with the time of CLOCK_MONOTONIC; never if it fails.
  using Landed = std::function<void(int64_t done_ns)>;
  // Names work that was launched: 1, 2, ...; 0 is done.
  using Ticket = uint64_t;
  // Enqueues the work behind what was launched before; the time limit counts from when that is
  // done. Waits while too much is in flight. With !direct the work is done on return.
  virtual Result<Ticket> Launch(Work work, std::chrono::milliseconds timeout, Landed landed) = 0;

  // Returns when it is done; bounded by the time limits of what is in flight.
  virtual MaybeError Await(Ticket ticket) = 0;
  virtual MaybeError AwaitAll() = 0;
  virtual bool Done(Ticket ticket) = 0;
  // What `stream` gets from now on runs after it.
  virtual MaybeError Join(Ticket ticket, void* stream) = 0;

  // Whether what `stream` is given does not run now, but becomes part of a graph.
  virtual bool Capturing(void* stream) const = 0;
  // Adds `what` to the graph. Join belongs to the graph, too. All ranks capture, and launch their
  // graphs, in the same order.
  virtual Result<Ticket> Capture(const Collective& what) = 0;

  // Zeroed memory of the device, aligned to 4096; and gives it back, to the communicator that it is
  // of. `registrable`: of the kind that Register takes, of this and of all other communicators.
  virtual Result<void*> Allocate(size_t bytes, bool registrable) = 0;
  // Of memory that is registered nowhere.
  virtual MaybeError Free(void* memory) = 0;
  // How much was asked for, when registrable memory of this communicator begins there; else 0.
  virtual size_t RegistrableBytes(const void* memory) const = 0;

  // Lets the ranks work in each other's memory. All ranks call it with the same `bytes` and `id`,
  // which no other registration of this communicator has, and Deregister at once where another rank
  // has not got true. False: the device does not do it.
  virtual Result<bool> Register(void* memory, size_t bytes, uint64_t id) = 0;
  // When nothing that uses it is in flight. Nothing to do for memory that is not registered.
  virtual MaybeError Deregister(const void* memory) = 0;

  // Ends the work of all groups of this process, also while another thread waits for some.
  virtual void Abort(const Error& reason) = 0;
  // What has failed.
  virtual MaybeError failure() const = 0;
};

}  // namespace dtrain::runtime
