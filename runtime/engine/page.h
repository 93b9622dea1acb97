// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

#include "common/page/worker_page.h"
#include "runtime/base/collective.h"

namespace dtrain::runtime {

// Of CLOCK_MONOTONIC, which the shepherd reads, too.
int64_t NowNs();

// What this process tells its shepherd: see common/page/worker_page.h. Without a page every call
// does nothing. Lives as long as the process, because the descriptor can be mapped only once.
class ProgressPage {
 public:
  // Takes the descriptor when it is a page of this version, else leaves it alone. Only the first
  // page counts.
  void Open(int fd);

  bool open() const { return page_ != nullptr; }
  bool has_timeline() const { return capacity_ > 0; }

  void SetJoined(bool joined);
  // Around a collective; by one thread at a time.
  void Begin(TimelineKind kind, uint64_t number, uint64_t bytes, uint32_t group, int64_t now_ns);
  // `number` is the last one that is done now.
  void End(uint64_t number, uint64_t operations, int64_t wait_ns, int64_t now_ns);

  // A finished span; any thread. Dropped and counted when the shepherd has not made room.
  void Write(TimelineRecord record, std::string_view name);

 private:
  WorkerPage* page_ = nullptr;
  uint32_t capacity_ = 0;  // ours: what is written in the page later does not count
  std::mutex ring_;        // the ring is made for one writer; marks come from any thread
};

// The lane of the timeline that the calling thread has: 0 for the one that called dtrain_init
// first, 1 for the engine's, others from 2 on.
uint32_t ThisThreadsLane();
void SetThisThreadsLane(uint32_t lane);
constexpr uint32_t kProgramLane = 0;
constexpr uint32_t kEngineLane = 1;

// Spans of the program's own, nested per thread.
void BeginMark(const char* name);
void EndMark(ProgressPage& page);

}  // namespace dtrain::runtime
