// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/collective.h"
#include "runtime/engine/operation.h"
#include "runtime/engine/page.h"

namespace dtrain::runtime {

// What the page and the timeline are told of this process's collectives. The page shows one at a
// time: of those in flight on a device the oldest, else the oldest of those that run on the host,
// at most one for each group. Any thread.
class Progress {
 public:
  explicit Progress(ProgressPage& page) : page_(page) {}

  // Whether anybody looks, and whether also at what is over.
  bool watched() const { return page_.open(); }
  bool has_timeline() const { return page_.has_timeline(); }
  // Before the first collective on a device, whose ends come on any thread, and before the first of
  // a second group. Before that nothing here takes a lock: it would be a good part of a small
  // collective's time.
  void SetShared() { shared_ = true; }

  // Some operations of one group that run as one.
  struct Run {
    TimelineKind kind = TimelineKind::kBarrier;
    uint32_t group = 0;
    uint64_t bytes = 0;
    int64_t begin_ns = 0;
    Spent spent;
    uint32_t lane = 0;
    struct Part {
      uint64_t number = 0;
      uint64_t bytes = 0;
      TimelineKind kind = TimelineKind::kBarrier;
      std::string name;
    };
    std::vector<Part> parts;
  };
  // Without the parts where nobody will ask for them.
  Run Describe(const std::vector<Operation*>& operations, int64_t begin_ns) const;

  // Around what runs on the host; one thread at a time for each group.
  void Begin(TimelineKind kind, uint64_t number, uint64_t bytes, uint32_t group, int64_t now_ns);
  // `number` is the last one that is done now.
  void End(uint32_t group, uint64_t number, uint64_t operations, int64_t wait_ns, int64_t now_ns);

  // Around what runs on a device. Launched takes the place of End for what the group began on the
  // host. Landed with an id that is not there does nothing.
  uint64_t Launched(Run run);
  void Landed(uint64_t id, int64_t done_ns);
  void Forget(uint64_t id);

  // Spans of what is over. `ends`, where given: when the transfer was through, and then when each
  // part had its result.
  void Record(const Run& run, int64_t end_ns, const std::vector<int64_t>& ends = {});

 private:
  struct Shown {
    TimelineKind kind;
    uint64_t number;
    uint64_t bytes;
    uint32_t group;
    int64_t begin_ns;
  };
  static Shown ShownOf(const Run& run);
  void Show(const Shown& shown);
  void ShowCurrent();

  ProgressPage& page_;
  std::atomic<bool> shared_{false};
  std::mutex mutex_;
  std::map<uint32_t, Shown> host_;  // by group
  std::map<uint64_t, Run> flights_;
  uint64_t next_ = 1;
};

}  // namespace dtrain::runtime
