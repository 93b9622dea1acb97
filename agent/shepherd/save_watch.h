// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/shepherd/sweeper.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"

namespace dtrain::shepherd {

// Looks, at the end of a job, which of its processes still write files: their bytes to disks and
// their places in the files that they have open. No file system is asked, because it may hang.
// Loop thread.
class SaveWatch {
 public:
  static constexpr Duration kWindow = std::chrono::seconds(5);

  // What a process has written within kWindow.
  struct Save {
    pid_t pid = 0;
    pid_t parent = 0;
    uint64_t bytes = 0;
    std::string file;  // of those that it has open, the last; may be empty
  };
  // After each look, with those that write: none, mostly.
  using OnLook = absl::AnyInvocable<void(const std::vector<Save>& saves)>;

  SaveWatch(loop::Loop& loop, const Sweeper& sweeper, OnLook on_look)
      : sweeper_(sweeper), on_look_(std::move(on_look)), timer_(loop) {}

  void Begin();  // again: goes on
  void End();

 private:
  using Name = std::pair<pid_t, uint64_t>;  // of a process, for good
  static constexpr size_t kLooks = 10;      // in a window
  struct Seen {
    uint64_t disk = 0;      // bytes so far
    uint64_t position = 0;  // in all of its files
    std::array<uint64_t, kLooks> grown{};
    uint64_t in_all = 0;
    size_t look = 0;
  };
  void Look();

  const Sweeper& sweeper_;
  OnLook on_look_;
  loop::Timer timer_;
  bool on_ = false;
  std::map<Name, Seen> seen_;
  size_t look_ = 0;
};

}  // namespace dtrain::shepherd
