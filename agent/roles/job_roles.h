// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dtrain::roles {

// What runs as a job's user, and is told by the descriptors that it is started with what to do:
// "shepherd", and the helpers "pmix", "store" and "tcpstore", which a shepherd starts from the
// program that it is itself. Any program with these roles can be a shepherd's. `words` are the
// program's, without its name. Returns the exit code; none: they name no such role.
std::optional<int> RunJobRole(const std::vector<std::string>& words);

}  // namespace dtrain::roles
