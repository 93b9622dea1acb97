// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "launcher/stage/snapshot.h"

namespace dtrain::stage {

// The bytes of a snapshot's files: those that the tree has now, or of a copy made when it was
// taken. Who receives them checks them.
class Contents {
 public:
  // `snapshot` outlives it.
  explicit Contents(const Snapshot& snapshot) : snapshot_(snapshot) {}

  // For restarts: from now on changes of the tree do not matter. In one file without a name.
  absl::Status Copy(const std::vector<std::string>& places);
  // The same in the file `path`, and on disk, for launchers that come after us. Calls `beat` after
  // each piece.
  absl::Status CopyTo(const std::string& path, absl::FunctionRef<void()> beat);
  // Uses that copy.
  absl::Status UseCopy(const std::string& path);
  bool is_copied() const { return static_cast<bool>(copy_); }
  // Exactly `size` bytes from `offset` on.
  absl::StatusOr<std::string> Read(uint32_t file, uint64_t offset, size_t size);

 private:
  absl::Status CopyInto(os::UniqueFd copy, absl::FunctionRef<void()> beat);
  // By file, where in the copy its content is; and the end.
  std::pair<std::vector<uint64_t>, uint64_t> Offsets() const;

  const Snapshot& snapshot_;
  os::UniqueFd copy_;
  std::vector<uint64_t> offsets_;  // in the copy, by file
  os::UniqueFd open_;              // of the file that was read last
  uint32_t open_file_ = 0;
};

}  // namespace dtrain::stage
