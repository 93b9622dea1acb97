// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// Memory that a shepherd shares with one worker. The shepherd makes it (a memfd, zeroed, sealed
// against resizing), the worker inherits the descriptor as DTRAIN_PAGE_FD, and libdtrain writes
// into it what the worker is doing. The shepherd reads it without the worker's help, also when the
// worker is stopped, and trusts nothing in it: a worker may write anything there.
//
// Only plain words and lock-free atomics: both sides are built apart from each other, and the page
// outlives a worker that was killed in the middle of a change.
namespace dtrain {

constexpr uint32_t kWorkerPageMagic = 0x67706474;  // "tdpg"
constexpr uint32_t kWorkerPageVersion = 1;

// What a record is about. The collectives have the numbers of runtime/base/collective.h.
enum class TimelineKind : uint32_t {
  kBarrier = 0,
  kAllreduce = 1,
  kBroadcast = 2,
  kAllgather = 3,
  kReduceScatter = 4,
  kAlltoall = 5,
  kReduce = 6,
  kMark = 16,   // the program's own, named
  kFusion = 17  // one transfer that carried several all-reduces
};

// One finished span of a worker's life. Times are of CLOCK_MONOTONIC, nanoseconds.
struct TimelineRecord {
  int64_t begin_ns;
  int64_t end_ns;
  // Parts of the span, 0 when not known; they follow each other in this order.
  int64_t negotiate_ns;  // agreeing with the others on what to do
  int64_t wait_ns;       // for the last rank
  int64_t transfer_ns;
  int64_t reduce_ns;
  uint64_t number;  // of the collective in its group; equal on all ranks
  uint64_t bytes;
  uint32_t kind;  // TimelineKind
  uint32_t lane;  // spans of one lane nest; 0 the program's thread, 1 the engine's
  char name[40];  // NUL-terminated, cut; empty: none
};
static_assert(sizeof(TimelineRecord) == 112);

struct WorkerPage {
  uint32_t magic;  // filled in by the shepherd, as are version, size and capacity
  uint32_t version;
  uint64_t size;      // bytes of the whole mapping, a multiple of the page size
  uint32_t capacity;  // records of the ring behind this structure; 0: nobody wants a timeline
  uint32_t reserved;

  // The collective that the worker is inside. `change` is odd while the fields below it are being
  // written; a reader that sees it odd, or changed afterwards, reads again (a few times only).
  std::atomic<uint64_t> change;
  std::atomic<uint64_t> number;  // of the current collective, or of the last one
  std::atomic<uint64_t> bytes;
  std::atomic<int64_t> begin_ns;  // CLOCK_MONOTONIC; 0: not inside a collective
  std::atomic<uint32_t> kind;     // TimelineKind
  std::atomic<uint32_t> group;    // 0: all ranks

  // Since dtrain_init. Each is written by one thread at a time.
  std::atomic<uint64_t> operations;
  std::atomic<uint64_t> total_bytes;
  std::atomic<uint64_t> busy_ns;  // inside collectives
  std::atomic<uint64_t> wait_ns;  // of it, waiting for the last rank
  std::atomic<uint32_t> joined;   // 1 between dtrain_init and dtrain_finalize

  // The ring: record i is at [i % capacity]; `written` - `taken` of them are there to be taken.
  // The worker drops a record when the ring is full, and counts it.
  alignas(64) std::atomic<uint64_t> written;
  std::atomic<uint64_t> dropped;
  alignas(64) std::atomic<uint64_t> taken;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(WorkerPage) % 64 == 0);

// Bytes of a page with room for `capacity` records, before rounding up to whole pages.
constexpr size_t WorkerPageBytes(uint32_t capacity) {
  return sizeof(WorkerPage) + size_t{capacity} * sizeof(TimelineRecord);
}

inline TimelineRecord* TimelineRing(WorkerPage* page) {
  return reinterpret_cast<TimelineRecord*>(page + 1);
}

}  // namespace dtrain
