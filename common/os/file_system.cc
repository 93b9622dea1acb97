// SPDX-License-Identifier: Apache-2.0
#include "common/os/file_system.h"

#include <fcntl.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace dtrain::os {

absl::StatusOr<std::string> FileSystemOf(int fd) {
  // Only files in memory have seals; a memfd's mount is the kernel's own.
  if (fcntl(fd, F_GET_SEALS) >= 0) return "tmpfs";
  std::string line, id;
  for (std::ifstream info(absl::StrCat("/proc/self/fdinfo/", fd)); std::getline(info, line);) {
    absl::string_view value = line;
    if (absl::ConsumePrefix(&value, "mnt_id:")) {
      id = absl::StrCat(absl::StripLeadingAsciiWhitespace(value), " ");
    }
  }
  if (id.empty()) return absl::NotFoundError("its mount cannot be found");
  for (std::ifstream mounts("/proc/self/mountinfo"); std::getline(mounts, line);) {
    if (!absl::StartsWith(line, id)) continue;
    // "36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/root rw"; blanks in names are escaped.
    const size_t at = line.find(" - ");
    if (at == std::string::npos) break;
    return line.substr(at + 3, line.find(' ', at + 3) - at - 3);
  }
  return absl::NotFoundError("it is on a file system that is not mounted here");
}

bool IsShared(absl::string_view type) {
  constexpr absl::string_view kShared[] = {
      "9p",     "acfs",  "afs",    "beegfs", "ceph",   "cifs",   "coda",     "fuse",
      "gfs2",   "gpfs",  "lustre", "nfs",    "nfs4",   "ocfs2",  "orangefs", "panfs",
      "prl_fs", "pvfs2", "smb3",   "smbfs",  "vboxsf", "vmhgfs", "virtiofs", "wekafs"};
  return std::find(std::begin(kShared), std::end(kShared), type) != std::end(kShared) ||
         absl::StartsWith(type, "fuse.");
}

}  // namespace dtrain::os
