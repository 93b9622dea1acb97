// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dtrain::os {

// Whether a file that holds a secret (a key, a token) is one that only we and root can have
// written or read: a regular file and no link, owned by root or us, closed to group and others, in
// directories that nobody else can change (a group whose number is the user's counts as the user).
// PERMISSION_DENIED says what is wrong and the command that mends it.
absl::Status CheckPrivateFile(const std::string& path);

// Its contents; what was checked is what is read.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t limit = 1 << 20);

// Whether a file that says whom to trust (an authority, a list of accounts, our configuration) is
// one that only we and root can have written: a regular file, owned by root or us, in directories
// that nobody else can change. Links on the way are followed when they are root's or ours, in such
// directories. PERMISSION_DENIED as above.
absl::Status CheckTrustedFile(const std::string& path);

// Its contents; what was checked is what is read.
absl::StatusOr<std::string> ReadTrustedFile(const std::string& path, size_t limit = 1 << 20);

// Makes a directory of ours, where there is none, in directories that nobody else can change. One
// that is there is taken when it is no link, ours, and grants nothing beyond `most`: else
// PERMISSION_DENIED as above.
absl::Status MakeOwnDirectory(const std::string& path, mode_t mode, mode_t most);
// Whether it would be taken. Makes none.
absl::Status CheckOwnDirectory(const std::string& path, mode_t most);

// Whether there is a directory that belongs to this user. Not so of a home that sudo or su has left
// in the environment.
bool IsOwnDirectory(const std::string& path);

}  // namespace dtrain::os
