// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace dtrain::os {

struct LocalFolder {
  std::string path;
  std::string remark;  // why it is not the usual one; empty: it is
};

// What this user has for itself, and for long, in a folder of all users, as /var/tmp:
// TMP/dtrain-UID, closed to everybody else (0700). Where another user has taken that name, with
// whatever it may be, one of a random name beside it, which later calls find. `make`: it is made
// where there is none.
absl::StatusOr<LocalFolder> OwnFolderIn(const std::string& tmp, bool make);

}  // namespace dtrain::os
