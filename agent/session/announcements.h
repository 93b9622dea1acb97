// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/session/launcher_stream.h"
#include "dtrain/v1/session.pb.h"

namespace dtrain::session {

// What a session says to its launcher. What counts for launchers to come as well is kept, and said
// again to one that has taken the job over, behind its Welcome. Loop thread.
class Announcements {
 public:
  explicit Announcements(LauncherStream& launcher) : launcher_(launcher) {}
  Announcements(const Announcements&) = delete;
  Announcements& operator=(const Announcements&) = delete;

  void Say(v1::SessionEvent event);
  // Of GPUs; one that comes before a Welcome is dropped.
  void SaySample(const v1::GpuStates& states);
  // Another launcher has the job. What there is to say, `first` before it, waits for its Welcome:
  // the number by which that is given.
  uint64_t AwaitWelcome(std::optional<v1::SessionEvent> first);
  // Of a launcher that has lost the job meanwhile it is dropped.
  void Welcome(uint64_t number, const v1::SessionEvent& welcome);

 private:
  LauncherStream& launcher_;
  std::vector<v1::SessionEvent> kept_;
  // What is sent after the Welcome; absent: no Welcome is due.
  std::optional<std::vector<v1::SessionEvent>> waiting_;
  uint64_t number_ = 0;
};

}  // namespace dtrain::session
