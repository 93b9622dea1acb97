// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/sweeper.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/shared_memory.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {

// Shared memory with a name that the job's processes have made and not removed (ADR 56). An object
// is theirs if it was not there before them, and one of them was seen to have it mapped. One that
// was only open is a file, such as a checkpoint: it is reported, never removed. Loop thread.
class LeftMemory {
 public:
  // All must stay.
  LeftMemory(loop::Loop& loop, const Sweeper& sweeper, LauncherLine& launcher);

  void Begin();  // before the workers are started
  // Some are about to be killed, or one has died: what is new, and whose? From now on it may be
  // that a process had no chance to remove what it has made.
  void OnKill();
  // No process of the job is left. Removes what nobody uses, if some were killed; else says that it
  // is there.
  void End();

 private:
  void Watch();
  void LookSoon();
  // False: the job has some open that it may map soon.
  bool Look();
  bool HasClaim(const os::SharedMemory& object) const;

  loop::Loop& loop_;
  const Sweeper& sweeper_;
  LauncherLine& launcher_;
  const os::SharedMemoryRecord record_;
  os::UniqueFd changes_;  // inotify
  std::optional<loop::FdWatch> watch_;
  loop::Timer timer_;
  bool begun_ = false;
  bool killed_ = false;
  TimePoint again_at_{};
  std::set<os::SharedMemory> before_;  // when the job began
  std::set<os::SharedMemory> ours_;
  std::set<os::SharedMemory> others_;              // new, but nobody of the job had it mapped
  std::set<os::SharedMemory> files_;               // of all seen, those that the job had open
  std::vector<os::RecordedSharedMemory> records_;  // of other jobs, at the end
};

}  // namespace dtrain::shepherd
