// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "agent/shepherd/launcher_line.h"
#include "agent/shepherd/state_folder.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// What the workers of a job that may restart keep on this node, from one attempt to the next.
class KeptState {
 public:
  explicit KeptState(LauncherLine& launcher) : launcher_(launcher) {}

  // Before the workers start. `in_containers`: some run in one, which sees only what is there.
  void Choose(const v1::JobPart& part, bool in_containers);
  // Null: nothing is kept.
  const StateFolder* folder() const { return folder_ ? &*folder_ : nullptr; }
  // After the end of the workers. `all_succeeded`: no attempt will follow.
  void Tidy(bool all_succeeded) const;

 private:
  LauncherLine& launcher_;
  std::optional<StateFolder> folder_;
};

}  // namespace dtrain::shepherd
