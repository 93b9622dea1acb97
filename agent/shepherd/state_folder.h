// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/shepherd/launcher_line.h"
#include "common/base/clock.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// State that no attempt of a running job can still want.
inline constexpr std::chrono::hours kOldState{7 * 24};

// Where the workers of one node keep what the next attempt of their job continues from (ADR 44):
// DIR/JOB/HOST. The workers make it when they first have something to keep, so that jobs
// that keep nothing touch no file system. Other jobs and users may have things of their own in DIR,
// so only what workers have put there is removed, file by file, and no link is followed.
class StateFolder {
 public:
  // `cache`: of the node's user, "" if unknown. The part has a state.
  static absl::StatusOr<StateFolder> Of(const v1::JobPart& part, absl::string_view cache);

  const std::string& path() const { return path_; }
  // Holds those of all nodes, where they share DIR.
  const std::string& job_path() const { return job_path_; }

  // For those who need it to be there before the workers run. PERMISSION_DENIED: another user has
  // put something in its place.
  absl::Status Make() const;
  // What this node's workers have kept. May leave files that are not theirs, and says so.
  absl::Status Remove() const;
  // What Make() has made in vain.
  void RemoveIfEmpty() const;
  // What workers of this user kept in the same DIR, for any job and host, before `age`.
  void RemoveOlder(std::chrono::seconds age) const;
  // Whether DIR answers: its file server may be down.
  bool Answers(Duration limit) const;

 private:
  StateFolder() = default;
  std::string directory_, job_path_, path_;
};

// XDG_CACHE_HOME or HOME/.cache of this process; "" if neither is set.
std::string CacheOfUser();

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
