// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"

// Where a file that the user names is written. In a sticky folder that others may write to, as
// /tmp, a link is followed only when it is ours or the folder's owner's: else anyone could plant
// one and have us overwrite a file of ours. This is the rule of the kernel's protected_symlinks,
// which is off on some machines and does not cover readlink.
namespace dtrain::os {

struct FilePlace {
  UniqueFd folder;   // O_PATH
  std::string name;  // in it, and not a link; may not exist
};

// The descriptor of ours that a path names, as /dev/stdout, /dev/fd/5 and /proc/self/fd/5 do. Only
// these are no files to be found by a walk.
std::optional<int> DescriptorOf(const std::string& path);

// `what` as for PosixError, in all.
absl::StatusOr<FilePlace> PlaceOfFile(const std::string& path, absl::string_view what);

// PERMISSION_DENIED: what was opened there is not a device, and somebody else has put it into a
// folder that all may write to: a FIFO on which he listens, or a file that he can read.
absl::Status CheckMaker(int folder, int file, absl::string_view what);

// The folder itself, O_PATH. Missing ones are made.
absl::StatusOr<UniqueFd> MakeFolders(const std::string& path, absl::string_view what);
// The same from a folder on, when `path` is relative.
absl::StatusOr<UniqueFd> MakeFoldersIn(UniqueFd folder, const std::string& path,
                                       absl::string_view what);

}  // namespace dtrain::os
