// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/written_by.h"

#include "absl/strings/str_cat.h"

namespace dtrain::cli {

std::string WhoElseWrites(const struct stat& info, uid_t self) {
  if (info.st_uid != 0 && info.st_uid != self) {
    return absl::StrCat("belongs to user id ", info.st_uid);
  }
  // In a sticky folder, such as /tmp, nobody replaces another's files.
  if (S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0) return "";
  if ((info.st_mode & 002) != 0) return "can be written by everybody (chmod go-w)";
  // A group with its user's number is this user's own, as most distributions make them. Where they
  // do, the umask is often 002. In OpenShift's images all is the root group's.
  if ((info.st_mode & 020) == 0 || info.st_gid == info.st_uid) return "";
  return absl::StrCat("can be written by group id ", info.st_gid, " (chmod g-w)");
}

}  // namespace dtrain::cli
