// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {

// This process's directory in the cgroup v2 hierarchy, when children can be made in it.
absl::StatusOr<std::string> FindWritableCgroup();
// The same of the one beside it of that name, to which processes can be moved from here.
absl::StatusOr<std::string> FindWritableSibling(absl::string_view name);

// The name of the cgroup that holds the workers of one job on one node, under that directory. Who
// survives a shepherd that was killed finds it by this.
std::string JobCgroupName(absl::string_view job_id, uint32_t attempt, uint32_t node_rank);

// A cgroup v2 directory that we made. Destroying it leaves the directory; see Remove.
class Cgroup {
 public:
  static absl::StatusOr<Cgroup> Make(absl::string_view parent_path, absl::string_view name);
  // Those right below `parent_path` whose name begins with `prefix`.
  static std::vector<Cgroup> Below(const std::string& parent_path, absl::string_view prefix);
  // An existing one, made by another process of ours.
  explicit Cgroup(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // How many cgroups there may be below, and how deep. Its user cannot raise it.
  absl::Status Bound(int descendants, int depth) const;
  // Lets that user make cgroups below and move processes between them.
  absl::Status GiveTo(uid_t uid, gid_t gid) const;
  // For SpawnSpec::cgroup_fd.
  absl::StatusOr<UniqueFd> Open() const;
  // Whether a process lives in it or below; false when it is gone.
  bool Populated() const;
  std::vector<pid_t> Processes() const;  // of it and of all below
  // SIGKILL to all in it and below, also to those being forked meanwhile (before Linux 5.14, to
  // those seen: call again while Populated).
  void Kill() const;
  // Removes it and all below. Fails while it is populated.
  absl::Status Remove() const;

 private:
  std::string path_;
};

// What keeps this process from making another process or thread, for the message about it:
// "pids.max (50) of the cgroup /user.slice", "RLIMIT_NPROC (4096, ulimit -u)"; both names where
// neither seems to be reached.
std::string ReachedProcessLimit();

// Counts the out-of-memory kills of the kernel in the memory cgroup of this process's workers, by
// cgroup v2's memory.events or v1's memory.oom_control.
class OomKillCounter {
 public:
  OomKillCounter();
  // Kills since construction; 0 where nothing counts them.
  uint64_t Read() const;
  // The least memory limit of that cgroup and those above it; 0: none.
  uint64_t LimitBytes() const;

 private:
  std::optional<uint64_t> ReadFile() const;
  std::string path_;
  std::string top_;  // the v2 mount point; empty with v1
  uint64_t base_ = 0;
};

}  // namespace dtrain::os
