// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

namespace dtrain::cli {

// Who but root and the user `self` can change this file, or the files of this folder: "belongs to
// user id 7". Empty: nobody. Pure.
std::string WhoElseWrites(const struct stat& info, uid_t self);

}  // namespace dtrain::cli
