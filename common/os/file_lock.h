// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {

// A lock file, which one process holds until it ends or this is destroyed; on a network file system
// one process of all machines, where it supports locks. The file stays when the lock is released.
class FileLock {
 public:
  // Makes the file if it is missing, and writes `description` of the holder into it if there is
  // room on the disk. UNAVAILABLE: another process has held it for `patience`. Calls `waits` after
  // each try that has found it held.
  static absl::StatusOr<FileLock> Take(
      const std::string& path, absl::string_view description, Duration patience = Duration::zero(),
      absl::FunctionRef<void()> waits = [] {});
  // Whether a process holds it now. Nobody holds a missing file.
  static absl::StatusOr<bool> IsHeld(const std::string& path);

  // Replaces the description. Newlines may follow it in the file, as many as hide a longer one
  // before.
  void Describe(absl::string_view description);

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace dtrain::os
