// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dtrain::agent {

struct ServeOptions {
  std::string state_directory;  // empty: DefaultStateDirectory()
};

// The resident agent: serves launchers of this node, and through `bridge` those that came by ssh,
// until SIGTERM. Workers run on when it ends, however it ends, for as long as their launchers'
// leases; the next agent takes them over. Returns the process's exit code.
int RunServe(const ServeOptions& options);

}  // namespace dtrain::agent
