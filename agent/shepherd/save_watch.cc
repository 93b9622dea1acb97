// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/save_watch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/os/process_facts.h"

namespace dtrain::shepherd {
namespace {

// Less within a window is a log file or a summary, which a program writes that ignores its end.
constexpr uint64_t kLeastSave = 1 << 20;
constexpr size_t kMostFilesLookedAt = 16;

}  // namespace

void SaveWatch::Begin() {
  if (!std::exchange(on_, true)) Look();
}

void SaveWatch::End() {
  on_ = false;
  timer_.Cancel();
}

void SaveWatch::Look() {
  ++look_;
  std::vector<Save> saves;
  for (const os::ProcessInfo& info : sweeper_.Left()) {
    const uint64_t disk = os::BytesToDisk(info.pid);
    const std::vector<os::FileBeingWritten> files =
        os::FilesBeingWritten(info.pid, kMostFilesLookedAt);
    uint64_t position = 0;
    for (const os::FileBeingWritten& file : files) position += file.position;
    const auto [place, is_new] = seen_.try_emplace({info.pid, info.start_time});
    Seen& seen = place->second;
    seen.look = look_;
    uint64_t grown = 0;
    if (!is_new) {
      // The first counts pages of a mapping, too, and the second what no disk is behind.
      grown =
          std::max(disk - std::min(disk, seen.disk), position - std::min(position, seen.position));
    }
    seen.disk = disk;
    seen.position = position;
    seen.grown[look_ % kLooks] = grown;
    seen.in_all += grown;
    const uint64_t bytes = std::accumulate(seen.grown.begin(), seen.grown.end(), uint64_t{0});
    // One that waits for a disk to take all (fsync, or close on a file server) writes still.
    const bool flushes = info.state == 'D' && seen.in_all >= kLeastSave;
    if (bytes < kLeastSave && !flushes) continue;
    saves.push_back({info.pid, info.parent, bytes, files.empty() ? "" : files.front().path});
  }
  std::erase_if(seen_, [this](const auto& each) { return each.second.look != look_; });
  on_look_(saves);
  if (on_) timer_.After(kWindow / kLooks, [this] { Look(); });
}

}  // namespace dtrain::shepherd
