// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::os {

// The kind of file system that an open file is on, as /proc/self/mountinfo calls it: "ext4",
// "fuse.sshfs"; "tmpfs" for files in memory. The file system itself is not asked, since one that
// hangs would hold us. NOT_FOUND: it is on none of our mounts, as a file from another namespace.
absl::StatusOr<std::string> FileSystemOf(int fd);

// The same of what lies at a path without links, by /proc/self/mountinfo's text. Empty: unknown.
// PURE.
std::string FileSystemAt(absl::string_view mountinfo, absl::string_view path);

// Whether several machines may see the files of one of that kind: there sockets may not work, locks
// may not hold, and a server that is down stops everybody. PURE.
bool IsShared(absl::string_view type);

}  // namespace dtrain::os
