// SPDX-License-Identifier: Apache-2.0
#include "common/os/local_folder.h"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/os/private_file.h"

namespace dtrain::os {
namespace {

// A folder of ours and of nobody else, or why it is not.
absl::Status TakeFolder(const std::string& path, bool make) {
  return make ? MakeOwnDirectory(path, 0700, 0700) : CheckOwnDirectory(path, 0700);
}

// The first of those folders of ours that were made because another user has our name.
std::string FindSpareFolder(const std::string& tmp, const std::string& prefix) {
  std::string found;
  std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(tmp.c_str()), closedir);
  while (const dirent* entry = listing == nullptr ? nullptr : readdir(listing.get())) {
    std::string path = absl::StrCat(tmp, "/", entry->d_name);
    if (!absl::StartsWith(path, prefix) || !TakeFolder(path, /*make=*/false).ok()) continue;
    if (found.empty() || path < found) found = std::move(path);
  }
  return found;
}

}  // namespace

absl::StatusOr<LocalFolder> OwnFolderIn(const std::string& tmp, bool make) {
  LocalFolder own{absl::StrCat(tmp, "/dtrain-", geteuid()), ""};
  const std::string spares = own.path + ".";
  absl::Status taken = TakeFolder(own.path, make);
  if (absl::IsPermissionDenied(taken) || (!make && !taken.ok())) {
    std::string spare = spares + "XXXXXX";
    if (make && FindSpareFolder(tmp, spares).empty() && mkdtemp(spare.data()) == nullptr) {
      return PosixError(errno, absl::StrCat("make ", spare));
    }
    own.path = FindSpareFolder(tmp, spares);  // the same for all who make one now
    own.remark = absl::StrCat(taken.message(), "; so ", own.path, " is used");
    if (!own.path.empty()) taken = TakeFolder(own.path, make);
  }
  if (!taken.ok()) return taken;
  return own;
}

}  // namespace dtrain::os
