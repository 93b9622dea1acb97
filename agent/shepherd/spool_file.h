// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {

// A file without a name that holds one log stream until the launcher has it. It is gone with its
// only descriptor, however the process ends.
class SpoolFile {
 public:
  // In the first of the directories that takes it, else in memory.
  static absl::StatusOr<SpoolFile> Open(const std::vector<std::string>& directories);

  int fd() const { return fd_.get(); }
  // Gives back the space before `offset`, in big steps, or small ones where space is `scarce`: the
  // file keeps its length and offsets.
  void Reclaim(uint64_t offset, bool scarce);
  // All before it was given back.
  uint64_t kept_from() const { return kept_from_; }

 private:
  explicit SpoolFile(os::UniqueFd fd) : fd_(std::move(fd)) {}
  os::UniqueFd fd_;
  uint64_t reclaimed_ = 0;  // or tried to be
  uint64_t kept_from_ = 0;
};

}  // namespace dtrain::shepherd
