// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtrain::stage {

struct Listing {
  std::vector<std::string> paths;  // sorted, each once; not all need exist
  std::string git;                 // "1a2b3c4 + 2 changed"; empty: no git work tree
};

// The paths below `directory` that are staged: of a git work tree those that git tracks or would,
// else all but the usual caches. `exclude` and the file .dtrainignore take away, `include` adds, as
// lines of a .gitignore do. INVALID_ARGUMENT: it cannot be read, or git does not say.
absl::StatusOr<Listing> ListFiles(const std::string& directory,
                                  const std::vector<std::string>& exclude,
                                  const std::vector<std::string>& include);

}  // namespace dtrain::stage
