// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/collective.h"
#include "runtime/base/communicator.h"
#include "runtime/base/outline.h"
#include "runtime/base/result.h"
#include "runtime/shm/counter.h"
#include "runtime/shm/memory.h"

namespace dtrain::runtime {

// What one rank asks for, as the others of its node see it.
struct Descriptor {
  static constexpr int64_t kElsewhere = -1;

  struct Buffers {
    uint64_t input;  // an address in that rank's process
    uint64_t output;
    int64_t input_at;  // offset in that rank's arena, or kElsewhere
    int64_t output_at;
  };
  static constexpr size_t kInlineBytes = sizeof(Buffers);

  Outline what;
  union {
    Buffers at;
    char data[kInlineBytes];  // of an all-reduce that is small enough, the input itself
  };
};

// A text that says who asks for what; nullopt when all agree.
MaybeError CompareRequests(const std::vector<int>& ranks, const std::vector<Descriptor>& requests);

// Who leaves the job while another rank needs it.
Error LeavingError(int leaver, int waiter, const Collective& what);
// Whether an error's text is that one.
bool IsLeaving(const std::string& text);

// The ranks of one node, in one segment of shared memory: who has come, what each asks for, slots
// for small data, room to meet the other nodes in, and the reason of a failure. Used by one thread
// at a time, but for Fail.
//
// Each rank says that it has come in a cache line of its own, which the others look at: nobody
// waits to write to a line that others write to as well. What it asks for is in the same line.
class LocalGroup {
 public:
  static constexpr size_t kSlotBytes = size_t{256} << 10;
  static constexpr int kLanes = 4;  // chunks that may be on their way between nodes at once

  struct Member {
    int rank = 0;  // in the communicator
    pid_t pid = 0;
  };

  // Bytes of a segment for `size` ranks with `lane_bytes` in each lane.
  static size_t BytesFor(int size, size_t lane_bytes);

  // A number by which a process can tell that what it opened is this segment.
  static void SetCookie(const SharedMemory& segment, uint64_t cookie);
  static uint64_t CookieOf(const SharedMemory& segment);

  // `members` in rank order, `mine` is the index of this process; `segment` was made zeroed by the
  // first of them.
  LocalGroup(SharedMemory segment, size_t lane_bytes, std::vector<Member> members, int mine);
  ~LocalGroup();
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  int size() const { return static_cast<int>(members_.size()); }
  int mine() const { return mine_; }
  // Whether the ranks of this machine outnumber its processors. To be set before the first Enter.
  bool crowded() const { return crowded_; }
  void SetCrowded(bool crowded);
  const Member& member(int index) const { return members_[static_cast<size_t>(index)]; }

  // Waits for all ranks of the node and compares what they ask for. The descriptors of the others
  // are valid until this rank's next Enter.
  MaybeError Enter(const Descriptor& request, Deadline deadline);
  const Descriptor& request(int index) const;
  // Waits for all ranks of the node.
  MaybeError Barrier(Deadline deadline);
  // Time spent in Enter and Barrier since the last time it was asked for, but for waits so short
  // that looking at a clock would take as long.
  int64_t TakeWaitedNs() { return std::exchange(waited_ns_, 0); }

  // kSlotBytes that rank `index` writes before a barrier and the others read after it. `which` is
  // 0 or 1: what is read now must not be what is written next.
  char* slot(int index, int which) const;

  // Chunk number `chunk` (0, 1, ... over the life of the group) goes through lane chunk % kLanes:
  // all ranks wait for the lane to be free, fill it and say so; the leader waits for that, meets
  // the other nodes and says so; all take the result out and say so.
  char* lane(uint64_t chunk) const;
  MaybeError AwaitFree(uint64_t chunk, Deadline deadline);
  void Filled(uint64_t chunk);
  // Before a rank fills a lane where the one before it has: waits for that one.
  MaybeError AwaitEarlier(uint64_t chunk, Deadline deadline);
  MaybeError AwaitFilled(uint64_t chunk, Deadline deadline);
  void Met(uint64_t chunk);
  MaybeError AwaitMet(uint64_t chunk, Deadline deadline);
  void Taken(uint64_t chunk);

  // Any thread of any rank: the first reason given is what every wait of every rank fails with,
  // unless what it waits for is there. `number` is that of the collective that failed, or the next.
  void Fail(const Error& error, uint32_t number);
  MaybeError failure() const;
  uint32_t failed_number() const;  // once there is a failure

  // This rank comes no more, after `runs` collectives: a wait of another one for it fails.
  void SayLeaving(uint32_t runs);
  // One of this node's ranks that has said so.
  std::optional<Leaver> leaver() const;
  // A rank of another node has; the first counts. Any thread.
  void SetFarLeaver(const Leaver& leaver);
  // Whether that rank does not come to `what`, which this one is in. Any thread.
  MaybeError CheckFarLeaver(const Collective& what) const;

  // Whether one of this node's ranks has ended, or left the group. Any thread.
  MaybeError CheckProcesses() const;

  // Sleeps until Fail was called by anyone, at most `longest`, and at times for no reason.
  void AwaitFailure(std::chrono::milliseconds longest);

 private:
  struct Card;
  struct Control;
  struct Header;

  Header& header() const;
  Control& control(int index) const;
  // The line in which rank `index` says that it has come to its Enter, or Barrier, number `target`.
  std::atomic<uint32_t>& come(int index, bool entering, uint32_t target) const;
  bool AllHaveCome(bool entering, uint32_t target) const;
  // After this rank has said so itself.
  MaybeError AwaitAll(bool entering, uint32_t target, Deadline deadline);
  template <typename Ready>
  MaybeError Wait(Counter& bed, Ready ready, const Patience& patience, Deadline deadline);
  MaybeError AwaitCounter(Counter& counter, uint32_t target, Deadline deadline);
  uint32_t number() const { return static_cast<uint32_t>(request(mine_).what.number); }
  MaybeError CheckOthers() const;
  std::string Missing() const;

  SharedMemory segment_;
  const size_t lane_bytes_;
  const std::vector<Member> members_;
  const int mine_;
  const pid_t pid_ = getpid();
  bool crowded_ = false;
  Patience patience_;
  std::vector<int> pidfds_;   // -1 for this process
  std::vector<int> folders_;  // /proc/PID of others, where the kernel has no pidfds (Linux 5.3)
  uint32_t barriers_ = 0;     // that this rank has come to
  uint32_t entries_ = 0;
  int64_t waited_ns_ = 0;
};

}  // namespace dtrain::runtime
