// SPDX-License-Identifier: Apache-2.0
#include "common/os/file_system.h"

#include <fcntl.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace dtrain::os {
namespace {

// Of a line "36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/root rw"; empty: it is none.
std::string TypeIn(absl::string_view line) {
  const size_t at = line.find(" - ");
  if (at == absl::string_view::npos) return "";
  return std::string(line.substr(at + 3, line.find(' ', at + 3) - at - 3));
}

// Blanks, tabs, line ends and backslashes are escaped in names.
std::string Unescaped(absl::string_view name) {
  return absl::StrReplaceAll(name,
                             {{"\\040", " "}, {"\\011", "\t"}, {"\\012", "\n"}, {"\\134", "\\"}});
}

}  // namespace

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
    if (std::string type = TypeIn(line); !type.empty()) return type;
  }
  return absl::NotFoundError("it is on a file system that is not mounted here");
}

std::string FileSystemAt(absl::string_view mountinfo, absl::string_view path) {
  std::string type;
  size_t longest = 0;
  for (const absl::string_view line : absl::StrSplit(mountinfo, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 5));
    if (fields.size() < 6) continue;
    const std::string point = Unescaped(fields[4]);
    const bool is_above =
        point == "/" || path == point || absl::StartsWith(path, absl::StrCat(point, "/"));
    // Of two on one point the later one is on top.
    if (!is_above || point.size() < longest) continue;
    longest = point.size();
    type = TypeIn(line);
  }
  return type;
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
