// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/communicator.h"
#include "runtime/base/device.h"

namespace dtrain::runtime {

// Some ranks of the job, or all of them, and how they reach each other. Its counters belong to
// whichever thread runs collectives at the time.
struct Group {
  uint32_t id = 0;  // 0: all ranks; the same on all members
  int rank = 0;
  int size = 1;
  std::vector<int> members;                    // ranks of the job, by rank in the group
  std::unique_ptr<Communicator> communicator;  // none for one rank, where there is nothing to do
  // In a job on GPUs: what its collectives run on, but for barriers. Ends before `communicator`.
  std::unique_ptr<DeviceCommunicator> device;
  // Of the program's collectives: the same on all members. Those of graphs are counted by the
  // program's threads.
  std::atomic<uint64_t> next_number{0};
  uint64_t next_run = 0;       // of the communicator's
  uint64_t next_unnamed = 0;   // of the asynchronous collectives without a name; the queue's
  uint64_t registrations = 0;  // that its members have begun
  // How long a collective waits for the other members.
  std::atomic<std::chrono::milliseconds> timeout{std::chrono::milliseconds(0)};

  std::atomic<bool> has_own_timeout{false};  // and not the job's

  // Whether one that did is no failure of the job: its program has asked for that.
  bool FailsAlone(const Error& error) const {
    return error.code == DTRAIN_ERROR_TIMEOUT && id != 0 && device == nullptr &&
           has_own_timeout.load();
  }
};

// "2, 3": ranks of the job, for texts that speak of those of the group.
std::string MembersText(const Group& group);
// The setting that limits how long this rank's collectives on the group wait, for errors.
std::string LimitText(const Group& group);

// A group's place within the table of what all ranks of the job gave for color and key.
struct Split {
  uint32_t id = 0;           // of this rank's group
  uint32_t groups = 0;       // how many there are in all
  std::vector<int> members;  // empty for a negative color
  bool everyone = true;      // no rank gave one
};
// `table` holds color and key of each rank; `first_id` is the id of the lowest color's group.
Split SplitByColor(const std::vector<int32_t>& table, int rank, uint32_t first_id);

// All groups of the job. The map may be read by any thread; a group is removed only when nobody
// uses it.
class Groups {
 public:
  Group& world() { return world_; }
  const Group& world() const { return world_; }

  // Owned here from now on.
  Group& Add(std::unique_ptr<Group> group);
  // Null when there is no such group (any more).
  Group* Find(uint32_t id);
  void Remove(uint32_t id);
  // Gives `read` the group and returns what it says, or -1 when there is no such group.
  int Read(uint32_t id, const std::function<int(const Group&)>& read);

  // Every rank that is in a collective with this one, or will be, fails with `reason`.
  void AbortAll(const Error& reason);
  // This rank begins no further collective: see Communicator.
  void SayLeaving();
  // Of any of the communicators.
  MaybeError failure();
  // Returns when nothing is in flight on a device.
  MaybeError AwaitDevices();
  // With all of them, of memory that nothing in flight uses.
  MaybeError Deregister(const void* memory);
  // Ends all communicators.
  void Clear();

 private:
  template <typename Use>
  void ForEach(Use use);  // a group
  std::vector<DeviceCommunicator*> Devices();

  std::mutex mutex_;
  Group world_;
  std::map<uint32_t, std::unique_ptr<Group>> others_;
};

}  // namespace dtrain::runtime
