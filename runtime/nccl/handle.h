// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/nccl/alarm.h"
#include "runtime/nccl/device.h"
#include "runtime/nccl/libraries.h"
#include "runtime/nccl/watchdog.h"

namespace dtrain::runtime {

// One NCCL communicator, its end, and the operations in flight on it. NCCL is never waited for
// without a deadline: calls do not block (NCCL's own non-blocking mode) and are asked about until
// they are through; what breaks the communicator aborts it, and an abort that takes longer than
// `longest_end` ends the process (M4). Break and Look: any thread; all else one thread at a time.
class NcclHandle : public Watched, public std::enable_shared_from_this<NcclHandle> {
 public:
  // `me` is "rank 1 (host b)"; `alarm` may be null; `longest_end` bounds NCCL's abort and destroy.
  NcclHandle(const Libraries& libraries, std::shared_ptr<const Device> device, std::string me,
             std::unique_ptr<Alarm> alarm, std::chrono::milliseconds longest_end);
  ~NcclHandle() override = default;

  // `late` says what to tell when the deadline passes.
  MaybeError Init(const abi::NcclUniqueId& id, int rank, int size, Deadline deadline,
                  const std::string& late);

  // In place of Init: takes what another handle's Split has made.
  MaybeError Adopt(abi::NcclComm* comm, Deadline deadline);

  // NCCL's own way from one communicator to several, which all of its ranks take at the same time,
  // with nothing in flight. Those with the same `color` come together, ordered by `key`; -1: in
  // none, null comes back. What goes wrong breaks this communicator.
  Result<abi::NcclComm*> Split(int color, int key, Deadline deadline);

  // Calls `call`, whose result is NCCL's, and waits until NCCL has taken it up (the operation is
  // then enqueued, not done). `name` is the function's, for messages.
  using NcclCall = std::function<int(abi::NcclComm*)>;
  MaybeError Call(const char* name, const NcclCall& call, Deadline deadline);

  // As Call, but for what may fail without breaking anything.
  MaybeError Try(const NcclCall& call);

  // Returns when all work before `event` is done.
  MaybeError Wait(abi::CuEvent event, Deadline deadline);
  // Lets the watchdog follow the work that `stream` has now. `timeout` counts from when the work
  // before it was done.
  void Follow(abi::CuStream stream, const Collective& what, std::chrono::milliseconds timeout);

  // From here on, this rank is in the collective `what`: see Communicator::SayLeaving.
  void Begin(const Collective& what);
  void SayLeaving();

  // The first reason counts: every call from now on fails with it, and the other ranks are told.
  void Break(const Error& reason);
  MaybeError broken() const;
  // Break, and its reason when that is over.
  Error Fail(const Error& reason);

  // Ends the communicator, in order when nothing broke it; `longest_end` at most (M11). False
  // when NCCL still hangs, and who calls it next may hang too.
  bool Close();

  void AddTo(std::vector<pollfd>& entries) override;
  void Look() override;

 private:
  struct Flight {
    abi::CuEvent event = nullptr;
    Collective what;
    std::chrono::milliseconds timeout{0};
    std::chrono::steady_clock::time_point since;
  };

  MaybeError Settle(const char* name, int code, Deadline deadline);
  std::string NcclText(const char* name, int code);
  void StartAbort();
  void RunAbort(const Error& reason);
  void AwaitAbort();
  MaybeError LookAtFlights();
  MaybeError LookForLeavers();
  void Tell(const Error& reason);
  bool Shutdown();

  const Libraries& libraries_;
  const std::shared_ptr<const Device> device_;
  const std::string me_;
  const std::unique_ptr<Alarm> alarm_;  // the watchdog's, once it watches
  const std::chrono::milliseconds longest_end_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  abi::NcclComm* comm_ = nullptr;
  // While it is aborted: else a thread that is just beginning may be all that knows of it, which
  // LeakSanitizer takes for a leak in a process that exits then.
  abi::NcclComm* ending_ = nullptr;
  MaybeError broken_;
  int calls_ = 0;  // threads inside NCCL
  bool aborting_ = false;
  bool aborted_ = false;
  std::deque<Flight> flights_;
  std::vector<abi::CuEvent> spare_events_;

  Collective latest_;   // the last that was begun
  uint32_t begun_ = 0;  // collectives
  bool leaving_ = false;

  // The watchdog's as well.
  bool raised_ = false;
  bool told_leaving_ = false;
};

}  // namespace dtrain::runtime
