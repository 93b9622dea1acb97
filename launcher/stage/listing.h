// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"

namespace dtrain::stage {

struct Listing {
  std::vector<std::string> paths;  // sorted, each once; not all need exist
  std::string git;                 // "1a2b3c4 + 2 changed"; empty: no git work tree
  std::string warning;             // of a git work tree that was ignored; or empty
};

// The paths below `directory` that are staged: of a git work tree those that git tracks or would,
// else all but the usual caches. Ignores a git work tree that begins above `directory` and belongs
// to another user. git runs no command that the repository configures. `exclude` and the file
// .dtrainignore take away, `include` adds, as lines of a .gitignore do. INVALID_ARGUMENT: it cannot
// be read, or git does not say.
absl::StatusOr<Listing> ListFiles(const std::string& directory,
                                  const std::vector<std::string>& exclude,
                                  const std::vector<std::string>& include);

// Opens the folder of the file `path` below `directory`. Follows no link below `directory`.
// NOT_FOUND: a folder is missing, or is a link.
absl::StatusOr<os::UniqueFd> OpenFolderOf(const std::string& directory, absl::string_view path);

}  // namespace dtrain::stage
