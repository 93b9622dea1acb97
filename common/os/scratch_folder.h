// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {

// Where files of a job go, the best first: XDG_RUNTIME_DIR, TMPDIR, /tmp, /var/tmp.
std::vector<std::string> TemporaryDirectories();

// The same for small ones: /dev/shm before them, since making a folder on a disk takes as long as
// starting a worker, and containers that share few folders with their host share that.
std::vector<std::string> ScratchPlaces();

// What may lie in a folder that is removed. A worker may put anything there, and whoever removes it
// has other things to do.
struct RemovalLimit {
  int deepest = 16;
  int entries = 10000;
  int names = 100000;  // looked at in the place where it lies, which anybody may fill
};

// A folder of this process in the first place that takes it, for its user only (0700). Its name
// says which process made it, so that another can remove it when that one was killed.
class ScratchFolder {
 public:
  static absl::StatusOr<ScratchFolder> Make(const std::vector<std::string>& places);
  ~ScratchFolder() { Remove().IgnoreError(); }
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&& other) noexcept;

  // Absolute.
  const std::string& path() const { return path_; }
  // The first `limit` bytes of a file in it, which others of the same user may have put there:
  // never waits, and takes nothing but a regular file of ours. NOT_FOUND: it is not there.
  absl::StatusOr<std::string> Read(const std::string& name, size_t limit) const;
  // It stays, under that name in the same place, as if it were made now. Its new path. If it cannot
  // be, it is as before. ALREADY_EXISTS: something has that name.
  absl::StatusOr<std::string> Keep(const std::string& name);
  // With all in it. Once; the destructor does it otherwise.
  absl::Status Remove(RemovalLimit limit = {});

 private:
  ScratchFolder(std::string path, UniqueFd folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}
  std::string path_;  // empty: removed, or moved away
  UniqueFd folder_;
};

// Removes the folders that a process, which has ended, made as `owner`. Not those of other users
// with such a name. May be called as root: follows no links, and leaves what would take long: the
// limit is of all of them together.
absl::Status RemoveScratchFolders(const std::vector<std::string>& places, pid_t pid,
                                  uint64_t start_time, uid_t owner, RemovalLimit limit = {});
// The same of all processes of this PID namespace that have ended: this user's, and with
// `of_all_users` everybody's, if we are root. Others may have left very many: a hundred times as
// much.
absl::Status RemoveDeadScratchFolders(const std::vector<std::string>& places, bool of_all_users,
                                      RemovalLimit limit = {});

// Removes this user's folders in `directory` whose names begin like that, if they have not changed
// for so many seconds.
absl::Status RemoveOldFolders(const std::string& directory, absl::string_view prefix,
                              int64_t seconds, RemovalLimit limit);

}  // namespace dtrain::os
