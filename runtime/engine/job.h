// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/result.h"
#include "runtime/boot/pmi_client.h"
#include "runtime/boot/topology.h"
#include "runtime/engine/backend.h"
#include "runtime/engine/engines.h"
#include "runtime/engine/group.h"
#include "runtime/engine/page.h"

namespace dtrain::runtime {

// This process's connection to its launcher, which outlives a job where the launcher lets a process
// join again.
struct Launcher {
  std::optional<PmiClient> pmi;  // none without a launcher, or before the first job
  int generation = 0;            // how often it has been joined through
  bool closed = false;           // it let us join once only, and that is over
};

// This process's membership of a job, from a finished bootstrap on. Used by one thread at a time,
// except for Wait, Test and AwaitGroup; any thread may read rank, size, topology and groups' ranks.
class Job {
 public:
  // Meets the other ranks and connects to them. `launcher` and `page` outlive the job.
  static Result<std::unique_ptr<Job>> Join(const Environment& env, Launcher& launcher,
                                           ProgressPage& page);
  ~Job();

  int rank() const { return env_.rank; }
  int size() const { return env_.size; }
  const Places& places() const { return places_; }
  const char* backend() const { return backend_->name(); }
  Groups& groups() { return groups_; }

  // Arguments are checked by the caller. After a failure every further call fails with the first
  // one's text.
  MaybeError Run(const Collective& what);
  Result<dtrain_handle> Start(Operation operation);
  MaybeError Wait(dtrain_handle handle) { return engines_.OfHandle(handle)->queue.Wait(handle); }
  MaybeError Test(dtrain_handle handle, bool& done) {
    return engines_.OfHandle(handle)->queue.Test(handle, done);
  }

  // See dtrain_join.
  Result<int> AwaitAllJoined();

  // The name of what StartGroup starts, which nothing else may have.
  static constexpr char kMakesGroup[] = "dtrain_group_create";
  // A group in the making: an asynchronous all-gather over all ranks, behind which they connect.
  struct NewGroup {
    int32_t mine[2] = {};              // color and key
    std::vector<int32_t> table;        // of all ranks
    Result<uint32_t> id{uint32_t{0}};  // set when it is done; 0: this rank is in no group
    dtrain_handle handle = 0;
  };
  // One at a time, until AwaitGroup has returned the id.
  Result<std::shared_ptr<NewGroup>> StartGroup(int color, int key);
  Result<uint32_t> AwaitGroup(const NewGroup& begun);
  MaybeError FreeGroup(uint32_t id);
  // See dtrain_group_set_timeout.
  MaybeError SetTimeout(uint32_t group, std::chrono::milliseconds timeout);

  enum class Memory { kShared, kDevice, kRegistrable };
  Result<void*> Allocate(size_t bytes, Memory kind);
  MaybeError Free(void* memory);
  // Collective over the group: whether its collectives use the memory in place from now on.
  Result<bool> Register(void* memory, uint32_t group);
  MaybeError Deregister(const void* memory, uint32_t group);

  enum class Leaving {
    kInTime,    // the others have as much time as for joining
    kAtExit,    // the program has ended, and they may still work for hours
    kToReturn,  // as kInTime; they all leave in order to join again, also after a failure
  };
  // Waits for the other ranks, unless a collective has failed, and leaves.
  MaybeError Leave(Leaving how);
  bool broken() const { return executor_.broken().has_value(); }

 private:
  Job(const Environment& env, Launcher& launcher, ProgressPage& page)
      : env_(env),
        launcher_(launcher),
        page_(page),
        engines_(groups_, page),
        executor_(engines_.world().executor),
        queue_(engines_.world().queue) {
    listener_->executor = &executor_;
  }
  MaybeError Bootstrap();
  MaybeError ConnectPmi(Deadline deadline);
  Result<std::vector<int>> FindNodes(class PmiBootstrap& bootstrap, Deadline deadline);
  MaybeError Meet(class Bootstrap& bootstrap, std::vector<int> node_of_rank, Deadline deadline);
  MaybeError Connect(class Bootstrap& bootstrap, const Hello& mine, Deadline deadline);
  MaybeError AgreeOnBackend(const Hello& mine, Deadline deadline);
  MaybeError ConnectDevice(Group& group, Deadline deadline);
  Result<uint32_t> MakeGroup(const std::vector<int32_t>& table);
  MaybeError ConnectGroup(Group& group, bool everyone, Deadline deadline);
  // By rank in the group.
  Result<std::vector<int64_t>> ShareSizes(Group& group, size_t bytes);
  Result<std::vector<std::string>> ShareOutcomes(Group& group, const std::string& mine);

  Environment env_;
  Launcher& launcher_;
  ProgressPage& page_;
  Places places_;
  std::unique_ptr<Backend> backend_;
  Groups groups_;
  Engines engines_;
  Executor& executor_;  // of all ranks
  Queue& queue_;
  uint32_t next_group_ = 1;
  std::weak_ptr<NewGroup> making_;  // until its caller has the id
  // Who is told that a device has failed.
  struct Listener {
    std::mutex mutex;
    Executor* executor = nullptr;
  };
  void StopListening();
  const std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  std::vector<void*> plain_;  // what dtrain_alloc took from no communicator
};

}  // namespace dtrain::runtime
