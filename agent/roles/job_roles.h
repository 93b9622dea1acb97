// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dtrain::roles {

// The processes that run as a job's user: "shepherd", and its helpers "pmix", "store" and
// "tcpstore". A shepherd starts a helper by running its own program in that role, so a program that
// has one of these roles needs all of them. Each gets its work through inherited descriptors.
// `words`: the command line without the program's name. Returns the exit code, or nothing if
// `words` is not one of these roles.
std::optional<int> RunJobRole(const std::vector<std::string>& words);

}  // namespace dtrain::roles
